"""JSON Schema as a tree: walking, pointing, references, and refusing what is malformed
with its path."""

import json
from pathlib import Path

import pytest

from guided_plugin.errors import SpecError
from guided_plugin.keywords import subschemas
from guided_plugin.spec.references import pointer, target_of
from guided_plugin.spec.schema import check_schema

TABLES = json.loads(Path(__file__).with_name("schema.json").read_bytes())

DEEP = 5000


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
    TABLES["subschemas_are_found_wherever_the_standard_puts_them"],
)
def test_subschemas_are_found_wherever_the_standard_puts_them(schema, paths):
    assert sorted(pointer(path) for path, _ in subschemas(schema)) == paths
    assert all(
        target_of(schema, pointer(path)) == (node, path)
        for path, node in subschemas(schema)
    )


@pytest.mark.parametrize(
    "schema",
    TABLES["well_formed_schemas_pass"],
)
def test_well_formed_schemas_pass(schema):
    check_schema(schema)
    check_schema({"properties": {"a": schema}})


@pytest.mark.parametrize(("schema", "where", "what", "hint"), TABLES["malformed"])
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
    document = True
    for part in reversed(path):
        document = (
            [None] * part + [document] if isinstance(part, int) else {part: document}
        )
    assert target_of(document, pointer(path)) == (True, path)


DOCUMENT = {"a b": {"x": [{}, {"y": True}]}, "~1": False, "0": {"z": 1}}


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#", DOCUMENT),
        ("#/a%20b/x/0", {}),
        ("#/a b/x/1/y", True),
        ("#/~01", False),
        ("#/0", {"z": 1}),
    ],
)
def test_pointers_are_read_as_references_write_them(reference, target):
    assert target_of(DOCUMENT, reference)[0] == target


@pytest.mark.parametrize(
    "schema",
    TABLES["references_inside_the_document_pass"],
)
def test_references_inside_the_document_pass(schema):
    check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "where", "what", "hint"),
    TABLES["references_that_lead_nowhere_are_refused"],
)
def test_references_that_lead_nowhere_are_refused(schema, where, what, hint):
    with pytest.raises(SpecError) as caught:
        check_schema(schema)
    assert caught.value.where == where
    assert what in caught.value.what
    assert hint in caught.value.hint


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
