"""`close_before_length` in a table: outputs end valid within their room, whatever is
sampled; far from it nothing changes. Judged by a fresh matcher and by jsonschema-rs."""

import json
import random

import numpy as np
import pytest
from compilers import compiler_of, shown, tokens_of
from oracle import oracle

from guided_plugin.errors import RequestError
from guided_plugin.grammar.base import why_unprotected
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.llguidance.closing import Closing
from guided_plugin.grammar.llguidance.matcher import LLGuidanceMatcher
from guided_plugin.grammar.table import GrammarTable, Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec, check_room
from guided_plugin.step import NO_TOKEN

WORDS = (
    *b'{" ": "," "} "},{" ], true name 00 [[ }} [[[[[[[[ (((((((('.split(),
    b" the",
    "é".encode(),
)
TOKENS = (*(bytes([byte]) for byte in range(256)), *WORDS, b"</s>", b"<end>", b"<call>")
END, OTHER_END, CALL = (TOKENS.index(name) for name in (b"</s>", b"<end>", b"<call>"))
VOCABULARY = Vocabulary(
    TOKENS,
    (END,),
    frozenset({END, OTHER_END, CALL}),
    encode=lambda text: list(text.encode()),
)

STRUCTURE = [TOKENS.index(text) for text in (b'"', b'","', b'"}', b'"},{"')]
"""What ends a text."""

PERSON = json.loads(r"""{
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        "born": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
        "home": {
            "type": "object",
            "properties": {
                "street": {"type": "string"},
                "number": {"type": "integer", "minimum": 100}
            },
            "required": ["street", "number"]
        },
        "friends": {"type": "array", "items": {"$ref": "#"}}
    },
    "required": ["name", "born"]
}""")
# A name that one object needs is free in another, once: that is the one of `c`.
SCHEMAS = json.loads(r"""[
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": true},
    {"anyOf": [{"const": "yes"},
               {"type": "object", "properties": {"a": {}}, "required": ["a"]}]},
    {"type": "string", "pattern": "\\.(png|jpe?g)$", "maxLength": 30},
    {"type": "array", "items": {"type": "string", "pattern": "^all|tags$"}},
    {"type": "array", "prefixItems": [{"type": "number"}, {"enum": ["aa", "b"]}],
        "items": false, "minItems": 2},
    {"type": "object", "minProperties": 1, "required": ["name"]},
    {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]},
        "minItems": 2},
    {"type": "object", "properties": {"a": {"type": "object"}}, "required": ["b", "a"]},
    {"type": "object", "required": ["c"], "properties": {"c": {"type": "object",
        "additionalProperties": {"type": "integer"}, "minProperties": 1}}},
    {"type": "object", "required": ["l", "r", "value"], "properties": {
        "l": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        "r": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "value": {}}},
    {"type": "object", "required": ["next", "value"], "properties": {
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        "value": {"type": "string", "minLength": 3},
        "more": {"const": "a text of forty characters, as it seems.."}}},
    {"type": "array", "items": {"enum": ["a", "b", "cc"]}, "uniqueItems": true,
        "minItems": 2},
    {"type": "string", "pattern": "T[0-9]{2}", "minLength": 7},
    {"type": "string", "pattern": "c{260}"},
    {"type": "string", "format": "date-time"},
    {"anyOf": [{"const": "a longer text"}, {"type": "array", "minItems": 9}]},
    {"not": {"type": ["string", "number", "null", "boolean"]}},
    {"type": "object", "required": ["a", "b", "c"], "properties": {
        "a": {"type": "string", "minLength": 50},
        "b": {"type": "string", "minLength": 60, "maxLength": 70},
        "c": {"type": "string", "minLength": 45, "maxLength": 45}}}
]""")
CALLED = {"begin": "<f=x>", "end": "</f>"}
CALLED["content"] = {"type": "json_schema", "json_schema": PERSON}
TAG = {"type": "triggered_tags", "triggers": ["<f="], "tags": [CALLED]}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 2}
REGEXES = [
    "[a-z]+-[0-9]{3}(x{20})?",
    "([a-z]+ )*the quick brown fox",
    "ab(c|d{3}e|漢{2}|b{50})*f",
    "[^,;漢]+,",
    # a character that ends a text, and needs room
    "[^Q]*(Q[^Q]{30})?",
    "([^é]|é[a-z]{30}é)*",
    "[abc]*c{260}",
]
GRAMMARS = [
    'start: "(" (start | WORD)* ")"\nWORD: /[a-z]+/',
    'start: "(" start start ")" | "x"',
    'start: N | "(" start ")" | N "(" start ")"\nN: /[a-z0-9]{2,}/',
    # no text ends such a W
    'start: "a" ("(" W "the end")?\nW: /[a-z]+/',
]
SPECS = [
    *map(OutputSpec.json_schema, [PERSON, PEOPLE, *SCHEMAS]),
    *map(OutputSpec.regex, REGEXES),
    *(OutputSpec.grammar(source, "lark") for source in GRAMMARS),
    OutputSpec.choice(["a", "and so on and so on", "abc"]),
    OutputSpec.json_object(),
    OutputSpec.structural_tag({"format": TAG}),
    OutputSpec.json_schema(PERSON, whitespace="flexible"),
    OutputSpec.json_schema(PERSON, whitespace="spaced", strict=False),
    OutputSpec.json_schema({"type": "integer"}, stop_token_ids=[OTHER_END]),
    OutputSpec.json_schema(PERSON, start_after=[CALL]),
]


# What may come first where nothing but the shortest output has room.
CHOICES = [
    (OutputSpec.choice(["+", "-"]), "+-"),
    (OutputSpec.grammar('start: "+" | "-" | "*"', "lark"), "+-*"),
    (OutputSpec.regex("[.!?]"), ".!?"),
    (OutputSpec.json_schema({"enum": [1, 2]}), "12"),
]


@pytest.fixture(scope="module")
def compiler():
    return compiler_of(VOCABULARY, close_before_length=True, whitespace="compact")


def table_of(compiler, spec, room, *, count=1, sent=False):
    """A table with requests for a spec, compiled here or as a helper sends it."""
    grammar = compiler.compile(spec)
    backend = compiler.backend(grammar.backend)
    if sent:
        grammar = backend.load(backend.prepare(grammar.spec))
    table = GrammarTable(VOCABULARY, row_seconds=30.0, row_longest=60.0)
    for slot in range(count):
        table.add(slot, str(slot), spec.within(room), grammar, backend)
    return table


def mask_of(table):
    return shown(table, 0)[0]


def sampled(rng, allowed, *last):
    """A token at random; the last ones only where nothing else is allowed."""
    return rng.choice([token for token in allowed if token not in last] or allowed)


def written(table, room, rng):
    """What a model writes that stops only if it must: its tokens, as many as it may
    have."""
    tokens = [CALL] if table.phase(0) is Phase.WAITING else []
    table.accept((0,), tokens or [NO_TOKEN])
    while len(tokens) < room and table.phase(0) is Phase.ACTIVE:
        tokens.append(sampled(rng, mask_of(table), END, OTHER_END))
        table.accept((0,), [tokens[-1]])
    return tokens


def text_of(tokens):
    return b"".join(TOKENS[token] for token in tokens if token < CALL)


def finite(text):
    return max(-1e300, min(1e300, float(text)))  # no number of JSON is infinite


def judge(compiler, spec, tokens):
    """Complete for a matcher that knows of no limit, and valid."""
    plain = table_of(compiler, spec, None)
    for token in tokens:
        plain.accept((0,), [token])
    assert plain.phase(0) is Phase.DONE, text_of(tokens)
    if spec.kind == "json_schema":
        value = json.loads(text_of(tokens[:-1]), parse_float=finite)
        assert oracle(spec.document())(value), value


@pytest.mark.parametrize(("spec", "texts"), CHOICES, ids=range(len(CHOICES)))
def test_the_last_token_is_still_a_choice(compiler, spec, texts):
    table = table_of(compiler, spec, compiler.compile(spec).admission().least)
    beginnings = {TOKENS[token] for token in mask_of(table)}
    assert {one.encode()[:1] for one in texts} <= {one[:1] for one in beginnings}


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_every_output_that_has_room_enough_ends_valid(compiler, spec):
    rng = random.Random(5)
    least = compiler.compile(spec).admission().least + (spec.start_after is not None)
    for more in (0, 1, 2, 7, least + 20, 2 * least + 60):
        room = least + more
        for sent in (False, True):
            table = table_of(compiler, spec, room, sent=sent)
            tokens = written(table, room, rng)
            assert table.phase(0) is Phase.DONE, (room, text_of(tokens))
            judge(compiler, spec, tokens)
            assert not table.failures


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_the_same_tokens_have_the_same_masks(compiler, spec):
    """Whatever other outputs of the grammar were led before, in other processes, and
    where masks of some places were not asked for, as behind drafts."""
    rng = random.Random(7)
    room = compiler.compile(spec).admission().least + 30
    other = table_of(compiler, spec, room, count=2, sent=True)
    table = table_of(compiler, spec, room)
    begun = CALL if table.phase(0) is Phase.WAITING else NO_TOKEN
    table.accept((0,), [begun])
    other.accept((0, 1), [begun, begun])
    while table.phase(0) is Phase.ACTIVE:
        mask = mask_of(table)
        (another,) = shown(other, 1)
        if rng.getrandbits(1):
            assert mask_of(other) == mask
        token, moved = sampled(rng, mask, END), sampled(rng, another, END)
        table.accept((0,), [token])
        other.accept((0, 1), [token, moved])


def test_what_must_follow_is_spelled_once_however_often_it_is_looked_at(compiler):
    """Else an output of a long text takes tens of milliseconds of each step."""
    spec = OutputSpec.json_schema({"type": "string", "minLength": 500})
    table = table_of(compiler, spec, compiler.compile(spec).admission().least + 3)
    remembered = table.requests[0].closing.endings.spelling.remembered
    before = remembered.cache_info().misses
    for _ in range(30):
        assert mask_of(table)
        table.accept((0,), [TOKENS.index(b"x" if table.tokens(0) else b'"')])
    assert remembered.cache_info().misses - before < 5
    assert remembered.cache_info().hits > 20


@pytest.mark.parametrize("trigger", ["```", "[TOOL", "<f="])
def test_a_call_is_not_opened_where_it_could_not_be_closed(compiler, trigger):
    tag = json.loads(json.dumps(TAG).replace("<f=", trigger))
    table = table_of(compiler, OutputSpec.structural_tag({"format": tag}), 12)
    for byte in trigger[:-1].encode():  # it may have begun where there was room
        table.accept((0,), [byte])
    watched = {ord("y"), ord(" "), ord(trigger[-1])}
    assert watched.intersection(mask_of(table)) == {ord("y"), ord(" ")}


def test_an_ending_that_begins_with_a_character_of_a_text_does_not_outlive_the_full_text(
    compiler,
):
    text = {"type": "string", "minLength": 1, "maxLength": 5}
    spec = OutputSpec.json_schema({"type": "array", "items": text, "minItems": 3})
    rng = random.Random(1)
    for room in (*range(12, 72),) * 4:
        table = table_of(compiler, spec, room)
        written(table, room, rng)
        assert table.phase(0) is Phase.DONE, room


@pytest.mark.parametrize(
    "spec",
    [
        OutputSpec.regex("(ab|c){2}"),
        OutputSpec.choice(["name the bridge", "abc"]),
        OutputSpec.json_schema(
            '{"type": "object", "properties": {"a": {"enum": [true]}}, "required": ["a"]}'
        ),
    ],
)
def test_what_is_called_the_least_is_the_least(compiler, spec):
    """All texts of so few tokens are tried, of small languages."""
    grammar = compiler.compile(spec)
    matchers = [compiler.backend(grammar.backend).start(grammar, (END,))]
    for _ in range(grammar.admission().least - 2):
        assert not any(one.complete for one in matchers)
        moved = [(one.fork(), token) for one in matchers for token in range(CALL - 2)]
        matchers = [matcher for matcher, token in moved if matcher.accept(token)]
    assert matchers
    assert not any(one.complete for one in matchers)


def test_far_from_the_end_masks_are_those_of_the_grammar(
    compiler,
):
    spec = OutputSpec.json_schema(PERSON)
    rng = random.Random(2)
    near = table_of(compiler, spec, 4000)
    free = table_of(compiler, spec, None)
    for _ in range(200):
        allowed = mask_of(free)
        assert mask_of(near) == allowed
        token = sampled(rng, allowed, END, *STRUCTURE)
        near.accept((0,), [token])
        free.accept((0,), [token])


def call_of(name, **properties):
    arguments = {
        "type": "object",
        "properties": properties,
        "required": [*properties][:1],
    }
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "arguments": arguments},
        "required": ["name", "arguments"],
    }


def test_outputs_run_free_while_all_endings_fit(compiler):
    text = {"type": "string"}
    points = {"type": "array", "items": {"type": "number"}}
    calls = [
        call_of("weather", city=text, days={"type": "integer"}),
        call_of("area", points=points, unit={"enum": ["m", "km"]}),
    ]
    spec = OutputSpec.json_schema({"anyOf": calls}, whitespace="flexible")
    grammar = compiler.compile(spec)
    enough = grammar.admission().least + grammar.handle.endings.growth
    for seed in range(6):
        rng = random.Random(seed)
        near = table_of(compiler, spec, 150)
        free = table_of(compiler, spec, None)
        for left in range(150, enough, -1):
            allowed = mask_of(free)
            assert mask_of(near) == allowed, left
            token = sampled(rng, allowed, END)
            for table in (near, free):
                table.accept((0,), [token])
            if token == END:
                break
        assert not near.counts


def test_near_the_end_the_model_still_chooses(compiler):
    """With one token to spare any letter may come, or the end; with none the end."""
    table = table_of(compiler, OutputSpec.json_schema({"type": "string"}), 5)
    for byte, many in zip(b'"ab"', (False, True, True, False), strict=True):
        assert (len(mask_of(table)) >= 100) == many
        table.accept((0,), [byte])
    assert mask_of(table) == [END]
    assert table.led == {0: 0}
    assert table.counts["led_tokens"] == 2  # the quote, the stop token


def test_near_the_end_a_text_goes_on_at_a_proof_a_token(compiler, monkeypatch):
    proofs = []
    proves = LLGuidanceMatcher.ends_with
    monkeypatch.setattr(
        LLGuidanceMatcher,
        "ends_with",
        lambda self, tokens: proofs.append(tokens) or proves(self, tokens),
    )
    table = table_of(compiler, OutputSpec.json_schema(PERSON), 90)
    for byte in b'{"name":"a':
        table.accept((0,), [byte])
    usual = mask_of(table)
    proofs.clear()
    near = []
    while ord("a") in (allowed := mask_of(table)):
        if allowed != usual:
            near.append(len(proofs))
        proofs.clear()
        table.accept((0,), [ord("a")])
    assert len(near) > 20
    assert near[0] > 3
    # as few tokens are left as some of what was kept needs
    assert set(near[1:-2]) == {1}


def failing(*given, **options):
    raise ValueError("no way")


@pytest.mark.parametrize("found", [Closing._found, failing])
def test_an_output_whose_end_is_not_found_runs_on_and_that_is_told(
    compiler, monkeypatch, caplog, found
):
    """One that is too long is none: what a token adds is assumed of such grammars."""
    table = table_of(
        compiler, OutputSpec.grammar('start: "a" | "b" /c{200}/', "lark"), 150
    )
    monkeypatch.setattr(Closing, "_found", found)
    for byte in b"b" + b"c" * 149:
        assert byte in mask_of(table)
        table.accept((0,), [byte])
    assert not table.failures
    (record,) = caplog.records
    assert table.unprotected[0] in record.message
    assert table.unprotected[0].startswith("unprotected: the search for its end fail")


def test_drafts_that_would_lead_an_output_are_told_with_their_place(compiler):
    properties = {"a": {"type": "string"}, "b": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["a"]}
    table = table_of(compiler, OutputSpec.json_schema(schema), 16)
    for byte in b'{"a":"x':
        mask_of(table)
        table.accept((0,), [byte])
    drafts = [[byte] for byte in b'","b":"']
    fill_with_drafts(table, (0,), np.zeros((8, VOCABULARY.words), np.int32), drafts)
    assert (table.led, table.counts["led_tokens"]) == ({0: 5}, 0)


def test_drafts_are_walked_along_and_forgotten(compiler):
    """After masks along drafts an output still ends valid within its room."""
    spec = OutputSpec.json_schema(PERSON)
    rng = random.Random(3)
    for room in (40, 60, 90):
        table = table_of(compiler, spec, room)
        tokens = []
        while table.phase(0) is Phase.ACTIVE:
            drafts = [[rng.choice(b'",:[]{}a0')] for _ in range(3)]
            if len(tokens) % 2:
                drafts = [[NO_TOKEN]] * 3
            masks = np.zeros((4, VOCABULARY.words), np.int32)
            fill_with_drafts(table, (0,), masks, drafts)
            allowed = tokens_of(masks)[0]
            tokens.append(sampled(rng, allowed, END))
            table.accept((0,), [tokens[-1]])
        assert len(tokens) <= room
        judge(compiler, spec, tokens)


def test_too_little_room_is_an_error_with_the_number_that_is_needed():
    check_room(7, None)
    check_room(7, 7)
    says = r"max_tokens: leaves 6 tokens.*takes 7.*at least 7"
    with pytest.raises(RequestError, match=says):
        check_room(7, 6)


def test_a_backend_that_tells_no_ends_compiles_and_that_is_told(compiler, caplog):
    table = table_of(compiler, OutputSpec.grammar('root ::= "a" [a-z]*'), 3)
    why = "unprotected: with xgrammar no end of its outputs is known"
    assert table.unprotected == {0: why}
    assert why in caplog.text


def test_a_spec_whose_end_is_not_found_compiles_and_that_is_told(compiler):
    # Of each move a long text would be spelled several times.
    spec = OutputSpec.json_schema(
        """{"required": ["a", "b"], "properties": {"b": {"const": "%s"}, "a": {
        "type": "array", "items": {"type": "string"}, "minItems": 8,
        "uniqueItems": true}}, "type": "object"}"""
        % ("x" * 1500)
    )
    grammar = compiler.compile(spec)
    assert grammar.shortest is None
    assert "with llguidance no end of its outputs" in why_unprotected(grammar)
    table = table_of(compiler, spec, 3)
    assert table.requests[0].closing is None
    assert mask_of(table)
