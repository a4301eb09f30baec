"""What xgrammar would drop is refused, with its place, on every way in; what it takes is enforced."""

from __future__ import annotations

import json
from typing import Any

import pytest
from xgrammar_specs import accepted, content, on_xgrammar, tag, tag_on_xgrammar

from guided_plugin.errors import GrammarError, UnsupportedSpecError
from guided_plugin.spec import OutputSpec

NEWEST = "https://json-schema.org/draft/2020-12/schema"
OF_2019 = "https://json-schema.org/draft/2019-09/schema"


# Every form that holds a schema, and the pointer to it.
TAG_FORMS: list[tuple[Any, str]] = [
    (lambda s: {"format": content(s)}, "#/format"),
    (lambda s: {"format": {"type": "qwen_xml_parameter", "json_schema": s}}, "#/format"),
    (lambda s: {"format": content(s, style="qwen_xml")}, "#/format"),
    (lambda s: {"format": tag(content(s))}, "#/format/content"),
    (lambda s: {"format": {"type": "sequence", "elements": [True, content(s)]}}, "#/format/elements/1"),
    (lambda s: {"format": {"type": "or", "elements": [tag(content(s))]}}, "#/format/elements/0/content"),
    (
        lambda s: {"format": {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag(content(s))]}},
        "#/format/tags/0/content",
    ),
    (
        lambda s: {"format": {"type": "tags_with_separator", "separator": ",", "tags": [tag(content(s))]}},
        "#/format/tags/0/content",
    ),
    (lambda s: {"format": {"type": "optional", "content": content(s)}}, "#/format/content"),
    (lambda s: {"format": {"type": "star", "content": tag(content(s))}}, "#/format/content/content"),
    (lambda s: {"format": {"type": "repeat", "min": 1, "max": 2, "content": content(s)}}, "#/format/content"),
    (lambda s: {"format": {"type": "dispatch", "rules": [["<f>", content(s)]]}}, "#/format/rules/0/1"),
]  # fmt: skip


REFERENCES = [
    "https://example.com/schema.json",
    "http://json-schema.org/draft-07/schema#",
    "other.json#/$defs/a",
    "urn:example:thing",
    "#anchor",
    "#/$defs/nothing",
    "#/$defs/list/anyOf/0",
    "#/$defs/slashed~1name",
    "#/$defs/a%62",
    "/$defs/a",
    "",
]


def referring(reference: str) -> dict[str, Any]:
    definitions = {
        "a": {"$anchor": "anchor", "type": "integer"},
        "b": {"$id": "urn:example:thing", "type": "integer"},
        "ab": {"type": "integer"},
        "list": {"anyOf": [{"type": "integer"}]},
        "slashed/name": {"type": "integer"},
    }
    return {"type": "object", "properties": {"p": {"type": "array", "items": {"$ref": reference}}}} | {
        "$defs": definitions
    }


class TestReferences:
    @pytest.mark.parametrize("reference", REFERENCES)
    @pytest.mark.parametrize(("form", "place"), TAG_FORMS, ids=[place for _, place in TAG_FORMS])
    def test_in_structural_tags(self, compiler, form, place, reference):
        with pytest.raises(GrammarError) as caught:
            compiler.compile(tag_on_xgrammar(form(referring(reference))))
        assert caught.value.where == f"{place}/json_schema/properties/p/items/$ref"
        assert caught.value.hint

    def test_in_the_older_form_of_tags(self, compiler):
        structures = [{"begin": "<f>", "schema": s, "end": "</f>"} for s in (True, referring("#anchor"))]
        with pytest.raises(UnsupportedSpecError) as caught:
            compiler.compile(tag_on_xgrammar({"structures": structures, "triggers": ["<f"]}))
        assert caught.value.where == "#/structures/1/schema/properties/p/items/$ref"

    @pytest.mark.parametrize(
        "reference", ["urn:example:thing", "#anchor", "#/$defs/a%62", "#/$defs/list/anyOf/0"]
    )
    def test_in_schemas(self, compiler, reference):
        schema = referring(reference)
        with pytest.raises(UnsupportedSpecError) as caught:
            compiler.compile(on_xgrammar(schema))
        assert caught.value.where == "#/properties/p/items/$ref"
        spec = OutputSpec.json_schema(schema)
        assert accepted(compiler, spec, ['{"p":[1]}', '{"p":["x"]}']) == ['{"p":[1]}']

    def test_pointers_are_followed(self, compiler):
        texts = ['{"p":[1]}', '{"p":["x"]}']
        assert accepted(compiler, on_xgrammar(referring("#/$defs/ab")), texts) == ['{"p":[1]}']

    def test_a_pointer_inside_a_schema_with_its_own_id(self, compiler):
        inner = {"$id": "http://e/", "items": {"$ref": "#/$defs/i"}, "$defs": {"i": {"type": "string"}}}
        schema = {"properties": {"v": {"type": "array", **inner}}, "$defs": {"i": {"type": "integer"}}}
        with pytest.raises(UnsupportedSpecError, match=r"^#/properties/v/items/\$ref: "):
            compiler.compile(on_xgrammar(schema))

    @pytest.mark.parametrize(
        ("part", "keyword"),
        [
            ({"type": "integer", "multipleOf": 4294967296}, "multipleOf"),
            ({"type": "array", "uniqueItems": True}, "uniqueItems"),
            ({"type": "string", "pattern": "a(?!b)"}, "pattern"),
            ({"$ref": "#anchor"}, "$ref"),
        ],
    )
    def test_what_only_a_reference_leads_to_is_checked(self, compiler, part, keyword):
        schema = {"$ref": "#/components/A", "components": {"A": {"type": "array", "items": part}}}
        with pytest.raises(UnsupportedSpecError) as caught:
            compiler.compile(tag_on_xgrammar({"format": content(schema)}))
        assert caught.value.where == f"#/format/json_schema/components/A/items/{keyword}"

    def test_patterns_that_only_a_reference_leads_to_are_quoted(self, compiler):
        schema = {"$ref": "#/components/A", "components": {"A": {"type": "string", "pattern": '^"$'}}}
        assert accepted(compiler, on_xgrammar(schema), ['"""', r'"\""']) == [r'"\""']


class TestDynamicReferences:
    @pytest.mark.parametrize("keyword", ["$recursiveRef", "$dynamicRef"])
    @pytest.mark.parametrize("beside", [{}, {"type": "array"}])
    def test_are_refused_on_xgrammar(self, compiler, keyword, beside):
        schema = {"type": "array", "items": {keyword: "#", **beside}}
        for spec, place in (
            (on_xgrammar(schema), "#"),
            (on_xgrammar({"$schema": OF_2019 if "rec" in keyword else NEWEST, **schema}), "#"),
            (tag_on_xgrammar({"format": content(schema)}), "#/format/json_schema"),
        ):
            with pytest.raises(UnsupportedSpecError) as caught:
                compiler.compile(spec)
            assert caught.value.where == f"{place}/items/{keyword}"

    @pytest.mark.parametrize("named", [{}, {"$schema": OF_2019}])
    def test_a_recursive_reference_counts_where_no_later_draft_is_named(self, compiler, named):
        spec = OutputSpec.json_schema({**named, "type": "array", "items": {"$recursiveRef": "#"}})
        assert accepted(compiler, spec, ["[]", "[[]]", "[1]"]) == ["[]", "[[]]"]

    def test_a_recursive_reference_ends_at_the_nearest_anchor(self, compiler):
        inner = {"$id": "inner.json", "$recursiveAnchor": True, "items": {"$recursiveRef": "#"}}
        schema = {"$id": "http://e/outer.json", "anyOf": [{"type": "array", **inner}, {"type": "integer"}]}
        spec = OutputSpec.json_schema({"$schema": OF_2019, **schema}, strict=False)
        assert accepted(compiler, spec, ["1", "[]", "[[]]", "[1]"]) == ["1", "[]", "[[]]"]


NAMES = ["plain", "a/b", "$x", "[^]", "a b", "", "{", "~"]
HARD_NAMES = ['a"b', "a\\b", "a\nb", "\x01", "\x7f", "é", "世", "\U0001f600", "a\u2028b"]


class TestNames:
    @pytest.mark.parametrize("more", [{}, {"additionalProperties": {"type": ["string", "null"]}}])
    @pytest.mark.parametrize("name", NAMES)
    def test_have_one_form_next_to_open_ones(self, compiler, name, more):
        schema = {
            "type": "object",
            "properties": {name: {"type": "integer"}, "pl": {"type": "integer"}},
            **more,
        }
        escaped = "".join(f"\\u{ord(character):04x}" for character in name)
        wrong = [
            f'{{{key}:"s"}}'
            for key in {json.dumps(name), f'"{escaped}"', json.dumps(name).replace("/", r"\/")}
        ]
        wrong += [f'{{"other":null,{text[1:]}' for text in wrong]
        fine = [f"{{{json.dumps(name)}:1}}", '{"other":"s"}', '{"plai":"s"}', '{"plainer":null}']
        spec = on_xgrammar(schema, strict=False)
        assert accepted(compiler, spec, [*wrong, *fine]) == fine
        inside = tag_on_xgrammar({"format": tag(content({**schema, "additionalProperties": True}))})
        assert accepted(compiler, inside, [f"<f>{text}</f>" for text in (*wrong, *fine)]) == [
            f"<f>{text}</f>" for text in fine
        ]

    @pytest.mark.parametrize("name", HARD_NAMES)
    def test_that_xgrammar_cannot_keep_apart_are_refused_in_open_objects(self, compiler, name):
        closed = {"type": "object", "properties": {name: {"type": "integer"}}, "additionalProperties": False}
        texts = [f"{{{json.dumps(name, ensure_ascii=name == chr(127))}:{value}}}" for value in ("1", '"s"')]
        assert accepted(compiler, on_xgrammar(closed), texts) == texts[:1]
        with pytest.raises(UnsupportedSpecError) as caught:
            compiler.compile(on_xgrammar({**closed, "additionalProperties": {"type": "string"}}))
        assert caught.value.where == "#/properties"
        assert repr(name) in caught.value.what

    def test_a_property_called_property_names_is_no_name(self, compiler):
        schema = {"type": "object", "properties": {"propertyNames": {"pattern": "^a$"}}}
        with pytest.raises(UnsupportedSpecError, match=r"^#/properties/propertyNames/pattern: "):
            compiler.compile(on_xgrammar(schema))

    def test_names_next_to_closed_objects(self, compiler):
        schema = {"type": "object", "propertyNames": {"pattern": "^a$"}, "additionalProperties": False}
        with pytest.raises(UnsupportedSpecError, match=r"^#/additionalProperties: "):
            compiler.compile(on_xgrammar(schema))

    def test_several_patterns_that_one_name_may_match(self, compiler):
        patterns = {"^a.*$": {"type": "integer"}, "^ab$": {"type": "string"}}
        with pytest.raises(UnsupportedSpecError, match=r"^#/patternProperties: "):
            compiler.compile(on_xgrammar({"type": "object", "patternProperties": patterns}))


class TestTagOptions:
    def test_any_order_next_to_required(self, compiler):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        with pytest.raises(UnsupportedSpecError, match=r"^#/format/any_order: "):
            compiler.compile(tag_on_xgrammar({"format": content(schema, any_order=True)}))

    @pytest.mark.parametrize("beside", [{"maxLength": 3}, {"pattern": "^a+$"}, {"format": "date"}])
    def test_excludes_next_to_what_xgrammar_reads_in_its_place(self, compiler, beside):
        schema = {"type": "object", "properties": {"a": {"type": "string", **beside}}}
        with pytest.raises(UnsupportedSpecError, match=r"^#/format/content/excludes: "):
            compiler.compile(tag_on_xgrammar({"format": tag(content(schema, excludes=["aa"]))}))

    def test_a_malformed_schema_is_named(self, compiler):
        schema = {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": "3"}}}
        with pytest.raises(
            GrammarError, match=r"^#/format/json_schema/properties/a/multipleOf: must be a number"
        ):
            compiler.compile(tag_on_xgrammar({"format": content(schema)}))
