"""What outputs teach and later ones are offered: names, and what stands between values;
never a value."""

import json
import sys
import time
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from schema_families import CASES as FAMILIES
from schemas import random_schema
from vocabularies import BYTES

import guided_plugin as gp
from guided_plugin.cli.loading import load_vocabulary
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.learnt_drafts import _RECENT, Found, LearntDrafts
from guided_plugin.grammar.outline import Outline, words_of
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.spec.triggers import Trigger

DEMO = load_vocabulary(MODEL_DIR)
MOST = 7
STRING = {"type": "string"}
INTEGER = {"type": "integer"}


class Server:
    """Requests, one after the other or at once, in each step with what is offered to
    them."""

    def __init__(self, vocabulary=DEMO):
        self.vocabulary, self.forced = vocabulary, ForcedTokens(vocabulary)
        config = gp.GuidedConfig(isolate_compiles=False, whitespace="compact")
        self.compiler = gp.GrammarCompiler(vocabulary, config=config)
        self.learnt = LearntDrafts(vocabulary, self.forced, MOST)

    def table(self, spec, slot=0, triggers=()):
        grammar = self.compiler.compile(spec)
        table = GrammarTable(self.vocabulary, 5.0, 5.0)
        table.add(
            slot, "one", spec, grammar, self.compiler.backend(grammar.backend), triggers
        )
        return table

    def step(self, table, slot, tokens):
        """What follows a request's new tokens, as the worker finds it; and whether that
        was known before."""
        request = table.requests[slot]
        found, wanted = self.learnt.after(slot, request, tokens)
        table.accept_more((slot,), [[token] for token in tokens])
        assert not table.failures
        if wanted:
            return self.learnt.look(slot, request), False
        return found or Found(), found is not None

    def output(self, spec, text, slot=0, takes=True):
        """The texts that are offered, by how much of the output is there. Drafts that
        are right are taken."""
        tokens = (
            self.vocabulary.encode(text)
            if self.vocabulary.encode
            else list(text.encode())
        )
        table = self.table(spec, slot)
        offers = {}
        at = 0
        end = 1
        while end <= len(tokens):
            found, _ = self.step(table, slot, tokens[at:end])
            at = end
            if found.tokens:
                offers[self.text(tokens[:at])] = self.text(found.tokens)
            for token in found.tokens:
                if not takes or tokens[end : end + 1] != [token]:
                    break
                end += 1
            end += 1
        self.step(table, slot, tokens[at:])
        return offers

    def text(self, tokens):
        return b"".join(self.vocabulary.tokens[token] for token in tokens)


def objects(*, required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


def branch(kind, **more):
    return objects(kind={"const": kind}, **more, note=STRING, required=["kind", *more])


def text(chance):
    pieces = [
        "a",
        "Ada",
        " ",
        "role",
        '"',
        "\\",
        "é",
        "superuser",
        "7",
        "-",
        '","age":',
        "\n",
        "admin",
        "x" * 90,
    ]
    return "".join(chance.choice(pieces) for _ in range(chance.randrange(6)))


def number(chance):
    return chance.choice([0, 7, 36, -5, 1234567, 10**12])


def some(chance, **values):
    """A part of these."""
    return {name: value for name, value in values.items() if chance.random() < 0.7}


def union(shape, chance):
    kind, role = chance.choice([("admin", "superuser"), ("guest", "none")])
    return {"kind": kind, "role": role, **some(shape, note=text(chance))}


def headed(shape, chance):
    kind, role = chance.choice([("admin", "superuser"), ("guest", "none")])
    return {"head": {"kind": kind}, "role": role, **some(shape, note=text(chance))}


def measured(shape, chance):
    mark, level = chance.choice([("a", "high"), ("b", "low")])
    return {
        "id": mark + "z" * chance.randrange(4),
        "level": level,
        **some(shape, note=text(chance)),
    }


def person(shape, chance):
    home = some(shape, street=text(chance), zip=number(chance))
    tags = [text(chance) for _ in range(shape.randrange(1, 3))]
    unit = chance.choice(["celsius", "fahrenheit", "cent"])
    return some(
        shape,
        name=text(chance),
        age=number(chance),
        tags=tags,
        home=home,
        unit=unit,
        end=text(chance),
    )


def pair(shape, chance):
    pair = chance.choice([{"a": "x", "b": "long"}, {"a": "y", "b": "other"}])
    return {"pair": pair, **some(shape, end=text(chance), last=number(chance))}


def calls(shape, chance):
    made = [("weather", {"city": text(chance)}), ("time", {"zone": text(chance)})]
    chosen = [made[shape.randrange(2)] for _ in range(shape.randrange(1, 4))]
    return [
        {"name": name, "arguments": arguments, **some(shape, id=number(chance))}
        for name, arguments in chosen
    ]


def condition(shape, chance):
    kind = chance.choice(["admin", "guest"])
    told = {"kind": kind, "role": "superuser" if kind == "admin" else text(chance)}
    return {**told, **some(shape, note=text(chance))}


CALLS = {
    "type": "array",
    "items": {
        "anyOf": [
            objects(
                name={"const": name},
                arguments=objects(**{own: STRING}, required=[own]),
                id=INTEGER,
            )
            | {"required": ["name", "arguments"]}
            for name, own in (("weather", "city"), ("time", "zone"))
        ]
    },
}
CASES = {
    "union": (
        {
            "anyOf": [
                branch("admin", role={"const": "superuser"}),
                branch("guest", role={"const": "none"}),
            ]
        },
        union,
    ),
    "union by a pattern": (
        {
            "anyOf": [
                objects(
                    id={"pattern": f"^{mark}z*$", **STRING},
                    level={"const": level},
                    note=STRING,
                )
                | {"required": ["id", "level"]}
                for mark, level in (("a", "high"), ("b", "low"))
            ]
        },
        measured,
    ),
    "optional": (
        objects(
            name=STRING,
            age=INTEGER,
            tags={"type": "array", "items": STRING},
            home=objects(street=STRING, zip=INTEGER),
            unit={"enum": ["celsius", "fahrenheit", "cent"]},
            end=STRING,
        ),
        person,
    ),
    "objects by name": (
        objects(
            pair={"enum": [{"a": "x", "b": "long"}, {"a": "y", "b": "other"}]},
            end=STRING,
            last=INTEGER,
            required=["pair"],
        ),
        pair,
    ),
    "branches by an object": (
        {
            "anyOf": [
                objects(
                    head=branch(kind),
                    role={"const": role},
                    note=STRING,
                    required=["head", "role"],
                )
                for kind, role in (("admin", "superuser"), ("guest", "none"))
            ]
        },
        headed,
    ),
    "calls": (CALLS, calls),
    "condition": (
        objects(
            kind={"enum": ["admin", "guest"]},
            role=STRING,
            note=STRING,
            required=["kind", "role"],
        )
        | {
            "if": {"properties": {"kind": {"const": "admin"}}},
            "then": {"properties": {"role": {"const": "superuser"}}},
        },
        condition,
    ),
}


def documents(make, form, count, structure, values):
    """Texts; two calls with the same `structure` differ in values only."""
    separators = (", ", ": ") if form == "spaced" else (",", ":")
    shape = Random(structure)
    chance = Random(values)
    made = [make(shape, chance) for _ in range(count)]
    return [json.dumps(one, separators=separators, ensure_ascii=False) for one in made]


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.mark.parametrize(("form", "takes"), [("compact", True), ("spaced", False)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_offers_are_the_same_whatever_values_others_wrote(case, form, takes, seed):
    schema, make = case
    spec = gp.OutputSpec.json_schema(schema, whitespace=form)
    own = documents(make, form, 6, seed + 100, seed + 100)
    seen = []
    for values in (seed, seed + 1000):
        server = Server()
        for other in documents(make, form, 12, seed, values):
            server.output(spec, other, takes=takes)
        seen.append([server.output(spec, one, takes=takes) for one in own])
    assert seen[0] == seen[1]
    assert any(seen[0])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_offers_are_the_same_whatever_was_written_with_another_salt(case, seed):
    schema, make = case
    first, second = (
        gp.OutputSpec.json_schema(schema).within(None, salt) for salt in ("a", "b")
    )
    own = documents(make, "compact", 6, seed, seed)
    alone = Server()
    beside = Server()
    for number, one in enumerate(own):
        for other in documents(make, "compact", 4, seed + number, seed):
            beside.output(first, other)
        assert beside.output(second, one) == alone.output(second, one)


ADDRESS = objects(
    name=STRING,
    city=STRING,
    age=INTEGER,
    tags={"type": "array", "items": STRING},
    note=STRING,
)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [(None, None, True), ("a", "a", True), ("a", None, False)],
)
def test_requests_of_one_salt_and_those_without_one_learn_from_each_other(
    first, second, same
):
    server = Server(BYTES)
    spec = gp.OutputSpec.json_schema(ADDRESS)
    for _ in range(2):
        server.output(spec.within(9, first), '{"name":"Ada","city":"x"}')
    offers = server.output(spec.within(None, second), '{"name":"Bob","city":"y"}')
    assert (offers.get(b'{"name":"Bob"') == b',"city":') == same


@pytest.mark.parametrize("wrong", [1, 10, 500])
def test_what_comes_now_is_offered_whatever_came_before(wrong):
    server = Server(BYTES)
    spec = gp.OutputSpec.json_schema(ADDRESS)
    others = ',"city":"x"', ',"age":5,"note":"y"', ',"note":"z"', ""
    for number in range(wrong):
        server.output(spec, f'{{"name":"a"{others[number % 4]}}}')
    for _ in range(_RECENT):
        offers = server.output(spec, '{"name":"b","tags":["c"]}')
    assert offers[b'{"name":"b"'] == b',"tags":'


SCHEMAS = [case.schema for case in FAMILIES.values()]


def schema_of(chance):
    """One of which a value may decide what follows, or any."""
    schema = random_schema(chance) if chance.random() < 0.7 else chance.choice(SCHEMAS)
    kind = chance.random()
    if kind < 0.3:
        other = random_schema(chance)
        return {"anyOf": [branch("a", of=schema), branch("b", of=other)]}
    return (
        objects(of=schema, end=STRING, last={"enum": ["one", "other"]}, required=["of"])
        if kind < 0.6
        else schema
    )


@pytest.mark.parametrize("seed", range(4))
def test_what_is_known_of_a_place_is_what_its_own_grammar_says(seed):
    """Any outputs of any schema, so that many come to equal places."""
    chance = Random(seed)
    server = Server(BYTES)
    known = 0
    structure = [
        i
        for i, token in enumerate(BYTES.tokens)
        if token and set(token) <= set(b'"{}[]:,')
    ]
    mask = np.zeros((1, BYTES.words), np.int32)
    for _ in range(12):
        try:
            form = chance.choice(["compact", "spaced", "flexible"])
            spec = gp.OutputSpec.json_schema(schema_of(chance), whitespace=form)
            server.compiler.compile(spec)
        except GuidedError:
            continue
        for _ in range(15):
            table = server.table(spec)
            for _ in range(100):
                table.fill((0,), mask)
                bits = np.unpackbits(mask[0].view(np.uint8), bitorder="little")
                allowed = set(np.flatnonzero(bits[: BYTES.size]).tolist())
                closing = sorted(allowed.intersection(structure))
                if not allowed - set(BYTES.stop_token_ids):
                    break
                few = closing and chance.random() < 0.6
                token = chance.choice(
                    closing if few else sorted(allowed - set(BYTES.stop_token_ids))
                )
                found, recalled = server.step(table, 0, [token])
                must = server.forced.after(table.requests[0], MOST)
                if recalled and found.tokens:
                    text = server.text(found.tokens)
                    assert found.tokens == must or (
                        found.source is not None and text.startswith(server.text(must))
                    )
                    known += bool(must)
    assert known > 100


def test_the_order_of_names_is_learnt_and_what_follows_them_is_asked_of_the_grammar():
    schema = objects(
        name=STRING,
        age=INTEGER,
        tags={"type": "array", "items": STRING},
        of=objects(by=STRING),
    )
    server = Server(BYTES)
    spec = gp.OutputSpec.json_schema(schema)
    for _ in range(2):
        server.output(spec, '{"name":"Ada","age":36,"tags":["x","y"],"of":{"by":"me"}}')
    offers = server.output(
        spec, '{"name":"Grace Hopper","age":7,"tags":["z"],"of":{"by":"you"}}'
    )
    behind = (
        b'{"name":"Grace Hopper"',
        b'"age":7',
        b'["z"',
        b'"of":{',
        b'"you"',
        b'"you"}',
    )
    offered = [offer for begun, offer in offers.items() if begun.endswith(behind)]
    assert offered == [b',"age":', b',"tags":', b'],"of":', b'"by":"', b"}}"]


def test_no_name_that_an_output_made_up_is_offered():
    server = Server(BYTES)
    schema = objects(name=STRING, a=objects(by=STRING), end=INTEGER)
    spec = gp.OutputSpec.json_schema(schema, strict=False)
    for _ in range(4):
        offers = server.output(
            spec, '{"name":"x","secret":"y","a":{"by":"z"},"mine":{"end":1}}'
        )
    assert offers[b'{"name":"x"'] == b',"a":'
    assert not any(
        part in offer for part in (b"secret", b"mine") for offer in offers.values()
    )


def test_a_text_that_looks_like_a_name_is_a_text():
    server = Server(BYTES)
    spec = gp.OutputSpec.json_schema(ADDRESS)
    for _ in range(4):
        offers = server.output(
            spec, json.dumps({"name": 'a","age":3', "city": "b"}, separators=(",", ":"))
        )
    assert b',"city":' in offers.values()
    assert not any(b"age" in offer for offer in offers.values())


@pytest.mark.parametrize(
    "spec",
    [
        gp.OutputSpec.json_schema({**ADDRESS, "title": "another"}),
        gp.OutputSpec.json_schema({**ADDRESS, "title": "x" * (1 << 16)}),
        gp.OutputSpec.json_schema(ADDRESS, whitespace="flexible"),
        gp.OutputSpec.regex('(\\{("name":"[a-z]*",?)?("city":"[a-z]*")?\\})'),
    ],
)
def test_other_specs_learn_by_themselves_and_some_do_not(spec):
    server = Server(BYTES)
    text = '{"name":"a","city":"b"}'
    for _ in range(3):
        server.output(gp.OutputSpec.json_schema(ADDRESS), text)
    untaught = Server(BYTES).output(spec, text)
    assert server.output(spec, text) == untaught
    learns = spec.kind == "json_schema" and len(spec.text) < 1 << 16
    assert (server.output(spec, text) != untaught) == learns


def test_documents_inside_of_tags_teach_too():
    form = {"type": "json_schema", "json_schema": ADDRESS}
    tag = {"type": "tag", "begin": "<call>", "content": form, "end": "</call>"}
    tags = {"type": "triggered_tags", "triggers": ["<call>"], "tags": [tag]}
    spec = gp.OutputSpec.structural_tag({"type": "structural_tag", "format": tags})
    server = Server(BYTES)
    call = '<call>{"name":"a","city":"b"}</call>'
    for _ in range(2):
        server.output(spec, f'She said "{{": {call} and {call}')
    offers = server.output(spec, f"ok {call}")
    assert offers[b'ok <call>{"name":"a"'] == b',"city":'


@pytest.mark.parametrize(
    ("spec", "output"),
    [
        (gp.OutputSpec.regex("[" * 1500 + "a]"), "a"),
        (
            gp.OutputSpec.json_schema(
                {"type": "boolean", "default": {"properties": {"\ud800": 1}}}
            ),
            "true",
        ),
        (gp.OutputSpec.json_schema({"const": "a" * 300}), '"' + "a" * 300 + '"'),
        (gp.OutputSpec.json_object(), '{"a":{"b":[1,2,{}]}}'),
        (gp.OutputSpec.choice(["one", "other"]), "other"),
    ],
)
def test_any_spec_is_read(spec, output):
    for _ in range(2):
        Server(BYTES).output(spec, output)


def request(spec, triggers=()):
    state = RequestState(triggers, BYTES.stop_token_ids)
    matcher = SimpleNamespace(forces=True)
    return SimpleNamespace(
        spec=spec, state=state, matcher=matcher, grammar=SimpleNamespace(spec=spec)
    )


def test_tokens_that_no_grammar_would_take_are_no_trouble():
    learnt = Server(BYTES).learnt
    spec = gp.OutputSpec.json_schema(ADDRESS)
    for text in ([BYTES.size + 7], list(b'}]}"":,\\'), [ord("{")], list(b"]" * 300)):
        one = request(spec)
        assert learnt.after(0, one, text)[1]


def test_of_a_request_that_waits_only_what_may_begin_it_is_worth_a_look():
    learnt = Server(BYTES).learnt
    one = request(gp.OutputSpec.json_schema(ADDRESS), [Trigger((ord(">"),))])
    assert learnt.after(0, one, list(b"a")) == (None, False)
    assert learnt.after(0, one, list(b"<t>")) == (None, True)
    assert learnt.after(0, one, []) == (None, False)


def test_a_request_that_leaves_is_not_kept_and_the_next_one_in_its_slot_begins():
    learnt = Server(BYTES).learnt
    spec = gp.OutputSpec.json_schema(ADDRESS)
    one = request(spec)
    other = request(spec)
    before = sys.getrefcount(one)
    learnt.after(0, one, list(b'{"name":"a"'))
    assert sys.getrefcount(one) == before
    learnt.after(0, other, list(b"{"))
    assert learnt._traces[0].outline.begun == b""


def test_what_many_steps_without_drafts_brought_is_read_bit_by_bit():
    server = Server(BYTES)
    spec = gp.OutputSpec.json_schema(ADDRESS)
    for _ in range(3):
        server.output(spec, '{"name":"x","city":"b"}')
    table = server.table(spec)
    text = b'{"name":"' + b"x" * 300 + b'"'
    table.accept_more((0,), [[byte] for byte in text[:-1]])
    rounds = 0
    while (known := server.learnt.after(0, table.requests[0], [text[-1]])[0]) is None:
        server.learnt.read(0, table.requests[0])
        rounds += 1
    assert 2 <= rounds <= 5
    assert server.text(known.tokens) == b',"city":'


@pytest.mark.parametrize(
    "text", [b" ", b'"', b"\\", b"[", b'"a', b"1", b"{}", b'\\"', b",:"]
)
def test_no_text_takes_long(text):
    place = Outline(words_of("{}", "json_object"), 0)
    begun = time.thread_time()
    for _ in range(2000):
        place = place.after(text).place
    place.after(text * 20_000)
    assert time.thread_time() - begun < 1.0
