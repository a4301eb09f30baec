"""Small schemas, by family, that together use every keyword of JSON Schema, drafts 4 to
2020-12.

Each has a few instances to start from, valid and not: what random building would seldom
find.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

__all__ = ["FAMILIES", "Case"]

DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
DRAFT_6 = {"$schema": "http://json-schema.org/draft-06/schema#"}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
DRAFT_2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
DRAFT_2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}

INTEGER = {"type": "integer"}
STRING = {"type": "string"}
NULL = {"type": "null"}


class Case(NamedTuple):
    """A schema, and instances to start from."""

    schema: Any
    seeds: tuple[Any, ...] = ()


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


TYPES = {
    "true": Case(True),
    "empty": Case({}),
    "each type": Case({"enum": [None, True, 0, "", [], {}]}),
    "types in a list": Case({"type": ["null", "boolean", "integer"]}, (1.0, 1.5)),
    "integer and number": Case({"type": ["integer", "number"]}, (1.5, -0.0)),
    "integer of draft 4": Case({**DRAFT_4, "type": "integer"}, (1.0, 7)),
    "enum across types": Case(
        {"enum": [1, "1", True, None, [1, {"a": 1}], {"b": [], "a": 0}, 1.5]}
    ),
    "enum against a type": Case({"type": "string", "enum": ["a", 1, "b", None]}),
    "const of an object": Case(
        {"const": {"a": [1, 2.0], "b": {"c": None}}},
        ({"b": {"c": None}, "a": [1, 2]}, {"a": [1, 2], "b": {}}),
    ),
    "const false and 0": Case(
        {"anyOf": [{"const": False}, {"const": 1}]}, (0, True, 1.0)
    ),
    "const in draft 4": Case({**DRAFT_4, "type": "string", "const": "a"}, ("b",)),
    "annotations": Case(
        {
            **STRING,
            "title": "t",
            "description": "d",
            "default": 1,
            "x-own": 2,
            "format": "?",
        }
    ),
}

NUMBERS = {
    "range": Case(
        {"type": "number", "minimum": -1.5, "maximum": 20.25},
        (-1.5, 20.25, 20.26, -1.51, 0),
    ),
    "exclusive": Case(
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        (0, 1, 0.001, 0.999, -0.0),
    ),
    "exclusive of draft 4": Case(
        {
            **DRAFT_4,
            "type": "number",
            "minimum": 5,
            "exclusiveMinimum": True,
            "maximum": 9,
        },
        (5, 5.1, 9),
    ),
    "integer range": Case(
        {"type": "integer", "minimum": -12, "maximum": 105}, (-12, -13, 105, 106, 99.0)
    ),
    "integers between fractions": Case(
        {"type": "integer", "minimum": 1.2, "maximum": 3.9}, (1, 2, 3, 4)
    ),
    "multiple of tens": Case(
        {"type": "integer", "multipleOf": 100}, (0, 100, 150, -200, 1000)
    ),
    "multiple of a hundredth": Case(
        {"type": "number", "multipleOf": 0.01}, (1.23, 1.234, 19.99, 0.1)
    ),
    "multiple of seven": Case(
        {"type": "integer", "multipleOf": 7}, (0, 7, 14, 15, -21, 700)
    ),
    "multiple and range": Case(
        {"multipleOf": 10, "minimum": 5, "maximum": 45, "type": "integer"}, (10, 50, 40)
    ),
    "two ranges": Case(
        {"anyOf": [{"maximum": 0}, {"minimum": 10}], "type": "number"}, (0, 5, 10)
    ),
    "not a range": Case(
        {"type": "number", "not": {"minimum": 3, "maximum": 4}}, (3, 3.5, 2.9, 4.1)
    ),
    "not an integer": Case(
        {"type": "number", "not": {"type": "integer"}}, (1, 1.0, 1.5, 0)
    ),
}

STRINGS = {
    "length in code points": Case(
        {**STRING, "minLength": 2, "maxLength": 4}, ("é€😀", "😀", "\n\n", '"\\"')
    ),
    "length and pattern": Case(
        {**STRING, "pattern": "^[a-c]+$", "maxLength": 3}, ("abc", "abca", "")
    ),
    "searched pattern": Case(
        {**STRING, "pattern": "b+c"}, ("abbcd", "bc", "ac", "\nbc\n")
    ),
    "pattern at the end": Case({**STRING, "pattern": "x$"}, ("x", "ax", "xa", "x\n")),
    "pattern with anchors in groups": Case(
        {**STRING, "pattern": "(^a|b$)"}, ("ab", "xb", "bx", "a")
    ),
    "classes": Case(
        {**STRING, "pattern": r"^\w\d\s\D$"}, ("a1 x", "é1 x", "_9\tx", "a1\u00a0x")
    ),
    "lookahead": Case(
        {**STRING, "pattern": "^(?!ab)[a-z]{2,4}$"}, ("ab", "ac", "abc", "bab")
    ),
    "escapes in a pattern": Case(
        {**STRING, "pattern": r'^["\\/\n]+$'}, ('"', "\\", "\n", "a")
    ),
    "two patterns": Case(
        {"allOf": [{"pattern": "a"}, {"pattern": "b"}], **STRING}, ("ab", "ba", "a")
    ),
    "not a pattern": Case({**STRING, "not": {"pattern": "^x"}}, ("x", "ax", "")),
    "not an enum": Case(
        {**STRING, "not": {"enum": ["a", "bc"]}}, ("a", "b", "bc", "abc")
    ),
    "length of draft 4": Case(
        {**DRAFT_4, **STRING, "minLength": 1, "maxLength": 2}, ("", "ab", "abc")
    ),
}

ARRAYS = {
    "items and counts": Case(
        {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3}
    ),
    "prefix": Case(
        {"type": "array", "prefixItems": [INTEGER, STRING], "items": NULL},
        ([1, "a", None],),
    ),
    "closed prefix": Case(
        {"type": "array", "prefixItems": [INTEGER, STRING], "items": False},
        ([1], [1, "a"]),
    ),
    "prefix with counts": Case(
        {
            "type": "array",
            "prefixItems": [INTEGER],
            "items": STRING,
            "minItems": 2,
            "maxItems": 3,
        }
    ),
    "items of draft 7": Case(
        {
            **DRAFT_7,
            "type": "array",
            "items": [INTEGER, STRING],
            "additionalItems": NULL,
        },
        ([1, "a", None],),
    ),
    "prefix in draft 7": Case(
        {**DRAFT_7, "type": "array", "prefixItems": [INTEGER]}, (["a"],)
    ),
    "contains": Case(
        {"type": "array", "contains": {"const": 5}}, ([5], [1, 5], [1], [])
    ),
    "unique out of few": Case(
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        (["a", "b"], ["a", "a"]),
    ),
    "unique at all": Case(
        {"type": "array", "items": INTEGER, "uniqueItems": True}, ([1, 2], [1, 1])
    ),
}

OBJECTS = {
    "required and not": Case(
        _object(("a",), a=INTEGER, b=STRING), ({"b": "x", "a": 1, "c": 0},)
    ),
    "closed": Case(
        {**_object(("b",), a=INTEGER, b=STRING), "additionalProperties": False}
    ),
    "typed rest": Case(
        {**_object((), a=STRING), "additionalProperties": INTEGER},
        ({"b": 1, "a": "x"},),
    ),
    "required without properties": Case(
        {"type": "object", "required": ["p", "q"]}, ({"q": 1, "p": 2},)
    ),
    "forbidden property": Case(
        {"properties": {"a": False, "b": True}}, ({"a": 1}, {"b": 1})
    ),
    "patterns that cross": Case(
        {
            "type": "object",
            "patternProperties": {"^a": STRING, "b$": {"minLength": 2}},
            "additionalProperties": INTEGER,
        },
        ({"ab": "xx"}, {"ab": "x"}, {"a": "x"}, {"b": "x"}, {"c": 1}),
    ),
    "patterns over properties": Case(
        {"properties": {"id1": INTEGER}, "patternProperties": {"^id": {"maximum": 5}}},
        ({"id1": 6}, {"id2": "a"}),
    ),
    "names": Case(
        {"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}},
        ({"ab": 1}, {"A": 1}),
    ),
    "names of a list": Case(
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "minProperties": 1},
        ({"a": 1}, {"c": 1}, {}),
    ),
    "counted": Case(
        {**_object(("a",), a=INTEGER), "minProperties": 2, "maxProperties": 3},
        ({"a": 1, "b": 2},),
    ),
    "escaped names": Case(
        _object(('q"\\', "é\n"), **{'q"\\': INTEGER, "é\n": STRING}),
        ({"é\n": "", 'q"\\': 1},),
    ),
    "dependent required": Case(
        {"type": "object", "dependentRequired": {"a": ["b", "c"]}}, ({"a": 1, "b": 1},)
    ),
    "dependent schemas": Case(
        {"type": "object", "dependentSchemas": {"a": _object(("b",), b=INTEGER)}},
        ({"a": 1, "b": 2}, {"a": 1}),
    ),
    "dependencies of draft 7": Case(
        {
            **DRAFT_7,
            "type": "object",
            "dependencies": {"a": ["b"], "c": {"minProperties": 2}, "d": False},
        },
        ({"a": 1, "b": 1}, {"c": 1}, {"d": 1}),
    ),
    "dependent required in draft 7": Case(
        {**DRAFT_7, "type": "object", "dependentRequired": {"a": ["b"]}}
    ),
}

FORMATS = {
    name: Case({**STRING, "format": name})
    for name in (
        "date-time",
        "date",
        "time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
    )
}
FORMATS["format and length"] = Case(
    {**STRING, "format": "ipv4", "maxLength": 8}, ("1.2.3.4", "10.20.30.4")
)
FORMATS["not a format"] = Case(
    {**STRING, "not": {"format": "ipv4"}}, ("1.2.3.4", "1.2.3", "")
)
FORMATS["unknown format"] = Case({**STRING, "format": "phone"}, ("x",))

_TREE = {
    "type": "object",
    "properties": {"v": INTEGER, "kids": {"type": "array", "items": {"$ref": "#"}}},
}

COMBINED = {
    "oneOf apart": Case(
        {"oneOf": [_object(("k",), k={"const": 1}), _object(("k",), k={"const": "x"})]}
    ),
    "oneOf that overlaps": Case({"oneOf": [INTEGER, {"minimum": 2}]}, (1, 2, 2.5, "a")),
    "oneOf of objects": Case(
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ({"a": 1}, {"a": 1, "b": 1}, {}),
    ),
    "anyOf next to type": Case(
        {"type": "string", "anyOf": [{"maxLength": 1}, {"pattern": "^ab"}]},
        ("a", "abc"),
    ),
    "allOf of objects": Case(
        {
            "allOf": [
                _object(("a",), a=INTEGER),
                _object(("b",), a={"minimum": 3}, b=STRING),
            ]
        },
        ({"a": 3, "b": ""},),
    ),
    "allOf with a closed part": Case(
        {
            "allOf": [
                {**_object((), a=INTEGER), "additionalProperties": False},
                _object((), b=STRING),
            ]
        },
        ({"a": 1}, {"b": "x"}),
    ),
    "not a type": Case({"not": {"type": ["object", "string"]}}),
    "not a required": Case(
        {"type": "object", "not": {"required": ["a"]}}, ({"a": 1}, {"b": 1})
    ),
    "not not": Case({"not": {"not": INTEGER}}),
    "not an object": Case(
        {"type": "object", "not": _object((), a=INTEGER)}, ({"a": "x"}, {"a": 1}, {})
    ),
    "if then else": Case(
        {
            "if": _object(("t",), t={"const": "n"}),
            "then": {"required": ["n"]},
            "else": {"required": ["m"]},
        },
        ({"t": "n", "n": 1}, {"t": "n"}, {"t": "x", "m": 1}, {"m": 1}),
    ),
    "if without else": Case(
        {"if": INTEGER, "then": {"minimum": 10}}, (9, 10, 9.5, "a")
    ),
    "if in draft 6": Case({**DRAFT_6, "if": INTEGER, "then": False}, (1,)),
    "if alone": Case({"type": "integer", "if": {"minimum": 5}}, (4, 5)),
}

_POSITION = {"type": "array", "minItems": 2, "items": {"type": "number"}}
_LINE = {"type": "array", "items": _POSITION, "minItems": 2}
_RING = {"type": "array", "items": _POSITION, "minItems": 4}
_COORDINATES = {
    "Point": _POSITION,
    "LineString": _LINE,
    "Polygon": {"type": "array", "items": _RING},
    "MultiPoint": {"type": "array", "items": _POSITION},
    "MultiLineString": {"type": "array", "items": _LINE},
    "MultiPolygon": {"type": "array", "items": {"type": "array", "items": _RING}},
}
_POINT = {"type": "Point", "coordinates": [1.5, -2]}
_FEATURE = {"type": "Feature", "geometry": _POINT, "properties": None}


def _official(kind: str, name: str, value: Any) -> dict[str, Any]:
    """A kind of geometry as geojson.org writes it: closed in itself."""
    boxed = {"bbox": {"type": "array", "minItems": 4, "items": {"type": "number"}}}
    return {
        "title": f"GeoJSON {kind}",
        **_object(
            ("type", name), type={**STRING, "enum": [kind]}, **{name: value}, **boxed
        ),
    }


def _tagged(tag: str, *names: str, **branches: Any) -> list[dict[str, Any]]:
    """Kinds of objects, which describe the property that tells them apart and do not
    require it."""
    return [
        {"properties": {tag: {"enum": [value]}, **dict.fromkeys(names, child)}}
        for value, child in branches.items()
    ]


_EIGHT = {
    f"{letter}{letter}": {"enum": [number]} for number, letter in enumerate("abcdefgh")
}
_STARTING = [
    {
        "properties": {
            "kind": {**STRING, "pattern": f"^{letter}"},
            "n": {"enum": [number]},
            "m": {"maximum": number},
        }
    }
    for number, letter in enumerate("abcdefgh")
]

UNIONS = {
    "GeoJSON whose types the parent requires": Case(
        {
            **DRAFT_4,
            "type": "object",
            "required": ["type"],
            "properties": {"bbox": {"type": "array", "items": {"type": "number"}}},
            "oneOf": [
                {"$ref": f"#/definitions/{name}"}
                for name in ("geometry", "collection", "feature", "features")
            ],
            "definitions": {
                "geometry": {
                    "type": "object",
                    "required": ["type", "coordinates"],
                    "oneOf": [
                        {"properties": {"type": {"enum": [kind]}, "coordinates": value}}
                        for kind, value in _COORDINATES.items()
                    ],
                },
                "collection": {
                    "required": ["geometries"],
                    "properties": {
                        "type": {"enum": ["GeometryCollection"]},
                        "geometries": {
                            "type": "array",
                            "items": {"$ref": "#/definitions/geometry"},
                        },
                    },
                },
                "feature": {
                    "required": ["geometry", "properties"],
                    "properties": {
                        "type": {"enum": ["Feature"]},
                        "geometry": {
                            "anyOf": [NULL, {"$ref": "#/definitions/geometry"}]
                        },
                        "properties": {"type": ["object", "null"]},
                        "id": {},
                    },
                },
                "features": {
                    "required": ["features"],
                    "properties": {
                        "type": {"enum": ["FeatureCollection"]},
                        "features": {
                            "type": "array",
                            "items": {"$ref": "#/definitions/feature"},
                        },
                    },
                },
            },
        },
        (
            *(
                _POINT,
                _FEATURE,
                {"type": "FeatureCollection", "features": [_FEATURE]},
                {**_POINT, "bbox": [1]},
            ),
            *(
                {"type": "GeometryCollection", "geometries": [_POINT]},
                {"coordinates": [1, 2]},
                {**_POINT, "type": "x"},
            ),
            {"type": "Polygon", "coordinates": [[[0, 0], [1, 0], [1, 1], [0, 0]]]},
        ),
    ),
    "a feature as geojson.org has it": Case(
        {
            **DRAFT_7,
            **_object(
                ("type", "properties", "geometry"),
                type={**STRING, "enum": ["Feature"]},
                id={"oneOf": [{"type": "number"}, STRING]},
                properties={"oneOf": [NULL, {"type": "object"}]},
                geometry={
                    "oneOf": [
                        NULL,
                        *(
                            _official(kind, "coordinates", value)
                            for kind, value in _COORDINATES.items()
                        ),
                        _official(
                            "GeometryCollection",
                            "geometries",
                            {
                                "type": "array",
                                "items": {
                                    "oneOf": [
                                        _official("Point", "coordinates", _POSITION)
                                    ]
                                },
                            },
                        ),
                    ]
                },
            ),
        },
        (
            _FEATURE,
            {**_FEATURE, "id": 1, "geometry": None},
            {**_FEATURE, "properties": 1},
            {"type": "Feature"},
        ),
    ),
    "eight kinds": Case(
        {
            "type": "object",
            "required": ["kind"],
            "oneOf": _tagged("kind", "n", "m", **_EIGHT),
        },
        (
            {"kind": "aa"},
            {"kind": "bb", "n": 1, "m": 1},
            {"kind": "bb", "n": 2},
            {"n": 1},
            {"kind": "x"},
        ),
    ),
    "required in another part": Case(
        {
            "allOf": [
                {
                    "allOf": [
                        {"type": "object"},
                        {"oneOf": _tagged("kind", "n", **_EIGHT)},
                    ]
                },
                {"$ref": "#/$defs/base"},
            ],
            "$defs": {"base": {"properties": {"kind": STRING}, "required": ["kind"]}},
        },
        ({"kind": "aa", "n": 0}, {"kind": "aa", "n": 1}, {"n": 0}),
    ),
    "required inside a property": Case(
        {
            "allOf": [
                _object(("meta",), meta={"required": ["kind"]}),
                _object(
                    (),
                    meta={
                        "type": "object",
                        "oneOf": _tagged("kind", "n", "m", **_EIGHT),
                    },
                ),
            ]
        },
        (
            {"meta": {"kind": "aa", "n": 0}},
            {"meta": {"n": 0}},
            {"meta": {"kind": "bb", "m": 0}},
        ),
    ),
    "told apart inside a property": Case(
        {
            **_object(("meta",), meta=_object(("kind",))),
            "oneOf": [
                {
                    "properties": {
                        "meta": {"properties": {"kind": {"const": kind}}},
                        "n": value,
                        "m": value,
                    }
                }
                for kind, value in _EIGHT.items()
            ],
        },
        (
            {"meta": {"kind": "aa"}, "n": 0},
            {"meta": {"kind": "aa"}, "n": 1},
            {"meta": {}, "n": 0},
            {"n": 0},
        ),
    ),
    "patterns": Case(
        {"type": "object", "required": ["kind"], "oneOf": _STARTING},
        (
            {"kind": "a"},
            {"kind": "bx", "n": 1},
            {"kind": "bx", "n": 0},
            {"kind": "x"},
            {"kind": 1},
            {"n": 1},
        ),
    ),
    "patterns of what the parent calls a string": Case(
        {
            **_object(("kind",), kind=STRING),
            "oneOf": [
                {"properties": {"kind": {"pattern": f"^{x}"}, "n": value}}
                for x, value in zip("abcdefgh", _EIGHT.values(), strict=True)
            ],
        },
        (
            {"kind": "a"},
            {"kind": "bx", "n": 1},
            {"kind": "bx", "n": 0},
            {"kind": 1},
            {"n": 1},
        ),
    ),
    "formats": Case(
        {
            "required": ["id"],
            "type": "object",
            "oneOf": [
                {
                    "properties": {
                        "id": {**STRING, "format": name},
                        "n": {"enum": [name]},
                    }
                }
                for name in ("uuid", "ipv4", "date", "email")
            ],
        },
        (
            {"id": "1.2.3.4", "n": "ipv4"},
            {"id": "1.2.3.4", "n": "date"},
            {"id": "a@b.c"},
            {"id": "x"},
        ),
    ),
    "unions of unions": Case(
        {
            "type": "object",
            "required": ["kind"],
            "oneOf": [
                {"oneOf": _STARTING[:3]},
                {"anyOf": _STARTING[3:5]},
                {"oneOf": _STARTING[5:], "required": ["n"]},
            ],
        },
        (
            {"kind": "a"},
            {"kind": "d", "n": 3},
            {"kind": "h", "n": 7},
            {"kind": "h"},
            {"kind": "h", "n": 1},
        ),
    ),
    "kinds that overlap": Case(
        {
            **_object(("kind",), kind=STRING),
            "oneOf": [
                {"properties": {"kind": {"pattern": "^a"}}},
                {"properties": {"kind": {"pattern": "b$"}, "n": INTEGER}},
                {"properties": {"kind": {"pattern": "^x"}}},
            ],
        },
        (
            {"kind": "ab"},
            {"kind": "ab", "n": "x"},
            {"kind": "b"},
            {"kind": "a"},
            {"kind": "xb"},
            {"kind": "y"},
        ),
    ),
    "kinds that nobody requires": Case(
        {
            "type": "object",
            "oneOf": _tagged("kind", "n", aa={"enum": [0]}, bb={"enum": [1]}),
        },
        ({"kind": "aa"}, {}, {"n": 0}, {"n": 2}, {"kind": "aa", "n": 1}),
    ),
    "an optional kind that branches require": Case(
        {
            "type": "object",
            "oneOf": [
                {"not": {"required": ["kind"]}},
                *(
                    {"required": ["kind"], **branch}
                    for branch in _tagged("kind", "n", **_EIGHT)
                ),
            ],
        },
        ({}, {"kind": "aa", "n": 0}, {"kind": "aa", "n": 1}, {"kind": "x"}, {"n": 5}),
    ),
    "an expression": Case(
        {
            **_object(("op",)),
            "oneOf": [
                {
                    "properties": {"op": {"const": "value"}, "value": INTEGER},
                    "required": ["value"],
                },
                {
                    "properties": {"op": {"const": "not"}, "of": {"$ref": "#"}},
                    "required": ["of"],
                },
                *(
                    {
                        "properties": {
                            "op": {"const": op},
                            "all": {
                                "type": "array",
                                "items": {"$ref": "#"},
                                "minItems": 1,
                            },
                        }
                    }
                    for op in ("and", "or")
                ),
            ],
        },
        (
            *(
                {"op": "value", "value": 1},
                {"op": "value"},
                {"op": "not", "of": {"op": "value", "value": 1}},
            ),
            *(
                {"op": "and", "all": [{"op": "or"}]},
                {"op": "and", "all": []},
                {"op": "not", "of": {"op": "x"}},
            ),
        ),
    ),
    "negated": Case(
        {
            "type": "object",
            "required": ["kind"],
            "not": {"oneOf": _tagged("kind", "n", aa={"enum": [0]}, bb={"enum": [1]})},
        },
        ({"kind": "aa"}, {"kind": "x"}, {"kind": "aa", "n": 1}, {}),
    ),
    "as a condition": Case(
        {
            "type": "object",
            "required": ["kind"],
            "if": {"oneOf": _tagged("kind", "n", aa={"enum": [0]}, bb={"enum": [1]})},
            "then": {"required": ["n"]},
            "else": {"maxProperties": 1},
        },
        ({"kind": "aa"}, {"kind": "aa", "n": 0}, {"kind": "x"}, {"kind": "x", "n": 0}),
    ),
}

REFERENCES = {
    "recursion": Case(
        _TREE, ({"v": 1, "kids": [{"v": 2, "kids": []}]}, {"kids": [{"v": "x"}]})
    ),
    "siblings in draft 7": Case(
        {
            **DRAFT_7,
            "properties": {"a": {"$ref": "#/definitions/i", "minimum": 5}},
            "definitions": {"i": INTEGER},
        },
        ({"a": 3}, {"a": "x"}),
    ),
    "siblings in 2020-12": Case(
        {
            "properties": {"a": {"$ref": "#/$defs/i", "minimum": 5}},
            "$defs": {"i": INTEGER},
        },
        ({"a": 3}, {"a": 5}),
    ),
    "anchor": Case(
        {"items": {"$ref": "#word"}, "$defs": {"x": {"$anchor": "word", **STRING}}},
        (["a"], [1]),
    ),
    "id": Case(
        {
            "$id": "https://x.test/root.json",
            "$ref": "part.json",
            "$defs": {"p": {"$id": "part.json", **INTEGER}},
        },
        (1, "a"),
    ),
    "id of draft 4": Case(
        {
            **DRAFT_4,
            "id": "http://x.test/root.json",
            "items": {"$ref": "#here"},
            "definitions": {"h": {"id": "#here", **INTEGER}},
        },
        ([1], ["a"]),
    ),
    "escaped pointer": Case(
        {"$ref": "#/$defs/a~1b%25~0", "$defs": {"a/b%~": STRING}}, ("x", 1)
    ),
}

NEAR = [
    {"not": {"type": ["string", "number"]}},
    {"not": {"enum": [1, "a", None, True, [1]]}},
    {"type": "number", "minimum": 0.3, "maximum": 1.5},
    {"type": "number", "not": {"enum": [0, 1, 1.5]}},
    {"type": "string", "not": {"minLength": 2}},
    {"type": "string", "pattern": "\\W", "minLength": 2},
    {"type": "array", "not": {"items": INTEGER}},
    {"type": "array", "not": {"contains": INTEGER}},
    {"type": "array", "contains": INTEGER, "items": {"type": ["integer", "null"]}},
    {
        "type": "object",
        "patternProperties": {"[a-b]": INTEGER},
        "additionalProperties": False,
    },
    {"type": "object", "not": {"required": ["a", "b"]}},
    {
        **_object((), a=INTEGER, b=NULL),
        "additionalProperties": False,
        "not": {"properties": {"a": True}, "additionalProperties": False},
    },
    {"type": "object", "not": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}},
    {
        "type": "object",
        "dependentSchemas": {"a": {"required": ["c"], "properties": {"c": NULL}}},
    },
    {**_object((), a={}, b={}), "additionalProperties": False, "minProperties": 1},
    {"$ref": "#/$defs/t", "maxProperties": 1, "$defs": {"t": {"type": "object"}}},
    {**_object((), a={"$ref": "#"}), "additionalProperties": False},
    {
        **DRAFT_7,
        "type": "object",
        "dependencies": {"a": ["b"], "b": {"required": ["c"]}},
    },
]
"""Schemas around which random building finds both kinds of instances."""

FAMILIES: dict[str, dict[str, Case]] = {
    "types": TYPES,
    "numbers": NUMBERS,
    "strings": STRINGS,
    "arrays": ARRAYS,
    "objects": OBJECTS,
    "formats": FORMATS,
    "combined": COMBINED,
    "unions": UNIONS,
    "references": REFERENCES,
    "near": {json.dumps(schema): Case(schema) for schema in NEAR},
}
