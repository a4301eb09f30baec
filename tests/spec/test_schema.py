"""JSON Schema as a tree: walking, pointing, references, and refusing what is malformed
with its path."""

import pytest

from guided_plugin.errors import SpecError
from guided_plugin.keywords import subschemas
from guided_plugin.spec.references import pointer_steps
from guided_plugin.spec.schema import TYPES, check_schema, misspelt_keywords, pointer

DEEP = 5000


def pointed_at(document, reference):
    return [
        document,
        *(node for _, node in pointer_steps(document, reference.removeprefix("#"))),
    ][-1]


def nested(leaf, wrap, depth=DEEP):
    for _ in range(depth):
        leaf = wrap(leaf)
    return leaf


WRAPS = {
    "items": lambda schema: {"items": schema},
    "properties": lambda schema: {"properties": {"a": schema}},
    "anyOf": lambda schema: {"anyOf": [{"type": "null"}, schema]},
    "not": lambda schema: {"not": schema},
    "$defs": lambda schema: {"$defs": {"a": schema}},
}


@pytest.mark.parametrize("keyword", WRAPS)
def test_depth_is_walked_to_its_end(keyword):
    check_schema(nested({"type": "string"}, WRAPS[keyword]))
    with pytest.raises(SpecError, match="unknown type 'strng'") as caught:
        check_schema(nested({"type": "strng"}, WRAPS[keyword]))
    assert caught.value.where.count(f"/{keyword}") == DEEP
    assert caught.value.where.endswith("/type")


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ({"properties": {"a": True, "b": {}}}, ["#/properties/a", "#/properties/b"]),
        ({"patternProperties": {"^x": {}}}, ["#/patternProperties/^x"]),
        (
            {"$defs": {"a": {}}, "definitions": {"b": {}}},
            ["#/$defs/a", "#/definitions/b"],
        ),
        ({"dependentSchemas": {"a": {}}}, ["#/dependentSchemas/a"]),
        ({"dependencies": {"a": {}, "b": ["a"]}}, ["#/dependencies/a"]),
        (
            {"allOf": [{}], "anyOf": [{}], "oneOf": [{}, True]},
            ["#/allOf/0", "#/anyOf/0", "#/oneOf/0", "#/oneOf/1"],
        ),
        ({"prefixItems": [{}], "items": False}, ["#/items", "#/prefixItems/0"]),
        (
            {"items": [{}, {}], "additionalItems": {}},
            ["#/additionalItems", "#/items/0", "#/items/1"],
        ),
        (
            {"if": {}, "then": {}, "else": {}, "not": {}},
            ["#/else", "#/if", "#/not", "#/then"],
        ),
        ({"contains": {}, "propertyNames": {}}, ["#/contains", "#/propertyNames"]),
        (
            {
                "additionalProperties": False,
                "unevaluatedItems": {},
                "unevaluatedProperties": {},
            },
            ["#/additionalProperties", "#/unevaluatedItems", "#/unevaluatedProperties"],
        ),
        (
            {
                "enum": [{"type": "x"}],
                "const": {},
                "default": {},
                "examples": [{}],
                "x-mine": {},
            },
            [],
        ),
    ],
)
def test_subschemas_are_found_wherever_the_standard_puts_them(schema, paths):
    assert sorted(pointer(path) for path, _ in subschemas(schema)) == paths
    assert all(
        node is pointed_at(schema, pointer(path)) for path, node in subschemas(schema)
    )


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        *({"type": name} for name in TYPES),
        {"type": ["string", "null"]},
        {"type": "string", "minLength": 2.0, "maxLength": 2},
        {"minimum": 1, "maximum": 1},
        {"minimum": -1.5, "exclusiveMaximum": 1e300},
        {"minimum": 0, "exclusiveMinimum": True},
        {"required": True},
        {"properties": {"type": {"type": "string"}, "$ref": {"const": 1}, "enum": {}}},
        {"const": {"type": "strng"}, "default": {"enum": []}},
        {"title": "t", "x-unknown": {"type": "strng"}},
        {"dependencies": {"a": ["b"]}},
        # Crossed bounds rule out one type; the others are left.
        {"minLength": 3, "maxLength": 2},
        {"type": ["string", "null"], "minLength": 3, "maxLength": 2},
        {"type": "integer", "minLength": 3, "maxLength": 2},
    ],
)
def test_well_formed_schemas_pass(schema):
    check_schema(schema)
    check_schema({"properties": {"a": schema}})


NO_SCHEMA = "a schema is an object or true/false, not "
MALFORMED = [
    # schema, where, what, hint
    (None, "#", NO_SCHEMA + "null", "brackets"),
    ("{}", "#", NO_SCHEMA + "a string", "brackets"),
    ({1, 2}, "#", NO_SCHEMA + "set", "brackets"),
    (
        {"properties": {"a": "string"}},
        "#/properties/a",
        NO_SCHEMA + "a string",
        "brackets",
    ),
    ({"items": None}, "#/items", NO_SCHEMA + "null", "brackets"),
    ({"items": [{}, 3]}, "#/items/1", NO_SCHEMA + "a number", "brackets"),
    ({"anyOf": [{}, None]}, "#/anyOf/1", NO_SCHEMA + "null", "brackets"),
    ({"type": "strng"}, "#/type", "unknown type 'strng'", "did you mean 'string'?"),
    (
        {"type": ["null", "zzz"]},
        "#/type",
        "unknown type 'zzz'",
        "known: array, boolean",
    ),
    ({"type": None}, "#/type", "unknown type None", "known: array"),
    ({"type": {"a": 1}}, "#/type", "unknown type {'a': 1}", ""),
    (
        {"type": []},
        "#/type",
        "an empty list of types allows nothing",
        "leave `type` out",
    ),
    ({"properties": []}, "#/properties", "must be an object, not a list", ""),
    (
        {"anyOf": {}},
        "#/anyOf",
        "must be a list of schemas, not an object",
        "put [ ] around it",
    ),
    ({"allOf": []}, "#/allOf", "an empty list allows nothing", "leave the keyword out"),
    (
        {"required": "a"},
        "#/required",
        "must be a list of property names, not a string",
        '["name", "age"]',
    ),
    (
        {"required": ["a", 1]},
        "#/required",
        "must be a list of property names; 1 is not one",
        '["name", "age"]',
    ),
    (
        {"enum": "a"},
        "#/enum",
        "must be a list of values, not a string",
        "put [ ] around it",
    ),
    ({"enum": []}, "#/enum", "an empty enum allows nothing", "leave `enum` out"),
    (
        {"minLength": -1},
        "#/minLength",
        "must be a whole number of at least 0, not -1",
        "",
    ),
    (
        {"minContains": True},
        "#/minContains",
        "must be a whole number of at least 0, not True",
        "",
    ),
    (
        {"maxLength": "3"},
        "#/maxLength",
        "must be a whole number of at least 0, not '3'",
        "",
    ),
    (
        {"maxLength": float("inf")},
        "#/maxLength",
        "must be a whole number of at least 0, not inf",
        "",
    ),
    ({"minimum": "1"}, "#/minimum", "must be a number, not a string", ""),
    ({"maximum": True}, "#/maximum", "must be a number, not a boolean", ""),
    (
        {"exclusiveMinimum": None},
        "#/exclusiveMinimum",
        "must be a number, not null",
        "",
    ),
    ({"multipleOf": 0}, "#/multipleOf", "must be greater than 0", ""),
    ({"pattern": 3}, "#/pattern", "must be a string, not a number", ""),
    ({"$ref": {}}, "#/$ref", "must be a string, not an object", ""),
]
for low, high, kind in [
    ("minLength", "maxLength", "string"),
    ("minItems", "maxItems", "array"),
    ("minProperties", "maxProperties", "object"),
    ("minimum", "maximum", "number"),
    ("minimum", "maximum", "integer"),
]:
    what = f"{low} 3 is above {high} 2"
    MALFORMED.append(
        (
            {"type": kind, low: 3, high: 2},
            f"#/{low}",
            what,
            f"lower {low} or raise {high}",
        )
    )


def test_crossed_bounds_count_only_where_they_are_read():
    crossed = {"type": "integer", "minimum": 3, "maximum": 1, "$ref": "#/definitions/a"}
    for draft in ("draft-04", "draft-06", "draft-07"):
        named = {
            "$schema": f"http://json-schema.org/{draft}/schema#",
            "definitions": {"a": {}},
        }
        check_schema(named | crossed)
    with pytest.raises(SpecError, match="is above"):
        check_schema({"$defs": {"a": {}}} | crossed | {"$ref": "#/$defs/a"})


@pytest.mark.parametrize(("schema", "where", "what", "hint"), MALFORMED)
def test_malformed_schemas_are_refused_with_place_and_way_out(
    schema, where, what, hint
):
    with pytest.raises(SpecError) as caught:
        check_schema(schema)
    assert caught.value.where == where
    assert caught.value.what == what
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("a",),
        ("a/b", "c~d"),
        ("~1",),
        ("~01", "/"),
        ("", ""),
        ("list", 1, "x"),
        ("50%",),
        ("a b", "é"),
    ],
)
def test_pointers_resolve_to_what_they_were_made_from(path):
    leaf = object()
    document = leaf
    for part in reversed(path):
        document = (
            [None] * part + [document] if isinstance(part, int) else {part: document}
        )
    assert pointed_at(document, pointer(path)) is leaf


DOCUMENT = {"a b": {"x": [10, {"y": 20}]}, "~1": 30, "0": 40}


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", DOCUMENT),
        ("#/a%20b/x/0", 10),
        ("#/a b/x/1/y", 20),
        ("#/~01", 30),
        ("#/0", 40),
    ],
)
def test_pointers_are_read_as_references_write_them(reference, target):
    assert pointed_at(DOCUMENT, reference) == target


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {}}},
        {"anyOf": [{}, {"$ref": "#/anyOf/0"}]},
        {"$ref": "#mine", "$defs": {"a": {"$anchor": "mine"}}},
        {"$ref": "#mine", "$defs": {"a": {"$dynamicAnchor": "mine"}}},
        {"$ref": "#mine", "definitions": {"a": {"$id": "#mine"}}},
        {
            "$ref": "https://x.example/a#/b",
            "$defs": {"a": {"$id": "https://x.example/a", "b": {}}},
        },
        {"$ref": "https://x.example/a", "$defs": {"a": {"id": "https://x.example/a#"}}},
        {
            "$id": "https://x.example/root",
            "$ref": "a",
            "$defs": {"a": {"$id": "https://x.example/a"}},
        },
        {
            "$ref": "/b",
            "$id": "https://x.example/a/c",
            "$defs": {"a": {"$id": "https://x.example/b"}},
        },
        {"$id": "urn:x:1", "$ref": "urn:x:1#/$defs/a", "$defs": {"a": {}}},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$id": "b.json", "$ref": "#/$defs/c", "$defs": {"c": {}}}},
        },
        {
            "$ref": "a/b.json",
            "$defs": {"a": {"$id": "a/", "$defs": {"b": {"$id": "b.json"}}}},
        },
    ],
)
def test_references_inside_the_document_pass(schema):
    check_schema(schema)


NOWHERE = "points at nothing in this schema"
OUTSIDE = "lies outside this schema"


@pytest.mark.parametrize(
    ("schema", "where", "what", "hint"),
    [
        ({"$ref": "#/$defs/x"}, "#/$ref", f"'#/$defs/x' {NOWHERE}", "#/$defs/Name"),
        (
            {"items": {"$ref": "#/items/items"}},
            "#/items/$ref",
            NOWHERE,
            "start at the root",
        ),
        (
            {"$ref": "#mine", "$defs": {"a": {"$anchor": "other"}}},
            "#/$ref",
            NOWHERE,
            "start at the root",
        ),
        (
            {"$ref": "#mine", "const": {"$anchor": "mine"}},
            "#/$ref",
            NOWHERE,
            "start at the root",
        ),
        (
            {"$ref": "https://x.example/y"},
            "#/$ref",
            OUTSIDE,
            "put that schema under $defs",
        ),
        (
            {"not": {"$ref": "other.json#/a"}},
            "#/not/$ref",
            OUTSIDE,
            "put that schema under $defs",
        ),
        (
            {"$ref": "ther", "$defs": {"a": {"$id": "https://x/other"}}},
            "#/$ref",
            OUTSIDE,
            "$defs",
        ),
    ],
)
def test_references_that_lead_nowhere_are_refused(schema, where, what, hint):
    with pytest.raises(SpecError) as caught:
        check_schema(schema)
    assert caught.value.where == where
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_misspelt_keywords_are_reported_and_others_are_not():
    schema = {
        "propertis": {},
        "properties": {"requierd": {"maxLenght": 3}, "a/b": {"items": {"minimun": 1}}},
        "x-note": 1,
        "title": "t",
        "const": {"maxLenght": 1},
        7: "a key that is no text",
        "_format": "switched off",
        "x-pattern": 1,
        "decription": "an annotation",
        "items": {"maxLenght": 5},
    }
    said = "unknown keyword, ignored (did you mean {!r}?)"
    assert sorted(misspelt_keywords(schema)) == [
        "#/items/maxLenght: " + said.format("maxLength"),  # each word once
        "#/properties/a~1b/items/minimun: " + said.format("minimum"),
        "#/propertis: " + said.format("properties"),
    ]
    assert misspelt_keywords(True) == []
    many = {f"w{number}": 1 for number in range(10_000)} | {
        "allOf": [{"propertis": {}}]
    }
    # it gives up: a client chooses how many there are
    assert misspelt_keywords(many) == []


@pytest.mark.parametrize(
    ("schema", "hint"),
    [
        ({"propertes": {"a": {}}, "x": 1}, "did you mean 'properties'?"),
        ({"name": {"type": "string"}}, "put names of properties into `properties`"),
        ({"schema": {"type": "string"}}, "put names of properties into `properties`"),
    ],
)
def test_a_schema_without_a_known_keyword_is_refused_and_a_part_of_one_is_not(
    schema, hint
):
    with pytest.raises(
        SpecError, match="#: has no keyword of JSON Schema: any JSON would match"
    ) as caught:
        check_schema(schema)
    assert hint in caught.value.hint
    for good in (
        {},
        True,
        {"items": schema},
        {"title": "t", **schema},
        {"$defs": {"a": schema}},
    ):
        check_schema(good)
