"""What outputs teach and later ones are offered: names, and what stands between values;
never a value."""

import contextlib
import json
import re
import sys
import time
from pathlib import Path
from random import Random

import pytest
from compilers import compiler_of, shown
from oracle import oracle
from schema_families import CASES as FAMILIES
from schemas import random_schema
from vocabularies import BYTES

from benchmarks.samples import TextTokens
from guided_plugin.cli.loading import load_vocabulary
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.learnt_drafts import Found, LearntDrafts
from guided_plugin.grammar.outline import Outline, words_of
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

DEMO = load_vocabulary(MODEL_DIR)
MOST = 7
TABLES = json.loads(Path(__file__).with_name("learnt_drafts.json").read_bytes())
SCHEMAS = TABLES["schemas"]
OFFERS = TABLES["offers"]
NAMES = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("name", "age", "city")},
}


class Server:
    """Requests, one after the other or at once, in each step with what is offered to
    them."""

    steps = 0
    """Of the last output."""

    def __init__(self, vocabulary=BYTES, most=MOST):
        self.vocabulary = vocabulary
        self.tokens = TextTokens(vocabulary) if vocabulary.encode else str.encode
        self.forced = ForcedTokens(vocabulary)
        self.compiler = compiler_of(vocabulary, whitespace="compact")
        self.learnt = LearntDrafts(vocabulary, self.forced, most)

    def table(self, spec):
        grammar = self.compiler.compile(spec)
        table = GrammarTable(self.vocabulary, 5.0, 5.0)
        table.add(0, "one", spec, grammar, self.compiler.backend(grammar.backend))
        return table

    def step(self, table, tokens):
        """What follows a request's new tokens, as the worker finds it; and whether that
        was known before."""
        request = table.requests[0]
        found, wanted = self.learnt.after(0, request, tokens)
        table.accept_more((0,), [[token] for token in tokens])
        assert not table.failures
        if wanted:
            return self.learnt.look(0, request), False
        return found or Found(), found is not None

    def output(self, spec, text, *, takes=True):
        """The texts that are offered, by how much of the output is there. `takes`:
        drafts that are right are taken."""
        tokens = list(self.tokens(text))
        table = self.table(spec)
        offers = {}
        self.steps = at = 0
        end = 1
        while at < len(tokens):
            found, _ = self.step(table, tokens[at:end])
            self.steps += 1
            at = end = min(end, len(tokens))
            if found.tokens:
                offers[self.text(tokens[:at])] = self.text(found.tokens)
            for token in found.tokens if takes else ():
                if tokens[end : end + 1] != [token]:
                    break
                end += 1
            end += 1
        return offers

    def text(self, tokens):
        texts = self.vocabulary.tokens
        return b"".join(texts[token] for token in tokens).decode(errors="replace")


PIECES = ["a", "Ada", " ", "role", '"', "\\", "é", "superuser", "7", "-", '","age":']
PIECES += ["\n", "admin", "x" * 90]
NUMBERS = [0, 7, 36, -5, 1234567, 10**12]


def made(schema, shape, chance):
    """An instance: its names and numbers of items follow from `shape`, its values from
    `chance`."""
    if "anyOf" in schema:
        branches = schema["anyOf"]
        names = {str(re.findall(r'"(\w+)": {', json.dumps(one))) for one in branches}
        source = chance if len(names) == 1 else shape
        return made(source.choice(branches), shape, chance)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return chance.choice(schema["enum"])
    if "pattern" in schema:
        return schema["pattern"][1] + "z" * chance.randrange(4)
    if schema["type"] == "object":
        required = schema.get("required", ())
        return {
            name: made(child, shape, chance)
            for name, child in schema["properties"].items()
            if name in required or shape.random() < 0.7
        }
    if schema["type"] == "array":
        count = shape.randrange(1, 4)
        return [made(schema["items"], shape, chance) for _ in range(count)]
    if schema["type"] == "integer":
        return chance.choice(NUMBERS)
    return "".join(chance.choices(PIECES, k=chance.randrange(6)))


def documents(schema, form, count, structure, values):
    """Texts; two calls with the same `structure` differ in values only."""
    separators = (", ", ": ") if form == "spaced" else (",", ":")
    valid = oracle(schema)
    chance = Random(values)
    texts = []
    for number in range(count):
        value = None
        while value is None or not valid(value):
            value = made(schema, Random(f"{structure} {number}"), chance)
        text = json.dumps(value, separators=separators, ensure_ascii=False)
        texts.append(text)
    return texts


@pytest.mark.parametrize(("form", "takes"), [("compact", True), ("spaced", False)])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_offers_are_the_same_whatever_values_others_wrote(schema, form, takes, seed):
    spec = OutputSpec.json_schema(schema, whitespace=form)
    own = documents(schema, form, 6, seed + 100, seed + 100)
    seen = []
    for values in (seed, seed + 1000):
        server = Server(DEMO)
        for other in documents(schema, form, 12, seed, values):
            server.output(spec, other, takes=takes)
        seen.append([server.output(spec, one, takes=takes) for one in own])
    assert seen[0] == seen[1]
    assert any(seen[0])


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_offers_are_the_same_whatever_was_written_with_another_salt(schema):
    first, second = (
        OutputSpec.json_schema(schema).within(None, salt) for salt in ("a", "b")
    )
    alone = Server(DEMO)
    beside = Server(DEMO)
    for number, one in enumerate(documents(schema, "compact", 6, 1, 1)):
        for other in documents(schema, "compact", 4, number, 1):
            beside.output(first, other)
        assert beside.output(second, one) == alone.output(second, one)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [(None, None, True), ("a", "a", True), ("a", None, False)],
)
def test_requests_of_one_salt_and_those_without_one_learn_from_each_other(
    first, second, same
):
    server = Server()
    spec = OutputSpec.json_schema(NAMES)
    for _ in range(2):
        server.output(spec.within(9, first), '{"name":"Ada","city":"x"}')
    offers = server.output(spec.within(None, second), '{"name":"Bob","city":"y"}')
    assert (offers.get('{"name":"Bob"') == ',"city":') == same


@pytest.mark.parametrize("case", OFFERS.values(), ids=OFFERS)
def test_what_is_offered_after_earlier_outputs(case):
    server = Server()
    ((kind, source),) = case["spec"].items()
    spec = getattr(OutputSpec, kind)(source, strict=case.get("strict"))
    for text, times in case["earlier"]:
        for _ in range(times):
            server.output(spec, text)
    offers = server.output(spec, case["output"])
    found = {begun: offers.get(begun) for begun in case["offers"]}
    assert found == case["offers"]
    for part in case["never"]:
        assert part not in "".join(offers.values())


@pytest.mark.parametrize(
    ("spec", "learns"),
    [
        (OutputSpec.json_schema({**NAMES, "title": "another"}), True),
        (OutputSpec.json_schema({**NAMES, "title": "x" * (1 << 16)}), False),
        (OutputSpec.json_schema(NAMES, whitespace="flexible"), True),
        (OutputSpec.regex('(\\{("name":"[a-z]*",?)?("city":"[a-z]*")?\\})'), False),
    ],
)
def test_other_specs_learn_by_themselves_and_some_do_not(spec, learns):
    server = Server()
    text = '{"name":"a","city":"b"}'
    for _ in range(3):
        server.output(OutputSpec.json_schema(NAMES), text)
    untaught = Server().output(spec, text)
    assert server.output(spec, text) == untaught
    assert (server.output(spec, text) != untaught) == learns


def schema_of(chance):
    """One of which a value may decide what follows, or any."""
    families = [case.schema for case in FAMILIES.values()]
    schema = random_schema(chance)
    if chance.random() < 0.3:
        schema = chance.choice(families)
    branches = [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "of": of, "note": {}},
            "required": ["kind", "of"],
        }
        for kind, of in (("a", schema), ("b", random_schema(chance)))
    ]
    return chance.choice([{"anyOf": branches}, branches[0], schema])


def sampled(table, chance):
    """Tokens at random, while there are any; those that may end something come more
    often. For the caller to accept."""
    marks = {
        number
        for number, token in enumerate(BYTES.tokens)
        if token and set(token) <= set(b'"{}[]:,')
    }
    for _ in range(100):
        (row,) = shown(table, 0)
        allowed = set(row) - set(BYTES.stop_token_ids)
        if not allowed:
            return
        likely = allowed & marks if chance.random() < 0.6 else allowed
        yield chance.choice(sorted(likely or allowed))


@pytest.mark.parametrize("seed", range(4))
def test_what_is_known_of_a_place_is_what_its_own_grammar_says(seed):
    """Any outputs of any schema, so that many come to equal places."""
    chance = Random(seed)
    server = Server()
    known = 0
    specs = []
    while len(specs) < 10:
        form = chance.choice(["compact", "spaced", "flexible"])
        with contextlib.suppress(GuidedError):
            spec = OutputSpec.json_schema(schema_of(chance), whitespace=form)
            server.compiler.compile(spec)
            specs.append(spec)
    for spec in specs * 15:
        table = server.table(spec)
        for token in sampled(table, chance):
            found, recalled = server.step(table, [token])
            must = server.forced.after(table.requests[0].matcher, MOST)
            if recalled and found.tokens:
                more = server.text(found.tokens).startswith(server.text(must))
                assert found.tokens == must or (found.source is not None and more)
                known += bool(must)
    assert known > 100


@pytest.mark.parametrize("layout", TABLES["layouts"].values(), ids=TABLES["layouts"])
def test_a_learnt_layout_forces_as_much_as_a_fixed_one(layout):
    """With `flexible` whitespace, once a document of this layout was written."""
    singles = [bytes([byte]) for byte in range(256)]
    vocabulary = Vocabulary.from_tokens([*singles, b"</s>"], [256])
    server = Server(vocabulary, most=64)
    schema, value = TABLES["laid out"].values()
    written = json.dumps(value, **layout)
    flexible = OutputSpec.json_schema(schema, whitespace="flexible")
    server.output(flexible, written)
    server.output(flexible, written)
    steps = server.steps
    spaced = OutputSpec.json_schema(schema, whitespace="spaced")
    server.output(spaced, json.dumps(value))
    assert steps <= server.steps + 1


@pytest.mark.parametrize(
    ("spec", "output"),
    [
        (OutputSpec.regex("[" * 1500 + "a]"), "a"),
        (
            OutputSpec.json_schema(
                {"type": "boolean", "default": {"properties": {"\ud800": 1}}}
            ),
            "true",
        ),
        (OutputSpec.json_schema({"const": "a" * 300}), '"' + "a" * 300 + '"'),
        (OutputSpec.json_object(), '{"a":{"b":[1,2,{}]}}'),
        (OutputSpec.choice(["one", "other"]), "other"),
    ],
)
def test_any_spec_is_read(spec, output):
    for _ in range(2):
        Server().output(spec, output)


def test_tokens_that_no_grammar_has_seen_are_no_trouble():
    """Of a request that waits only what may begin it is worth a look."""
    server = Server()
    spec = OutputSpec.json_schema(NAMES)
    for tokens in ([BYTES.size + 7], b'}]}"":,\\', b"{", b"]" * 300):
        request = server.table(spec).requests[0]
        assert server.learnt.after(0, request, list(tokens))[1]
    waits = OutputSpec.json_schema(NAMES, start_after=[ord(">")])
    request = server.table(waits).requests[0]
    for text, wanted in ((b"a", False), (b"<t>", True), (b"", False)):
        assert server.learnt.after(0, request, list(text)) == (None, wanted)


def test_a_request_that_leaves_is_not_kept_and_the_next_one_in_its_slot_begins():
    server = Server()
    spec = OutputSpec.json_schema(NAMES)
    for _ in range(3):
        server.output(spec, '{"name":"x","city":"b"}')
    request = server.table(spec).requests[0]
    before = sys.getrefcount(request)
    server.learnt.after(0, request, list(b'{"name":"a"'))
    assert sys.getrefcount(request) == before
    offers = server.output(spec, '{"name":"x","city":"b"}')
    assert offers['{"name":"x"'] == ',"city":'


def test_what_many_steps_without_drafts_brought_is_read_bit_by_bit():
    server = Server()
    spec = OutputSpec.json_schema(NAMES)
    for _ in range(3):
        server.output(spec, '{"name":"x","city":"b"}')
    table = server.table(spec)
    text = b'{"name":"' + b"x" * 300
    table.accept_more((0,), [[byte] for byte in text])
    known = None
    rounds = 0
    while known is None:
        known, _ = server.learnt.after(0, table.requests[0], b'"')
        server.learnt.read(0, table.requests[0])
        rounds += 1
    assert 2 < rounds < 7
    assert server.text(known.tokens) == ',"city":'


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
