"""The coverage report: what becomes of every keyword of a schema, and where."""

import pytest

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.diagnose.check import check_spec, keyword_uses
from guided_plugin.spec import OutputSpec

CALL = {"type": "tag", "begin": "<f>", "end": "</f>"}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def statuses(schema, compiler, **options):
    """The status of every keyword, by place."""
    return {
        use.where: use.status
        for use in keyword_uses(OutputSpec.json_schema(schema, **options), compiler)
    }


def notes(schema, compiler):
    """The note by place, of what is a mere annotation."""
    found = keyword_uses(OutputSpec.json_schema(schema, strict=False), compiler)
    assert {use.status for use in found} <= {"enforced", "annotation", "structure"}
    return {use.where: use.note for use in found if use.status == "annotation"}


def test_schemas_inside_tags(byte_compiler):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "title": "A"}}}
    form = {**CALL, "content": {"type": "json_schema", "json_schema": schema}}
    spec = OutputSpec.structural_tag({"format": {"type": "star", "content": form}})
    found = keyword_uses(spec, byte_compiler)
    place = "#/format/content/content/json_schema"
    assert {use.where: (use.status, use.note) for use in found} == {
        f"{place}/type": ("enforced", "by llguidance"),
        f"{place}/properties": ("enforced", "by llguidance"),
        f"{place}/properties/a/type": ("enforced", "by llguidance"),
        f"{place}/properties/a/title": ("annotation", ""),
    }


def test_what_is_refused_inside_tags(byte_compiler):
    schemas = [{"type": "integer"}, {"type": "array", "not": {"uniqueItems": True}}]
    structures = [
        {"begin": f"<f{i}>", "schema": s, "end": "</f>"} for i, s in enumerate(schemas)
    ]
    spec = OutputSpec.structural_tag({"structures": structures, "triggers": ["<f"]})
    report = check_spec(byte_compiler, spec)
    assert not report.ok
    assert [use.where for use in report.keywords if use.status == "refused"] == [
        "#/structures/1/schema/not",
        "#/structures/1/schema/not/uniqueItems",
    ]


def test_every_keyword_has_its_place_and_status(byte_compiler):
    schema = {
        "title": "T",
        "type": "object",
        "properties": {
            "a": {"type": "string", "format": "date", "description": "d"},
            "b": {"type": "string", "format": "colour"},
        },
        "required": ["a"],
        "$defs": {"unused": True},
    }
    assert statuses(schema, byte_compiler) == {
        "#/title": "annotation",
        "#/type": "enforced",
        "#/properties": "enforced",
        "#/required": "enforced",
        "#/$defs": "structure",
        "#/properties/a/type": "enforced",
        "#/properties/a/format": "enforced",
        "#/properties/a/description": "annotation",
        "#/properties/b/type": "enforced",
        "#/properties/b/format": "annotation",
    }


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {"type": "string", "minimum": 3},
            {"#/minimum": "does not apply to type string"},
        ),
        (
            {"type": "integer", "minimun": 3},
            {"#/minimun": "not a keyword of the standard"},
        ),
        (
            {"type": "array", "uniqueItems": False},
            {"#/uniqueItems": "false has no effect"},
        ),
        (
            {"type": "array", "minContains": 2},
            {"#/minContains": "has no effect without `contains`"},
        ),
        ({"type": "integer", "then": False}, {"#/then": "has no effect without `if`"}),
        (
            {"type": "string", "format": "colour"},
            {"#/format": "the format 'colour' is not enforced"},
        ),
        (
            {"type": "object", "required": True},
            {"#/required": "a list of names since draft 4"},
        ),
        (
            {"$schema": DRAFT_4, "const": 3},
            {"#/const": "a keyword since draft 6, in a schema of draft 4"},
        ),
    ],
)
def test_annotations_say_why(byte_compiler, schema, expected):
    assert notes(schema, byte_compiler) == expected


def test_what_the_draft_leaves_out(byte_compiler):
    schema = {
        "$schema": DRAFT_4,
        "definitions": {"s": {"type": "string"}},
        "type": "array",
        "items": {"$ref": "#/definitions/s", "maxLength": 2},
        "contains": {"type": "integer"},
    }
    found = notes(schema, byte_compiler)
    assert found["#/items/maxLength"] == "next to $ref, which stands alone in draft 4"
    assert found["#/contains"] == "a keyword since draft 6, in a schema of draft 4"
    assert found["#/contains/type"] == "inside `contains`, which has no effect"
    assert not {"#/definitions/s/type", "#/items/$ref"} & found.keys()


def test_every_refused_keyword_is_found_and_the_rest_is_told_apart(byte_compiler):
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "(a)\\1"},
            "b": {"type": "string", "pattern": "\\bx"},
            "c": {"type": "string", "pattern": "^x$"},
        },
    }
    found = keyword_uses(OutputSpec.json_schema(schema), byte_compiler)
    refused = {use.where: use.note for use in found if use.status == "refused"}
    assert refused.keys() == {"#/properties/a/pattern", "#/properties/b/pattern"}
    assert all(refused.values())
    enforced = {use.where: use.note for use in found if use.status == "enforced"}
    assert enforced["#/properties/c/pattern"] == "by llguidance"


def test_a_contradiction_is_told_of_the_keyword_that_makes_it(byte_compiler):
    schema = {"type": "string", "not": {"type": "string"}, "title": "nothing at all"}
    found = {
        use.where: use
        for use in keyword_uses(OutputSpec.json_schema(schema), byte_compiler)
    }
    assert found["#/not"].note.startswith(
        "allows no output at all: `not`, `type` together allow nothing"
    )
    assert [found[f"#/{name}"].status for name in schema] == [
        "enforced",
        "refused",
        "annotation",
    ]


def test_keywords_that_the_operator_leaves_unenforced(byte_vocabulary, plugins):
    config = GuidedConfig(unenforced_keywords=("uniqueItems",), isolate_compiles=False)
    compiler = GrammarCompiler(byte_vocabulary, config=config, plugins=plugins)
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    assert notes(schema, compiler) == {
        "#/uniqueItems": "left unenforced by the configuration"
    }
