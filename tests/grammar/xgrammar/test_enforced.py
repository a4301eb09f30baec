"""What xgrammar is trusted with: it takes no text that a schema or a regex forbids. All
else is refused."""

from __future__ import annotations

import json
import random
import re

import pytest
from instances import near, text_of
from oracle import oracle
from schemas import TEXTS, random_pattern
from xgrammar_specs import accepts, stops_of

from guided_plugin.errors import GrammarError, UnsupportedSpecError
from guided_plugin.spec import OutputSpec

NODE = {"$ref": "#/$defs/Node"}
TREE = {
    **NODE,
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {
                "v": {"type": "integer", "minimum": -20},
                "l": NODE,
                "é\"'": {"const": "x/\n"},
            },
            "required": ["v"],
        }
    },
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "minimum": -3, "maximum": 12}, "-3 0 9 12", "-4 13 1.5 00"),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, "1 2", "0 3"),
        ({"type": ["integer", "null"]}, "1 null", '"a" 1.5 true'),
        ({"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 2}, "[1] [1,1]", "[] [1,2]"),
        ({"type": "object", "additionalProperties": {"type": "null"}}, '{} {"a":null}', '{"a":1} []'),
        ({"anyOf": [{"const": 1}, {"type": "array", "items": {"const": 2}}]}, "1 [] [2,2]", "2 [1]"),
        ({"type": "array", "items": {"$ref": "#"}}, "[] [[],[[]]]", "[1] ]"),
        ({"type": "boolean", "description": "x", "default": 1, "format": "x"}, "true false", "1"),
        ({"enum": ["a b", "é\"\\", 7, True, None]}, '"é\\"\\\\" 7 true null', '"a" 1 false'),
        (TREE, '{"v":-20} {"v":1,"l":{"v":2}}', '{} {"v":-21} {"v":1,"w":1} {"l":{"v":1}}'),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)  # fmt: skip
def test_enforced(byte_backend, schema, good, bad):
    spec = OutputSpec.json_schema(schema)
    assert [
        text for text in good.split() if not accepts(byte_backend, spec, text)
    ] == []
    assert [text for text in bad.split() if accepts(byte_backend, spec, text)] == []


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"type": "string", "minLength": 1}, "#/minLength"),
        ({"type": "string", "pattern": "a"}, "#/pattern"),
        ({"type": "string", "format": "date"}, "#/format"),
        ({"type": "number", "minimum": 1}, "#/minimum"),
        ({"type": "integer", "multipleOf": 3}, "#/multipleOf"),
        ({"type": "integer", "minimum": 1.5}, "#/minimum"),
        ({"type": "integer", "maximum": 2**60}, "#/maximum"),
        ({"type": "integer", "exclusiveMinimum": True, "minimum": 0}, "#/exclusiveMinimum"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "#/uniqueItems"),
        ({"type": "array", "items": {"type": "null"}, "prefixItems": [{"const": 1}]}, "#/prefixItems"),
        ({"type": "array"}, "#"),
        ({"type": "array", "items": True}, "#"),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "#/properties/a/not"),
        ({"type": "object", "required": ["b"]}, "#/required"),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False,
          "required": ["b"]}, "#/required"),
        ({"type": "object", "properties": {}, "patternProperties": {"a": {}}}, "#/patternProperties"),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"const": 1}}, "#/properties"),
        ({"type": ["object", "null"]}, "#/type"),
        ({"minimum": 1}, "#/minimum"),
        ({}, "#"),
        (True, "#"),
        ({"oneOf": [{"const": 1}]}, "#/oneOf"),
        ({"enum": [1.5]}, "#/enum"),
        ({"const": {"a": 1}}, "#/const"),
        ({"enum": [2**60]}, "#/enum"),
        ({"const": 1, "type": "integer"}, "#/type"),
        ({"anyOf": [{"const": 1}], "not": {"const": 1}}, "#/not"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "#/$ref"),
        ({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"const": 1}}}, "#/$ref"),
        ({"$ref": "#/$defs/a/items", "$defs": {"a": {"type": "array", "items": {"const": 1}}}}, "#/$ref"),
        ({"type": "array", "items": {"$id": "x:y", "const": 1}}, "#/items/$id"),
    ],
    ids=str,
)  # fmt: skip
def test_refused_with_its_place(byte_backend, schema, where):
    with pytest.raises(
        UnsupportedSpecError, match="is not enforced by xgrammar"
    ) as caught:
        byte_backend.compile(OutputSpec.json_schema(schema, backend="xgrammar"))
    assert caught.value.where == where
    assert caught.value.hint


def test_objects_must_be_closed_where_specs_do_not_close_them(byte_backend):
    schema = {"type": "object", "properties": {"a": {"const": 1}}}
    with pytest.raises(UnsupportedSpecError, match="next to additional ones"):
        byte_backend.compile(OutputSpec.json_schema(schema, strict=False))
    closed = OutputSpec.json_schema(
        {**schema, "additionalProperties": False}, strict=False
    )
    assert accepts(byte_backend, closed, '{"a":1}')
    assert not accepts(byte_backend, closed, '{"a":1,"b":1}')


@pytest.mark.parametrize(
    "spec",
    [
        OutputSpec.grammar('start: "a"', "lark"),
        OutputSpec.structural_tag({"format": {"type": "const_string", "value": "a"}}),
    ],
    ids=lambda spec: spec.kind,
)
def test_other_languages_are_refused(byte_backend, spec):
    with pytest.raises(UnsupportedSpecError, match="use the backend llguidance"):
        byte_backend.compile(spec)


def random_schema(chance: random.Random, depth: int = 0):
    """A schema on the list; deeper ones hold less."""
    kinds = ["integer", "string", "scalar", "enum", "array", "map", "object", "anyOf"]
    match chance.choice(kinds[: 4 if depth > 2 else None]):
        case "integer":
            low = chance.randint(-150, 120)
            bounds = {
                chance.choice(["minimum", "exclusiveMinimum"]): low,
                chance.choice(["maximum", "exclusiveMaximum"]): low
                + chance.randint(2, 130),
            }
            return {
                "type": "integer",
                **dict(chance.sample(list(bounds.items()), chance.randint(0, 2))),
            }
        case "string":
            return {"type": "string"}
        case "scalar":
            return {"type": chance.sample(["null", "boolean", "number", "string"], 2)}
        case "enum":
            return {
                "enum": chance.sample(
                    ["a", 'q"\\/', "é", "\x01", 0, -5, 17, True, None], 3
                )
            }
        case "array":
            low = chance.randint(0, 2)
            counts = {"minItems": low, "maxItems": low + chance.randint(0, 2)}
            counts = dict(chance.sample(list(counts.items()), chance.randint(0, 2)))
            return {
                "type": "array",
                "items": random_schema(chance, depth + 1),
                **counts,
            }
        case "map":
            return {
                "type": "object",
                "additionalProperties": random_schema(chance, depth + 1),
            }
        case "object":
            names = chance.sample(["a", "b c", 'x"', "é", "/~"], chance.randint(1, 3))
            properties = {name: random_schema(chance, depth + 1) for name in names}
            required = chance.sample(names, chance.randint(0, len(names)))
            return {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            }
        case _:
            return {"anyOf": [random_schema(chance, depth + 1) for _ in range(2)]}


@pytest.mark.parametrize("block", range(3))
def test_random_schemas_agree_with_the_oracle(byte_backend, block):
    valid = 0
    for seed in range(block * 40, block * 40 + 40):
        schema = random_schema(random.Random(seed))
        judge = oracle(schema)
        grammar = byte_backend.compile(OutputSpec.json_schema(schema))
        for value in near(schema, count=60, seed=seed):
            try:
                text = text_of(value).encode()
            except UnicodeEncodeError:
                continue
            matcher = byte_backend.start(grammar, stops_of(byte_backend))
            taken = matcher.accept_text(text) and matcher.complete
            # Where a text of an enum is spelt in another way, or names in another
            # order, it is refused.
            assert taken <= judge(value), (schema, text)
            valid += taken
    assert valid > 300


def overlapping(chance):
    """Alternatives that begin alike, anchored on both sides."""
    options = [random_pattern(chance, 2, False) for _ in range(chance.randint(2, 3))]
    return tuple(
        f"{start}(?:{'|'.join(side)}){end}"
        for side, start, end in zip(
            zip(*options, strict=True), ("^", r"\A"), ("$", r"\Z"), strict=True
        )
    )


@pytest.mark.parametrize(
    "make", [lambda chance: random_pattern(chance, 3, False), overlapping]
)
def test_random_regexes_agree_with_re(byte_backend, make):
    compiled = 0
    for seed in range(120):
        chance = random.Random(seed)
        pattern, python = make(chance)
        try:
            grammar = byte_backend.compile(OutputSpec.regex(pattern))
        except GrammarError:
            continue
        compiled += 1
        full = re.compile(rf"\A(?:{python})\Z")
        for text in chance.sample(TEXTS, 20):
            matcher = byte_backend.start(grammar, stops_of(byte_backend))
            taken = matcher.accept_text(text.encode()) and matcher.complete
            assert taken == (full.search(text) is not None), (pattern, text)
    assert compiled > 60


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"[\x60b]", "`b", "a"),
        (r"\s", "\ufeff\u3000\n", "a"),
        (r"\w", "a_9", "é"),
        (".", "aé\x85\ud7ff\ue000\U0010ffff", "\n\u2028"),
        ("[^]", "a\n\x80\u07ff\u0800\uffff😀", ""),
        ("^a$", "a", "b"),
        (r"\ud83d\ude00", "😀", "a"),
        (r"[\"\\\]^-]", '"\\]^-', "a["),
    ],
)
def test_a_regex_means_what_the_dialect_says(byte_backend, pattern, good, bad):
    spec = OutputSpec.regex(pattern)
    assert [char for char in good if not accepts(byte_backend, spec, char)] == []
    assert [char for char in bad if accepts(byte_backend, spec, char)] == []


@pytest.mark.parametrize(
    "pattern", [".", "[^a]", r"\W", r"[\x80-\u{10ffff}]", "^(?:.|a)$"]
)
@pytest.mark.parametrize(
    "data",
    [
        b"\xe0\x84\xb5",
        b"\xf0\x89\x8c\xbe",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
    ],
)
def test_bytes_that_are_not_utf_8(byte_backend, pattern, data):
    assert not accepts(byte_backend, OutputSpec.regex(pattern), data)


@pytest.mark.parametrize(
    "pattern", ["(?=a)a", "a(?!b)", "[]", r"\p{L}", r"[^a\P{L}]", "a^b"]
)
def test_regexes_that_are_refused(byte_backend, pattern):
    with pytest.raises(UnsupportedSpecError) as caught:
        byte_backend.compile(OutputSpec.regex(pattern))
    assert caught.value.where == "regex"
    assert caught.value.hint
