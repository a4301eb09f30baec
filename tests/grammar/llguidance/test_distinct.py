"""Items and names that must be distinct: no mask leads to a repeated one, or to where nothing is left."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest
from distinct_walks import (
    BOOLEAN,
    BYTES,
    UNIQUE,
    VOCABULARIES,
    Members,
    closed,
    drafts_see_what_replays_see,
    leaves_no_trace,
    repeats,
    spec_of,
    walker,
    wander,
)
from instances import laid_out

from guided_plugin import GuidedConfig, OutputSpec
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GrammarError, UnsupportedSpecError

ONE = {"const": 1}
CLOSED = closed()


def matching(pattern):
    return {"type": "string", "pattern": pattern}


TEXTS = [
    (
        {**UNIQUE, "items": {"type": "string"}},
        ['["a","b"]', '["a","ab","abc"]', "[]", '["",","]', '["\\n","\\\\n","n"]', '["é","e"]'],
        ['["a","a"]', '["a","b","a"]', '["","a",""]', '["\\n","\\n"]', '["\\u0001","\\u0001"]', '["é","é"]'],
    ),
    (
        {**UNIQUE, "items": {"type": "integer"}},
        ["[1,2]", "[0,-1,1,10,100]", "[10,1,0]", "[1.0,2,-1]"],
        ["[1,1]", "[0,0]", "[0,-1,1,10,100,1]", "[1,1.0]", "[0,-0]", "[2,12,2,1]", "[1.0,1]", "[-0,0]"],
    ),
    (
        {**UNIQUE, "items": {"type": "number"}},
        ["[1,1.5]", "[0.5,0.05]", "[1.0,2.5,100.0]"],
        ["[0.5,0.5]", "[0.5,0.50]", "[1,1e0]", "[100,1e2]", "[0,-0.0]", "[1.0,1]", "[12,120e-1]"],
    ),
    (
        UNIQUE,
        [
            *("[1,true]", "[[1.0],1.0,-1.0]", '[1,"1",null,[],{}]', "[[1],[1,1]]"),
            "[[true],[1]]", "[0,false]", '[{"a":1},{"a":2}]',
        ],
        [
            *("[{},{}]", "[[],[]]", "[null,null]", "[true,true]", "[[1],[1]]", '["a","a"]'),
            '[{"a":1,"b":2},{"b":2,"a":1}]',
            '[{"a":{"c":[1,"x"],"b":null}},{"a":{"b":null,"c":[1,"x"]}}]',
            '[{"a":2},{"a":1,"a":2}]',
            *("[[1.0],[1]]", "[[1],[1.0]]", "[[1,0.50],[1.0,0.5]]", "[[2,-0],[2,0.0]]"),
            '[{"a":-0.0},{"a":0}]',
        ],
    ),
    (
        {"type": "object", "properties": {"x": {**UNIQUE, "items": {"type": "string"}}}},
        ['{"x":["a","b"],"y":["a","a"]}', '{"x":["a"],"z":"a"}'],
        ['{"x":["a","a"]}', '{"y":1,"x":["a","a"]}', '{"\\u0078":1,"x":["a","b","b"]}'],
    ),
    (
        {**UNIQUE, "items": {**UNIQUE, "items": {"type": "integer"}}},
        ["[[1,2],[2,1]]", "[[1],[]]"],
        ["[[1,1]]", "[[1,2],[1,2]]", "[[],[]]"],
    ),
    (
        {**UNIQUE, "prefixItems": [{"type": "string"}, {"type": "string"}], "items": {"type": "integer"}},
        ['["a","b",1]', '["a"]'],
        ['["a","a"]', '["a","b",1,1]'],
    ),
    (
        {**UNIQUE, "contains": {"const": "a"}, "items": {"type": "string"}},
        ['["b","a"]', '["a"]'],
        ['["a","a"]', '["b"]', '["b","b","a"]'],
    ),
    (
        {"$ref": "#/$defs/tree", "$defs": {"tree": {**UNIQUE, "items": {"$ref": "#/$defs/tree"}}}},
        ["[[],[[]]]", "[[[],[[]]],[]]"],
        ["[[],[]]", "[[[],[]]]", "[[[]],[[]]]"],
    ),
    (
        {**UNIQUE, "$schema": "http://json-schema.org/draft-04/schema#", "items": [{"type": "integer"}]},
        ["[1,2,3]"],
        ["[1,1]", "[1,2,1]"],
    ),
    (
        {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}},
        ['{"a":1,"b":1}', '{"a":1,"b":1,"ab":1}'],
        ['{"a":1,"a":2}', '{"a":1,"b":1,"a":1}', '{"a":1}'],
    ),
]  # fmt: skip


@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize(("schema", "good", "bad"), TEXTS)
def test_texts(schema, good, bad, vocabulary, whitespace):
    compiler, walks = walker(vocabulary)
    grammar = compiler.compile(spec_of(schema, whitespace=whitespace))
    if whitespace == "flexible":
        good = [*good, *map(with_space_everywhere, good)]
        bad = [*bad, *map(with_space_everywhere, bad)]
    elif whitespace == "spaced":
        compact, good = good, [laid_out(text, "spaced") for text in good]
        bad = [*(laid_out(text, "spaced") for text in bad), *({*compact} - {*good})]
    for text in [*good, *bad]:
        walk = walks.walk(grammar, text)
        assert (walk.accepted, walk.early, walk.leaks) == (text in good, [], []), text


def with_space_everywhere(text: str) -> str:
    """With white space between all parts."""
    found, inside = "", False
    for before, char in zip(" " + text, text, strict=False):
        inside ^= char == '"' and before != "\\"
        found += char if inside else {",": " ,\n ", ":": " : ", "]": "\n]", "[": "[ "}.get(char, char)
    return found


FINITE = [
    {**UNIQUE, "items": {"type": "integer", "minimum": 0, "maximum": 60}},
    {**UNIQUE, "items": {"type": "integer", "minimum": -3, "maximum": 3}, "minItems": 4},
    {**UNIQUE, "items": {"type": "integer"}},
    {**UNIQUE, "items": {"type": "number"}},
    {**UNIQUE, "items": {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.1}},
    {**UNIQUE, "items": {"type": "string", "maxLength": 1, "pattern": "^[a-e]*$"}},
    {**UNIQUE, "items": {"type": "string", "pattern": "^(a|b[0-9]+)$"}},
    {**UNIQUE, "items": {"type": "string", "format": "date"}},
    {**UNIQUE, "items": {"type": ["boolean", "null", "integer"]}},
    {**UNIQUE, "items": closed("a", "b", a=BOOLEAN, b={"enum": [1, 2]})},
    {**UNIQUE, "items": closed(a=BOOLEAN, b={"enum": ["x", "yy"]})},
    {**UNIQUE, "items": closed("n", "b", n={"type": "string", "pattern": "^[ab]?$"}, b=BOOLEAN)},
    {**UNIQUE, "items": {**UNIQUE, "items": BOOLEAN}},
    {**UNIQUE, "items": {"type": "array", "items": BOOLEAN, "maxItems": 2}},
    {**UNIQUE, "items": {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 9}},
    {
        **UNIQUE,
        "prefixItems": [{"enum": ["a", "b"]}, {"enum": ["a", "b", "c"]}],
        "items": {"enum": ["a", "b", "c", "d"]},
    },
    {**UNIQUE, "items": {"type": "string", "pattern": "^[abc]$"}, "contains": {"const": "b"}},
    {**UNIQUE, "items": {"type": "number", "multipleOf": 7, "minimum": 0, "maximum": 50}},
    UNIQUE,
    {"patternProperties": {"^[ab]$": BOOLEAN}, "minProperties": 2} | closed(),
    {"type": "object", "minProperties": 3, "additionalProperties": BOOLEAN},
]  # fmt: skip


OBJECTS = [
    {**CLOSED, "patternProperties": {"^[ab]$": ONE}},
    {**CLOSED, "patternProperties": {"^[ab]$": ONE, "^[bc]$": {"type": "integer"}}},
    {**CLOSED, "patternProperties": {"^a$": BOOLEAN}, "properties": {"b": ONE, "c": ONE}},
    {"type": "object", "propertyNames": matching("^[ab]$"), "additionalProperties": ONE},
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": ONE},
    {"anyOf": [closed("a", "b", a=ONE, b=ONE), closed("a", "b", b=ONE, a=ONE)]},
    {"type": "array", "items": closed(a=ONE, b=ONE), "maxItems": 1},
    {"type": "object", "properties": {"a": ONE}, "patternProperties": {"^b$": ONE}}
    | {"unevaluatedProperties": False},
]  # fmt: skip


def either(*schemas):
    return {"anyOf": [*schemas]}


KINDS = [
    {"items": either(matching("^a$"), {"type": "integer"})},
    {"items": either(matching("^ab?$"), BOOLEAN, {"type": "integer"})},
    {"items": either(matching("^a{0,2}$"), {"type": "array", "maxItems": 1, "items": BOOLEAN})},
    {"items": either({"type": "object", "maxProperties": 0}, {"type": "integer"}, matching("^$"))},
    {"items": either({"type": "array", "maxItems": 1, "items": matching("^a$")}, {"type": "integer"})},
    {"items": either(closed(a=ONE), closed("b", b=matching("^a$")), {"type": "integer"})},
    {"prefixItems": [{"type": "integer"}], "items": either(matching("^a$"), {"const": -1})},
    {"prefixItems": [{"type": "string"}], "items": matching("^[ab]$")},
    {"items": either(matching("^[ab]$"), {"type": "integer"}), "contains": {"type": "string"}, "maxItems": 3},
]


LEAVING = [
    {"prefixItems": [matching("^[ab]$"), matching("^a$")], "items": {"type": "integer"}},
    {"prefixItems": [{"type": "string"}], "items": matching("^[ab]$"), "minItems": 2},
    {"prefixItems": [BOOLEAN, {"type": "integer"}, BOOLEAN], "minItems": 3},
    {"prefixItems": [{"type": "string"}, BOOLEAN], "items": {"type": "integer"}, "minItems": 4},
]

POINT = closed("x", "y", x={"type": "integer"}, y={"type": "integer"})
UNIONS = [
    {"items": {"enum": [{"a": 1, "b": 2}, {}]}},
    {"items": {"enum": [[1, 2], {}, "ab", 1, [], {"a": [1]}]}},
    {"items": either(closed("user_id", "user_name", user_id=ONE, user_name=matching("^a?$")), POINT)},
    {"items": either(POINT, closed("x", "w", x={"type": "integer"}, w=BOOLEAN))},
    {"items": either({**UNIQUE, "items": matching("^[ab]$")}, {**UNIQUE, "items": BOOLEAN, "maxItems": 1})},
    {"items": {**UNIQUE, "items": {"type": "integer", "minimum": 0, "maximum": 1}}, "minItems": 3},
    {"items": {**POINT, "patternProperties": {"^z?$": ONE}}},
]


WALKED = [*FINITE, *({**UNIQUE, "items": items} for items in OBJECTS)]
WALKED += [{**UNIQUE, **schema} for schema in (*KINDS, *LEAVING, *UNIONS)]


@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("schema", WALKED)
def test_no_walk_repeats_a_value_or_ends_without_a_token(schema, vocabulary, whitespace):
    ended = 0
    for seed in range(4):
        spec = spec_of(schema, strict=bool(seed % 2), whitespace=whitespace)
        text = wander(vocabulary, spec, Random(seed))
        if text is not None:
            ended += 1
            assert repeats(json.loads(text, object_pairs_hook=Members), schema) == [], text
    assert ended or whitespace == "flexible"


@pytest.mark.parametrize("whitespace", ["spaced", "flexible"])
@pytest.mark.parametrize("schema", [*FINITE, *({**UNIQUE, **schema} for schema in UNIONS)])
def test_going_back_and_forking_leave_no_trace(schema, whitespace):
    compiler, _ = walker("crossing")
    vocabulary, chance = VOCABULARIES["crossing"], Random(5)
    grammar = compiler.compile(spec_of(schema, whitespace=whitespace))

    def choose(ids):
        likely = [token for token in ids if set(vocabulary.tokens[token]) <= set(b'",]}:01a')]
        return chance.choice(likely or ids)

    leaves_no_trace(
        compiler.backend(grammar.backend),
        grammar,
        vocabulary,
        chance,
        steps=120,
        forth=0.8,
        most_back=9,
        ids_of=lambda allowed: [token for token in allowed if vocabulary.tokens[token].strip()],
        choose=choose,
    )


def test_a_repeated_value_is_refused_by_every_way_in():
    compiler, _ = walker("bytes")
    spec = spec_of({**UNIQUE, "items": {"type": "string"}})
    grammar = compiler.compile(spec)
    backend = compiler.backend(grammar.backend)
    matcher = backend.start(grammar, BYTES.stop_token_ids)
    assert matcher.accept_text(b'["a","b","')
    assert not matcher.accept_text(b'a"')
    assert matcher.accept_text(b"a")
    assert backend.batch([matcher]).accept([ord('"')]) == [False]


def test_many_rows_are_checked_in_threads():
    compiler = GrammarCompiler(BYTES, config=GuidedConfig(threads=2, isolate_compiles=False))
    checked, plain = ({**UNIQUE, "items": {"type": "string"}}, {"type": "array", "items": {"type": "string"}})
    grammars = [compiler.compile(spec_of(schema)) for schema in (checked, plain)]
    backend = compiler.backend("llguidance")
    matchers = [backend.start(grammars[i % 2], BYTES.stop_token_ids) for i in range(40)]
    batch = backend.batch(matchers)
    for byte in b'["a","a':
        assert all(batch.accept([byte] * 40))
    rows = np.zeros((40, BYTES.words), np.int32)
    batch.fill(rows, list(range(40)))
    quotes = [bool(row[1] >> 2 & 1) for row in rows]
    assert quotes == [i % 2 == 1 for i in range(40)]
    assert batch.accept([34] * 40) == quotes


def test_drafts_and_replay():
    compiler, _ = walker("bytes")
    grammar = compiler.compile(spec_of({**UNIQUE, "items": {"type": "string"}}))
    drafts = (b',"a"', b',"ba', b',"c","c"', b',"c"]', b',"aa","aa')
    drafts_see_what_replays_see(compiler.backend(grammar.backend), grammar, BYTES, b'["a","b"', drafts)


@pytest.mark.parametrize(
    ("items", "enough", "values"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 59}, 60, 60),
        ({"type": "integer", "exclusiveMinimum": -70, "maximum": 70, "multipleOf": 10}, 14, 14),
        ({"type": "number", "minimum": 0, "maximum": 6, "multipleOf": 0.1}, 61, 61),
        ({"type": "array", "items": BOOLEAN, "maxItems": 2}, 3, 7),
        (closed("a", a=BOOLEAN, b={"enum": [1, 2, 3]}), 8, 8),
        ({"enum": [[1], [2], {"a": 1}, "x"]}, 3, 4),
        ({"type": ["null", "boolean"], "maxLength": 0}, 3, 3),
        (matching("^[ab]$"), 2, 2),
        (matching("^[a-c]?$"), 4, 4),
        ({"type": "string", "maxLength": 1, "pattern": "^(a|b|cc)*$"}, 3, 3),
        ({"anyOf": [matching("^[ab]$"), matching("^[bc]$")]}, 3, 3),
        ({"anyOf": [{"type": "integer", "minimum": 0, "maximum": 3}, {"enum": [2, 3, 4]}]}, 5, 5),
        ({**UNIQUE, "items": BOOLEAN}, 3, 5),
        ({"type": "array", "prefixItems": [BOOLEAN], "items": False}, 3, 3),
        ({**CLOSED, "patternProperties": {"^[ab]$": ONE}}, 1, 4),
        ({"type": "object", "properties": {"a": BOOLEAN}, "required": ["a"], "maxProperties": 1}, 2, 2),
        ({"type": "array", "items": matching("^[ab]$"), "minItems": 1, "maxItems": 1}, 2, 2),
    ],
)
def test_more_items_than_values_are_refused_at_admission(items, enough, values):
    compiler, _ = walker("bytes")
    compiler.compile(spec_of({**UNIQUE, "items": items, "minItems": enough}))
    with pytest.raises(GrammarError):
        compiler.compile(spec_of({**UNIQUE, "items": items, "minItems": values + 1}))


COMPETING = [
    {"prefixItems": [matching("^[ab]$"), matching("^a$")], "minItems": 2},
    {"prefixItems": [{"enum": ["a", "b", "c"]}, {"enum": ["a"]}], "minItems": 2},
    {"prefixItems": [{"type": "string"}, matching("^a$"), matching("^b$")], "minItems": 3},
    {"prefixItems": [{"type": "string"}], "items": matching("^[ab]$"), "minItems": 3},
    {
        "prefixItems": [{"enum": ["a", "b"]}, {"enum": ["a"]}],
        "contains": {"type": "string"},
        "minContains": 2,
    },
    {"prefixItems": [{}, BOOLEAN, BOOLEAN], "minItems": 3},
    {"prefixItems": [{}, {}], "items": {"enum": [[]]}, "contains": {"type": "array"}, "minContains": 2},
    {
        "prefixItems": [{"enum": [1, "a"]}],
        "items": {"enum": [1, 2, "b"]},
        "contains": {"type": "integer"},
        "maxContains": 1,
        "minItems": 3,
    },
]


@pytest.mark.parametrize("schema", COMPETING)
def test_items_that_may_take_the_values_of_later_ones_are_refused(schema):
    compiler, _ = walker("bytes")
    with pytest.raises(UnsupportedSpecError) as caught:
        compiler.compile(spec_of({**UNIQUE, **schema}))
    assert caught.value.where.removeprefix("#/") in {"uniqueItems", *schema} - {"prefixItems", "items"}


@pytest.mark.parametrize(
    ("items", "keyword"),
    [
        ({"type": "object", "maxProperties": 2}, "maxProperties"),
        ({"type": "array", "items": {"maxProperties": 3}}, "maxProperties"),
        ({**closed(a=BOOLEAN, b=ONE), "minProperties": 1}, "minProperties"),
        ({**closed(a=BOOLEAN, b=ONE, c=ONE), "maxProperties": 2}, "maxProperties"),
    ],
)
def test_objects_that_count_are_refused_as_items_that_differ(items, keyword):
    compiler, _ = walker("bytes")
    with pytest.raises(UnsupportedSpecError) as caught:
        compiler.compile(spec_of({**UNIQUE, "items": items}))
    assert caught.value.where.endswith(keyword)
    compiler.compile(spec_of({"type": "array", "items": items}))


def test_other_grammars_have_no_check():
    compiler, _ = walker("bytes")
    for schema in ({**UNIQUE, "items": {"enum": [1, 2]}}, {**UNIQUE, "maxItems": 1}, {"type": "array"}):
        grammar = compiler.compile(spec_of(schema))
        assert compiler.backend("llguidance").start(grammar, BYTES.stop_token_ids).distinct is None


def test_a_client_grammar_is_not_checked_for_what_its_comment_says():
    compiler, walks = walker("bytes")
    grammar = compiler.compile(OutputSpec.grammar('start: "a" "a"\n// distinct\n', syntax="lark"))
    assert walks.walk(grammar, "aa", whole=lambda text: text == b"aa").accepted


@pytest.mark.parametrize(
    "item",
    [
        {"type": "array", "items": {"type": "string"}, "contains": {"const": 0}},
        closed("a", "b", a={"type": "string"}, b={**matching("^x$"), "maxLength": 0}),
    ],
)
def test_items_that_nothing_can_be_are_counted_as_none(item):
    schema = {**UNIQUE, "items": {"type": "array", "items": item}}
    compiler, walks = walker("bytes")
    with pytest.raises(GrammarError):
        compiler.compile(spec_of({**schema, "minItems": 2}))
    assert walks.walk(compiler.compile(spec_of(schema)), "[[]]").accepted
