"""Items and names that must be distinct: no mask leads to a repeated one, or to where
nothing is left."""

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
    tokens_fit_bytes,
    walker,
    wander,
)
from instances import laid_out

from guided_plugin import GuidedConfig, OutputSpec
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GrammarError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.distinct.track import Track

ONE = {"const": 1}
DRAFT4 = "http://json-schema.org/draft-04/schema#"
CLOSED = closed()


LISTS = {
    "type": "array",
    "items": {"type": ["number", "array"], "items": {"type": "number"}},
}
POINT = closed("x", "y", x={"type": "integer"}, y={"type": "integer"})


def matching(pattern):
    return {"type": "string", "pattern": pattern}


def either(*schemas):
    return {"anyOf": [*schemas]}


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
        {**UNIQUE, "items": {"type": "number", "multipleOf": 0.5, "minimum": -1, "maximum": 30}},
        ["[1,1.5]", "[1.0,-0.5]", "[0.0,30]"],
        ["[1,1.0]", "[1.5,1.50]", "[0,-0]", "[0.0,0]", "[2,1.5,2.0]"],
    ),
    (
        {**UNIQUE, "items": either({"type": "integer", "minimum": -1, "maximum": 3}, {"enum": [0.5, 2.0]})},
        ["[-1,0,1,2,3,0.5]", "[1.0,2]", "[0.0,-1.0]"],
        ["[1,1.0]", "[1.0,1]", "[0,-0]", "[2,2.0]", "[0.5,0.50]", "[4]", "[1,2,3,1]"],
    ),
    (
        {**UNIQUE, "items": {"type": "number"}},
        ["[1,1.5]", "[0.5,0.05]", "[1.0,2.5,100.0]"],
        ["[0.5,0.5]", "[0.5,0.50]", "[1,1e0]", "[100,1e2]", "[0,-0.0]", "[1.0,1]", "[12,120e-1]"],
    ),
    (
        {**UNIQUE, "items": either({"type": ["integer", "string", "boolean", "null"]}, LISTS)},
        ["[1,true]", "[[1.0],1.0,-1.0]", '[1,"1",null,[]]', "[[1],[1,1]]", "[[0],[2]]", "[0,false]"],
        [
            *("[[],[]]", "[null,null]", "[true,true]", "[[1],[1]]", '["a","a"]', "[[1],2,[1]]"),
            *("[[1.0],[1]]", "[[1],[1.0]]", "[[1,0.50],[1.0,0.5]]", "[[2,-0],[2,0.0]]", "[[[1]],[[1]]]"),
        ],
    ),
    (
        {**UNIQUE, "items": closed("a", a={"type": "number"}, b=LISTS, c=closed(d=BOOLEAN, e=BOOLEAN))},
        ['[{"a":1},{"a":2}]', '[{"a":1,"b":[]},{"a":1}]', '[{"a":1,"b":[1.0]},{"a":1,"b":[1,1]}]'],
        [
            *('[{"a":1},{"a":1}]', '[{"a":1.0},{"a":1}]', '[{"a":-0.0},{"a":0}]', '[{"a":2},{"a":1,"a":2}]'),
            *('[{"a":1,"b":[1]},{"b":[1],"a":1}]', '[{"a":1,"b":[2]},{"a":1,"b":[2.0]}]'),
            '[{"a":1,"c":{"d":true,"e":false}},{"a":1,"c":{"e":false,"d":true}}]',
        ],
    ),
    (
        {**UNIQUE, "items": {"enum": [{"a": 1, "b": [2]}, {"b": [2.0], "a": 1}, {"b": [2]}, [1], [1.0], 1]}},
        ['[{"a":1,"b":[2]},{"b":[2]},[1],1]'],
        ['[{"a":1,"b":[2]},{"b":[2],"a":1}]', '[{"a":1,"b":[2]},{"a":1,"b":[2]}]', "[[1],[1.0]]", "[1,1.0]"],
    ),
    (
        {**UNIQUE, "items": either({"const": "a"}, {"enum": ["a", "b", 1]}, {"enum": [1.0, True, "b"]})},
        ['["a","b",1,true]', "[true,1]"],
        ['["a","a"]', '["b","a","b"]', "[1,1]", "[true,1,true]"],
    ),
    (
        {**UNIQUE, "prefixItems": [POINT, closed("y", "x", z=ONE, **POINT["properties"])], "items": False},
        ['[{"x":1,"y":2},{"x":2,"y":1}]', '[{"x":1,"y":2},{"x":1,"y":2,"z":1}]'],
        ['[{"x":1,"y":2},{"x":1,"y":2}]', '[{"x":1,"y":2},{"y":2,"x":1}]'],
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
        {"$ref": "#/$defs/tree", "$defs": {"tree": {**UNIQUE, "items": {"$ref": "#/$defs/tree"}}}},
        ["[[],[[]]]", "[[[],[[]]],[]]"],
        ["[[],[]]", "[[[],[]]]", "[[[]],[[]]]"],
    ),
    (
        {**UNIQUE, "$schema": DRAFT4, "items": [{"type": "number"}], "additionalItems": {"type": "integer"}},
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
        compact = good
        good = [laid_out(text, "spaced") for text in good]
        bad = [*(laid_out(text, "spaced") for text in bad), *({*compact} - {*good})]
    for text in [*good, *bad]:
        walk = walks.walk(grammar, text)
        assert (walk.accepted, walk.early, walk.leaks) == (text in good, [], []), text


def with_space_everywhere(text: str) -> str:
    """With white space between all parts."""
    found = ""
    inside = False
    for before, char in zip(" " + text, text, strict=False):
        inside ^= char == '"' and before != "\\"
        found += (
            char
            if inside
            else {",": " ,\n ", ":": " : ", "]": "\n]", "[": "[ "}.get(char, char)
        )
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
    {**UNIQUE, "items": {"type": "number", "multipleOf": 7, "minimum": 0, "maximum": 50}},
    {"type": "object", "minProperties": 3, "additionalProperties": BOOLEAN},
]  # fmt: skip


OBJECTS = [
    {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": ONE},
    either(closed("a", "b", a=ONE, b=ONE), closed("a", "b", b=ONE, a=ONE)),
    {"type": "array", "items": closed(a=ONE, b=ONE), "maxItems": 1},
    {"type": "object", "properties": {"a": BOOLEAN, "b": ONE}, "additionalProperties": False},
    {**closed(a=BOOLEAN, b=ONE), "minProperties": 1},
]  # fmt: skip


KINDS = [
    {"items": either(matching("^a$"), {"type": "integer"})},
    {"items": either(matching("^ab?$"), BOOLEAN, {"type": "integer"})},
    {
        "items": either(
            matching("^a{0,2}$"), {"type": "array", "maxItems": 1, "items": BOOLEAN}
        )
    },
    {"items": either(closed(), {"type": "integer"}, matching("^$"))},
    {
        "items": either(
            {"type": "array", "maxItems": 1, "items": matching("^a$")},
            {"type": "integer"},
        )
    },
    {
        "items": either(
            closed(a=ONE), closed("b", b=matching("^a$")), {"type": "integer"}
        )
    },
    {
        "prefixItems": [{"type": "integer"}],
        "items": either(matching("^a$"), {"const": -1}),
    },
    {"prefixItems": [{"type": "string"}], "items": matching("^[ab]$")},
]


LEAVING = [
    {
        "prefixItems": [matching("^[ab]$"), matching("^a$")],
        "items": {"type": "integer"},
    },
    {"prefixItems": [{"type": "string"}], "items": matching("^[ab]$")},
    {
        "prefixItems": [BOOLEAN, {"type": "integer"}, BOOLEAN],
        "items": False,
        "minItems": 1,
    },
]

UNIONS = [
    {"items": {"enum": [{"a": 1, "b": 2}, {}]}},
    {"items": {"enum": [[1, 2], {}, "ab", 1, [], {"a": [1]}]}},
    {
        "items": either(
            closed("user_id", "user_name", user_id=ONE, user_name=matching("^a?$")),
            POINT,
        )
    },
    {"items": either(POINT, closed("x", "w", x={"type": "integer"}, w=BOOLEAN))},
    {
        "items": either(
            {**UNIQUE, "items": matching("^[ab]$")},
            {**UNIQUE, "items": BOOLEAN, "maxItems": 1},
        )
    },
    {
        "items": {**UNIQUE, "items": {"type": "integer", "minimum": 0, "maximum": 1}},
        "minItems": 1,
    },
    {
        "items": either(
            matching("^[a-c]{1,2}$"),
            {"type": "array", "items": matching("^[ab]$"), "maxItems": 3},
        )
    },
    {
        "items": {
            "type": "array",
            "prefixItems": [{"type": "integer"}, BOOLEAN],
            "minItems": 2,
            "items": False,
        }
    },
]


WALKED = [*FINITE, *({**UNIQUE, "items": items} for items in OBJECTS)]
WALKED += [{**UNIQUE, "items": {**UNIQUE, "items": BOOLEAN}}]
WALKED += [{**UNIQUE, **schema} for schema in (*KINDS, *LEAVING, *UNIONS)]


@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("schema", WALKED)
def test_no_walk_repeats_a_value_or_ends_without_a_token(
    schema, vocabulary, whitespace
):
    ended = 0
    for seed in range(4):
        spec = spec_of(schema, strict=bool(seed % 2), whitespace=whitespace)
        text = wander(vocabulary, spec, Random(seed))
        if text is not None:
            ended += 1
            assert repeats(json.loads(text, object_pairs_hook=Members), schema) == [], (
                text
            )
    assert ended or whitespace == "flexible"


@pytest.mark.parametrize("whitespace", ["spaced", "flexible"])
@pytest.mark.parametrize(
    "schema", [*FINITE, *({**UNIQUE, **schema} for schema in UNIONS)]
)
def test_going_back_and_forking_leave_no_trace(schema, whitespace):
    compiler, _ = walker("crossing")
    vocabulary = VOCABULARIES["crossing"]
    chance = Random(5)
    grammar = compiler.compile(spec_of(schema, whitespace=whitespace))

    def choose(ids):
        likely = [
            token for token in ids if set(vocabulary.tokens[token]) <= set(b'",]}:01a')
        ]
        return chance.choice(likely or ids)

    leaves_no_trace(
        compiler.backend(grammar.backend),
        grammar,
        vocabulary,
        chance,
        steps=120,
        forth=0.8,
        most_back=9,
        ids_of=lambda allowed: [
            token for token in allowed if vocabulary.tokens[token].strip()
        ],
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
    compiler = GrammarCompiler(
        BYTES, config=GuidedConfig(threads=2, isolate_compiles=False)
    )
    checked = {**UNIQUE, "items": {"type": "string"}}
    plain = {"type": "array", "items": {"type": "string"}}
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
    drafts_see_what_replays_see(
        compiler.backend(grammar.backend), grammar, BYTES, b'["a","b"', drafts
    )


@pytest.mark.parametrize(
    ("items", "enough", "values"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 59}, 60, 60),
        (
            {
                "type": "integer",
                "exclusiveMinimum": -70,
                "maximum": 70,
                "multipleOf": 10,
            },
            14,
            14,
        ),
        ({"type": "number", "minimum": 0, "maximum": 6, "multipleOf": 0.1}, 61, 61),
        # Arrays and objects are not counted.
        ({"type": "array", "items": BOOLEAN, "maxItems": 2}, 1, 7),
        (closed("a", a=BOOLEAN, b={"enum": [1, 2, 3]}), 1, 8),
        ({"enum": [[1], [2], {"a": 1}, "x", "y"]}, 2, 4),
        ({"enum": ["a", "b", "c"]}, 3, 3),
        ({"enum": ["a", 1, None, "b", 1.0]}, 4, 4),
        ({"type": ["null", "boolean"], "maxLength": 0}, 3, 3),
        (matching("^[ab]$"), 2, 2),
        (matching("^[a-c]?$"), 4, 4),
        ({"type": "string", "maxLength": 1, "pattern": "^(a|b|cc)*$"}, 3, 3),
        ({"anyOf": [matching("^[ab]$"), matching("^[bc]$")]}, 2, 3),
        (
            {
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": 3},
                    {"enum": [2, 3, 4]},
                ]
            },
            4,
            5,
        ),
        ({**UNIQUE, "items": BOOLEAN}, 1, 5),
        ({"type": "array", "prefixItems": [BOOLEAN], "items": False}, 1, 3),
        ({**OBJECTS[0], "properties": {"a": BOOLEAN}}, 1, 6),
        (
            {
                "type": "array",
                "items": matching("^[ab]$"),
                "minItems": 1,
                "maxItems": 1,
            },
            1,
            2,
        ),
    ],
)
def test_more_items_than_values_are_refused_at_admission(items, enough, values):
    compiler, _ = walker("bytes")
    compiler.compile(spec_of({**UNIQUE, "items": items, "minItems": enough}))
    with pytest.raises(GrammarError):
        compiler.compile(spec_of({**UNIQUE, "items": items, "minItems": values + 1}))


OPEN = [
    {"type": "object"},
    {"type": "object", "properties": {"a": ONE}, "additionalProperties": True},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"type": "object", "propertyNames": matching("^[ab]$")},
    {**CLOSED, "patternProperties": {"^[ab]$": ONE}},
    {**CLOSED, "patternProperties": {"^b$": ONE}, "properties": {"a": ONE}},
    {
        "patternProperties": {"^b$": ONE},
        "additionalProperties": False,
        "type": "object",
    },
    {"type": "object", "required": ["a"]},
]
COUNTED = [
    {**closed(a=BOOLEAN, b=ONE, c=ONE), "minProperties": 2},
    {**closed(a=BOOLEAN, b=ONE, c=ONE), "maxProperties": 2},
]
ANY = [
    {},
    {"type": "array"},
    {"type": ["array", "integer"]},
    {"not": {"type": "object"}},
    {"minLength": 2},
]
ANY += [
    closed(a={}),
    {"type": "array", "prefixItems": [{"type": "integer"}]},
    {"title": "Any"},
]
INSIDE = {
    "itself": lambda item: item,
    "union": lambda item: either({"type": "integer"}, closed(z=ONE), item),
    "one type of several": lambda item: {"oneOf": [{"type": "null"}, item]},
    "array": lambda item: {"type": "array", "items": item},
    "tuple": lambda item: {
        "type": "array",
        "prefixItems": [{"type": "string"}, item],
        "items": False,
    },
    "property": lambda item: closed("q", q=item),
    "unique array": lambda item: {**UNIQUE, "items": item},
    "reference": lambda item: {"$ref": "#/properties/b/$defs/one"},
}
WANTED = [("names", OPEN), ("counted", COUNTED), ("any type", ANY)]


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize(
    ("says", "item"), [(says, item) for says, some in WANTED for item in some]
)
def test_items_whose_equals_may_have_other_texts_are_refused_with_their_place(
    says, item, inside
):
    """There are other arrays of distinct items before and after, which are fine."""
    fine = {**UNIQUE, "items": {"type": "integer"}}
    wrong = {**UNIQUE, "items": INSIDE[inside](item)}
    wrong["$defs"] = {"one": item}
    schema = closed("a", "b", "c", a=fine, b=wrong, c={**fine, "minItems": 2})
    with pytest.raises(UnsupportedSpecError) as caught:
        walker("bytes")[0].compile(spec_of(schema, strict=True))
    assert caught.value.where == "#/properties/b/uniqueItems", str(caught.value)
    assert says in caught.value.what
    for harmless in ({**wrong, "maxItems": 1}, {**wrong, "uniqueItems": False}) * (
        inside != "unique array"
    ):
        walker("bytes")[0].compile(
            spec_of(closed("a", "b", a=fine, b=harmless), strict=True)
        )


def test_the_place_is_that_of_the_keyword_where_others_apply_with_it():
    fine = {**UNIQUE, "items": {"type": "integer"}}
    item = {"items": {"type": "object"}, "type": "array"}
    for wrong, place in (
        (
            {"allOf": [{"uniqueItems": True}, item]},
            "#/properties/b/allOf/0/uniqueItems",
        ),
        (
            {**item, "anyOf": [{"minItems": 2}, {"uniqueItems": True}]},
            "#/properties/b/anyOf/1/uniqueItems",
        ),
        ({"$ref": "#/$defs/a"}, "#/$defs/a/uniqueItems"),
    ):
        schema = closed("a", "b", a={"allOf": [fine]}, b=wrong) | {
            "$defs": {"a": {**UNIQUE, **item}}
        }
        with pytest.raises(UnsupportedSpecError) as caught:
            walker("bytes")[0].compile(spec_of(schema, strict=True))
        assert caught.value.where == place


def test_without_strict_objects_must_say_that_they_are_closed():
    items = {"type": "object", "properties": {"a": ONE}}
    compiler, _ = walker("bytes")
    compiler.compile(spec_of({**UNIQUE, "items": items}, strict=True))
    compiler.compile(
        spec_of({**UNIQUE, "items": {**items, "additionalProperties": False}})
    )
    with pytest.raises(UnsupportedSpecError, match="additionalProperties: false"):
        compiler.compile(spec_of({**UNIQUE, "items": items}))


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"type": "string"}, "contains": {"const": "a"}},
        {"items": {"enum": ["a", 1]}, "contains": {"const": "a"}},
        {
            "prefixItems": [{"type": "integer"}],
            "items": {"type": "string"},
            "contains": {"const": "a"},
        },
    ],
)
def test_contains_next_to_unique_items_is_refused(schema):
    with pytest.raises(UnsupportedSpecError, match="`contains`"):
        walker("bytes")[0].compile(spec_of({**UNIQUE, **schema}))


COMPETING = [
    {"prefixItems": [matching("^[ab]$"), matching("^a$")], "minItems": 2},
    {"prefixItems": [{"enum": ["a", "b", "c"]}, {"enum": ["a"]}], "minItems": 2},
    {
        "prefixItems": [{"type": "string"}, matching("^a$"), matching("^b$")],
        "minItems": 3,
    },
    {"prefixItems": [{"type": "string"}], "items": matching("^[ab]$"), "minItems": 3},
]


@pytest.mark.parametrize("schema", COMPETING)
def test_items_that_may_take_the_values_of_later_ones_are_refused(schema):
    with pytest.raises(UnsupportedSpecError) as caught:
        walker("bytes")[0].compile(spec_of({**UNIQUE, "items": False, **schema}))
    assert caught.value.where == "#/uniqueItems"


@pytest.mark.parametrize("schema", WALKED)
def test_tokens_and_bytes_allow_the_same(schema):
    compiler, _ = walker("crossing")
    for seed in range(2):
        grammar = compiler.compile(
            spec_of(schema, strict=True, whitespace=["compact", "flexible"][seed])
        )
        tokens_fit_bytes(compiler, grammar, Random(seed), 30)


def test_other_grammars_have_no_check():
    compiler, _ = walker("bytes")
    for schema in (
        {**UNIQUE, "items": {"enum": ["a", "b"]}},
        {**UNIQUE, "maxItems": 1},
        {"type": "array"},
    ):
        grammar = compiler.compile(spec_of(schema))
        assert (
            compiler.backend("llguidance").start(grammar, BYTES.stop_token_ids).distinct
            is None
        )


def test_a_client_grammar_is_not_checked_for_what_its_comment_says():
    compiler, walks = walker("bytes")
    grammar = compiler.compile(
        OutputSpec.grammar('start: "a" "a"\n// distinct\n', syntax="lark")
    )
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


def test_a_fork_replays_nothing_and_goes_its_own_way(monkeypatch):
    """Searches for an end make a thousand of them."""
    compiler, _ = walker("bytes")
    grammar = compiler.compile(
        spec_of({**UNIQUE, "items": {**UNIQUE, "items": {"type": "integer"}}})
    )
    matcher = compiler.backend("llguidance").start(grammar, BYTES.stop_token_ids)
    assert matcher.accept_text(b"[[1,2],[3,")
    with monkeypatch.context() as patched:
        patched.setattr(Track, "move", None)
        others = [matcher.fork() for _ in range(3)]
    for other, number in zip(others, (b"4", b"5", b"44"), strict=True):
        assert not other.fork().accept_text(b"3]")
        assert not other.fork().accept_text(number + b",3,")
        assert other.fork().accept_text(number + b"],[")
    assert others[0].accept_text(b"4],[4,3],")
    assert not others[0].fork().accept_text(b"[3,4]")
    assert others[1].accept_text(b"5],[4,3],[3,4]]")
    assert matcher.accept_text(b"4]]")
