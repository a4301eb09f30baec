"""`close_before_length` in a table: outputs end valid within their room, whatever is
sampled; far from it nothing changes. Judged by a fresh matcher and by jsonschema-rs."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from oracle import oracle

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, RequestError, UnsupportedSpecError
from guided_plugin.grammar.drafts import fill_with_drafts
from guided_plugin.grammar.llguidance import backend
from guided_plugin.grammar.llguidance.endings import Endings
from guided_plugin.grammar.llguidance.growth import growth, required
from guided_plugin.grammar.llguidance.tokenizer import Spelling
from guided_plugin.grammar.table import _CLOSING_SECONDS, GrammarTable, Phase
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

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "tags": {"type": "array", "items": {"type": "string"}},
        "born": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
        "home": {
            "type": "object",
            "properties": {
                "street": {"type": "string"},
                "number": {"type": "integer", "minimum": 100},
            },
            "required": ["street", "number"],
        },
        "friends": {"type": "array", "items": {"$ref": "#"}},
    },
    "required": ["name", "born"],
}
SCHEMAS: list[Any] = [
    PERSON,
    {"type": "array", "items": PERSON, "minItems": 2},
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True},
    {
        "anyOf": [
            {"const": "yes"},
            {"type": "object", "properties": {"a": {}}, "required": ["a"]},
        ]
    },
    {"type": "string", "pattern": r"\.(png|jpe?g)$", "maxLength": 30},
    {"type": "array", "items": {"type": "string", "pattern": "^all|tags$"}},
    {
        "type": "array",
        "prefixItems": [{"type": "number"}, {"enum": ["aa", "b"]}],
        "items": False,
        "minItems": 2,
    },
    {"type": "object", "minProperties": 2, "additionalProperties": {"type": "boolean"}},
    {"type": "object", "minProperties": 1, "required": ["name"]},
    {
        "type": "array",
        "items": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]},
        "minItems": 2,
    },
    {"type": "object", "properties": {"a": {"type": "object"}}, "required": ["b", "a"]},
    {  # a name that one object needs is free in another, once
        "type": "object",
        "properties": {
            "c": {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "minProperties": 3,
            }
        },
        "required": ["c"],
    },
    {
        "properties": {
            **{one: {"anyOf": [{"type": "null"}, {"$ref": "#"}]} for one in "lr"},
            "value": {},
        },
        "required": ["l", "r", "value"],
        "type": "object",
    },
]
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<f="],
        "tags": [
            {
                "begin": "<f=x>",
                "content": {"type": "json_schema", "json_schema": PERSON},
                "end": "</f>",
            }
        ],
    },
}
OTHERS = [
    OutputSpec.regex("[a-z]+-[0-9]{3}(x{20})?"),
    OutputSpec.regex("([a-z]+ )*the quick brown fox"),
    OutputSpec.choice(["a", "and so on and so on", "abc"]),
    OutputSpec.json_object(),
    OutputSpec.structural_tag(TAG),
    OutputSpec.grammar('start: "(" (start | WORD)* ")"\nWORD: /[a-z]+/', "lark"),
    OutputSpec.grammar('start: "(" start start ")" | "x"', "lark"),
    OutputSpec.grammar(
        'start: N | "(" start ")" | N "(" start ")"\nN: /[a-z0-9]{2,}/', "lark"
    ),
    # no text ends such a W
    OutputSpec.grammar('start: "a" ("(" W "the end")?\nW: /[a-z]+/', "lark"),
    OutputSpec.json_schema(PERSON, whitespace="flexible"),
    OutputSpec.json_schema(PERSON, whitespace="spaced", strict=False),
    OutputSpec.json_schema({"type": "integer"}, stop_token_ids=[OTHER_END]),
    OutputSpec.json_schema(PERSON, start_after=[CALL]),
]
SPECS = [*map(OutputSpec.json_schema, SCHEMAS), *OTHERS]


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    options = {"isolate_compiles": False, "whitespace": "compact"}
    config = GuidedConfig(close_before_length=True, threads=1, **options)
    with pytest.MonkeyPatch.context() as patch:  # however slow and busy the machine
        patch.setattr(backend, "_CLOSING_SECONDS", 5.0)
        patch.setattr("guided_plugin.grammar.llguidance.closing._SECONDS", 5.0)
        patch.setattr("guided_plugin.grammar.llguidance.closing._LOST_SECONDS", 60.0)
        yield GrammarCompiler(VOCABULARY, config=config)


def table_of(
    compiler: GrammarCompiler, spec: OutputSpec, room: int | None
) -> GrammarTable:
    grammar = compiler.compile(spec)
    table = GrammarTable(VOCABULARY, row_seconds=30.0, row_longest=60.0)
    table.add(0, "one", spec.within(room), grammar, compiler.backend(grammar.backend))
    return table


def mask_of(table: GrammarTable) -> list[int]:
    row = np.zeros((1, VOCABULARY.words), np.int32)
    table.fill((0,), row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def written(table: GrammarTable, room: int, rng: random.Random) -> list[int]:
    """What a model writes that stops only if it must: its tokens, as many as it may
    have."""
    tokens: list[int] = [CALL] if table.phase(0) is Phase.WAITING else []
    table.accept((0,), tokens or [NO_TOKEN])
    while len(tokens) < room and table.phase(0) is Phase.ACTIVE:
        allowed = mask_of(table)
        tokens.append(
            rng.choice(
                [one for one in allowed if one not in (END, OTHER_END)] or allowed
            )
        )
        table.accept((0,), [tokens[-1]])
    return tokens


def _finite(text: str) -> float:
    return max(-1e300, min(1e300, float(text)))  # no number of JSON is infinite


def judge(compiler: GrammarCompiler, spec: OutputSpec, tokens: list[int]) -> None:
    """Complete for a matcher that knows of no limit, and valid."""
    plain = table_of(compiler, spec, None)
    for token in tokens:
        plain.accept((0,), [token])
    assert plain.phase(0) is Phase.DONE, b"".join(TOKENS[one] for one in tokens)
    if spec.kind == "json_schema":
        text = b"".join(TOKENS[one] for one in tokens[:-1] if one != CALL)
        assert oracle(spec.document())(json.loads(text, parse_float=_finite)), text


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_every_output_that_has_room_enough_ends_valid(
    compiler: GrammarCompiler, spec: OutputSpec
) -> None:
    rng = random.Random(5)
    least = compiler.compile(spec).admission().least + (spec.start_after is not None)
    for room in (
        least,
        least + 1,
        least + 2,
        least + 7,
        2 * least + 20,
        3 * least + 60,
    ):
        for _ in range(4):
            table = table_of(compiler, spec, room)
            tokens = written(table, room, rng)
            assert table.phase(0) is Phase.DONE, (
                room,
                b"".join(TOKENS[one] for one in tokens),
            )
            judge(compiler, spec, tokens)
            assert not table.failures


@pytest.mark.parametrize("trigger", ["```", "[TOOL", "<f="])
def test_a_call_is_not_opened_where_it_could_not_be_closed(
    compiler: GrammarCompiler, trigger: str
) -> None:
    tag = json.loads(json.dumps(TAG).replace("<f=", trigger))
    table = table_of(compiler, OutputSpec.structural_tag(tag), 12)
    for byte in trigger[:-1].encode():  # it may have begun where there was room
        table.accept((0,), [byte])
    assert {ord("y"), ord(" ")} <= {*mask_of(table)}
    assert ord(trigger[-1]) not in mask_of(table)


@pytest.mark.parametrize("regex", ["[^Q]*(Q[^Q]{30})?", "([^é]|é[a-z]{30}é)*"])
def test_a_character_that_ends_a_text_leaves_room(
    compiler: GrammarCompiler, regex: str
) -> None:
    table = table_of(compiler, OutputSpec.regex(regex), 9)
    allowed = {TOKENS[one] for one in mask_of(table)}
    assert {b"a", b" the"} <= allowed
    assert not {b"Q" if "Q" in regex else "é".encode()} & allowed


def test_an_ending_that_begins_with_a_character_of_a_text_does_not_outlive_the_full_text(
    compiler: GrammarCompiler,
) -> None:
    text = {"type": "string", "minLength": 1, "maxLength": 5}
    spec = OutputSpec.json_schema({"type": "array", "items": text, "minItems": 3})
    rng = random.Random(1)
    for room in (*range(12, 72),) * 6:
        table = table_of(compiler, spec, room)
        written(table, room, rng)
        assert table.phase(0) is Phase.DONE, room


def test_what_is_called_the_least_is_the_least(compiler: GrammarCompiler) -> None:
    """All texts of so few tokens are tried, of small languages."""
    small = {
        "type": "object",
        "properties": {"a": {"enum": [True, 10]}, "b": {}},
        "required": ["a"],
    }
    for spec in (
        OutputSpec.regex("(ab|c){2}"),
        OutputSpec.choice(["name the", "abc"]),
        OutputSpec.json_schema(small),
    ):
        grammar = compiler.compile(spec)
        matchers = [compiler.backend(grammar.backend).start(grammar, (END,))]
        for count in range(grammar.admission().least):
            assert not any(one.complete for one in matchers), (spec.summary(), count)
            if count < grammar.admission().least - 2:
                matchers = [
                    after
                    for one in matchers
                    for token in range(256 + len(WORDS))
                    if (after := one.fork()).accept(token)
                ]


def test_far_from_the_end_masks_are_those_of_the_grammar(
    compiler: GrammarCompiler,
) -> None:
    spec = OutputSpec.json_schema(PERSON)
    rng = random.Random(2)
    near = table_of(compiler, spec, 4000)
    free = table_of(compiler, spec, None)
    for _ in range(200):
        allowed = mask_of(free)
        assert mask_of(near) == allowed
        token = rng.choice(
            [one for one in allowed if one not in (END, *STRUCTURE)] or allowed
        )
        near.accept((0,), [token])
        free.accept((0,), [token])
    closing: Any = near.requests[0].closing
    assert closing.led == 0
    assert closing.due > 200  # it is seldom looked at


def test_near_the_end_the_model_still_chooses(compiler: GrammarCompiler) -> None:
    """With one token to spare any letter may come, or the end; with none the end."""
    spec = OutputSpec.json_schema({"type": "string"})
    table = table_of(compiler, spec, 5)
    for text, choices in ((b'"', 1), (b"a", 100), (b"b", 100), (b'"', 1)):
        allowed = mask_of(table)
        assert (len(allowed) >= 100) == (choices == 100), (text, allowed)
        table.accept((0,), [TOKENS.index(text)])
    assert mask_of(table) == [END]
    assert table.led == [0]
    assert table.tokens_led == 2  # the quote, the stop token


def test_a_search_for_an_end_that_takes_too_long_fails_its_request(
    compiler: GrammarCompiler,
) -> None:
    table = table_of(compiler, OutputSpec.json_schema({"type": "string"}), 5)
    table._unbounded.seconds = 0.0
    assert mask_of(table) == [END]
    assert [
        "the search for its end takes too long" in str(error)
        for _, error in table.failures
    ] == [True]


def test_drafts_that_would_lead_an_output_do_not(compiler: GrammarCompiler) -> None:
    properties = {"a": {"type": "string"}, "b": {"type": "string"}}
    spec = OutputSpec.json_schema(
        {"type": "object", "properties": properties, "required": ["a"]}
    )
    table = table_of(compiler, spec, 16)
    for byte in b'{"a":"x':
        mask_of(table)
        table.accept((0,), [byte])
    drafts = [[byte] for byte in b'","b":"']
    fill_with_drafts(table, (0,), np.zeros((8, VOCABULARY.words), np.int32), drafts)
    assert (table.led, table.tokens_led) == ([], 0)
    closing: Any = table.requests[0].closing
    assert closing.looked <= len(table.tokens(0))  # else what it owes would grow


def test_where_there_is_no_time_for_a_choice_the_output_is_led(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = OutputSpec.regex("a*b")
    for seconds, written in ((1.0, b"aaaab"), (-1.0, b"b")):
        monkeypatch.setattr("guided_plugin.grammar.table._CLOSING_SECONDS", seconds)
        table = table_of(compiler, spec, 6)
        text = b""
        while table.phase(0) is Phase.ACTIVE:
            allowed = mask_of(table)
            text += TOKENS[allowed[0]]
            table.accept((0,), [allowed[0]])
        assert table.led == [0]
        assert text.removesuffix(TOKENS[END]) == written


def test_outputs_whose_ends_are_hard_to_find_take_a_bounded_part_of_the_steps(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each item that is chosen the ending that was known repeats one."""
    items = {"type": "integer", "minimum": 0, "maximum": 45}
    spec = OutputSpec.json_schema(
        {"type": "array", "items": items, "minItems": 40, "uniqueItems": True}
    )
    grammar = compiler.compile(spec)
    table = GrammarTable(VOCABULARY)
    rng = random.Random(3)
    for slot in range(8):
        table.add(
            slot,
            str(slot),
            spec.within(150),
            grammar,
            compiler.backend(grammar.backend),
        )
    took = list[float]()
    search = Endings.shortest
    slots = tuple(range(8))

    def timed(*given: Any, **options: Any) -> Any:
        begun = time.thread_time()
        found = search(*given, **options)
        took.append(time.thread_time() - begun)
        return found

    monkeypatch.setattr(Endings, "shortest", timed)
    steps = 0
    while slots:
        masks = np.zeros((len(slots), VOCABULARY.words), np.int32)
        table.fill(slots, masks)
        allowed = [
            np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            for row in masks
        ]
        table.accept(slots, [int(rng.choice(one)) for one in allowed])
        slots = tuple(slot for slot in slots if table.phase(slot) is Phase.ACTIVE)
        steps += 1
    assert {table.phase(slot) for slot in range(8)} == {Phase.DONE}
    assert sum(took) < 1.5 * steps * _CLOSING_SECONDS


def test_drafts_are_walked_along_and_forgotten(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks along drafts are those of a table that was really brought there; then
    nothing has changed."""
    # however slow the machine
    monkeypatch.setattr("guided_plugin.grammar.table._CLOSING_SECONDS", 1.0)
    spec = OutputSpec.json_schema(PERSON)
    rng = random.Random(3)
    for room in (40, 60, 90):
        table = table_of(compiler, spec, room)
        plain = table_of(compiler, spec, room)
        tokens: list[int] = []
        while table.phase(0) is Phase.ACTIVE:
            drafts = (
                [[NO_TOKEN]] * 3
                if len(tokens) % 2
                else [[rng.choice(b'",:[]{}a0')] for _ in range(3)]
            )
            mask = np.zeros((4, VOCABULARY.words), np.int32)
            fill_with_drafts(table, (0,), mask, drafts)
            # What is found first decides which of several endings is known: both must
            # only leave room.
            allowed = np.flatnonzero(
                np.unpackbits(mask[0].view(np.uint8), bitorder="little")
            ).tolist()
            assert allowed
            assert set(allowed) & set(mask_of(plain))
            tokens.append(rng.choice([one for one in allowed if one != END] or allowed))
            for one in (table, plain):
                one.accept((0,), [tokens[-1]])
        assert len(tokens) <= room
        judge(compiler, spec, tokens)


def test_too_little_room_is_an_error_with_the_number_that_is_needed() -> None:
    check_room(0, None)
    check_room(7, 7)
    with pytest.raises(
        RequestError, match=r"max_tokens: leaves 6 tokens.*takes 7.*at least 7"
    ):
        check_room(7, 6)
    with pytest.raises(RequestError, match="needs the number of tokens"):
        check_room(7, None)


@pytest.mark.parametrize(
    "spec",
    [
        OutputSpec.grammar('root ::= "a"'),
        OutputSpec.grammar('root ::= "a"', backend="xgrammar"),
    ],
    ids=["ebnf", "named"],
)
def test_a_backend_that_tells_no_ends_refuses(
    compiler: GrammarCompiler, spec: OutputSpec
) -> None:
    with pytest.raises(GuidedError, match="is not available with xgrammar"):
        compiler.compile(spec)


def test_a_spec_whose_end_is_not_found_in_time_is_refused(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_CLOSING_SECONDS", 0.0)
    with pytest.raises(UnsupportedSpecError, match="no end that can be found in time"):
        compiler.compile(OutputSpec.regex("[a-z]{7}"))


def test_texts_are_spelled_with_the_fewest_tokens() -> None:
    spelling = Spelling(VOCABULARY)
    assert spelling.spelled(b'"},{"') == (TOKENS.index(b'"},{"'),)
    assert spelling.spelled(b'{"name":00') == tuple(
        map(TOKENS.index, (b'{"', b"name", b'":', b"00"))
    )
    assert Spelling(Vocabulary((b"a", b"</s>"), (1,))).spelled(b"ab") is None


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("start: T\nT: /a{5}/\n", 0),
        ("start: T\nT: /a|漢{2}/\n", 5),
        ("start: T\nT: /a|b{50}/\n", 49),
        ('start: "a" (r)*\nr: "bc" T\nT: /x{10}/\n', 12),
        ('start: "a" r\nr: "b" | "c" r "d" T\nT: /[0-9]{7}/ & ~/00/\n', 9),
        ('?start : r+\n!r.2: "b"\n  | "c"\n  | x\nx: "0123456789"', 9),
    ],
)
def test_growth_is_what_one_choice_may_add(text: str, most: int) -> None:
    assert growth(text) == most


def test_needed_names_are_those_that_no_choice_leaves_out(
    compiler: GrammarCompiler,
) -> None:
    for strict in (True, False):
        grammar = compiler.compile(OutputSpec.json_schema(PERSON, strict=strict))
        names = required(grammar.handle.lark.text)
        assert {b'"name"', b'"born"', b'"street"', b'"number"'} <= names
        assert not {b'"tags"', b'"home"', b'"friends"'} & names
