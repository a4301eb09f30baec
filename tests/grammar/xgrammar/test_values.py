"""What xgrammar reads loosely is rewritten exactly or refused: no text is taken that the schema forbids."""

from __future__ import annotations

import json
from typing import Any

import pytest
from equality import BYTES, Judge

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GrammarError, UnsupportedSpecError
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    config = GuidedConfig(threads=1, isolate_compiles=False)
    return GrammarCompiler(BYTES, config=config, plugins=Plugins(entry_points=False))


def taken(compiler: GrammarCompiler, schema: Any, texts: list[str]) -> list[str]:
    judged = Judge(schema, "xgrammar", compiler=compiler)
    found = [text for text in texts if judged.takes(text)]
    # Strict specs close objects, so they take no more than that.
    spec = OutputSpec.json_schema(schema, backend="xgrammar", strict=True)
    backend = compiler.backend("xgrammar")
    try:
        grammar = compiler.compile(spec)
    except GrammarError:
        return found
    for text in texts:
        matcher = backend.start(grammar, BYTES.stop_token_ids)
        assert text in found or not (matcher.accept_text(text.encode()) and matcher.complete)
    return found


def refused(compiler: GrammarCompiler, schema: Any, where: str, *, strict: bool = False) -> None:
    with pytest.raises(UnsupportedSpecError) as caught:
        compiler.compile(OutputSpec.json_schema(schema, backend="xgrammar", strict=strict))
    assert caught.value.where == where
    assert caught.value.hint


class TestFormats:
    @pytest.mark.parametrize(
        ("name", "right", "wrong"),
        [
            ("time", ["22:59:59Z", "01:02:03.5z"], ["22:59:60Z", "23:59:60+01:00", "01:40:0797-16:59"]),
            ("date-time", ["2024-02-29t12:00:00Z"], ["2024-01-01T23:58:60Z", "2024-01-01T01:40:0797-16:59"]),
            ("hostname", ["a.b-c", "x" * 63], ["x" * 64, "xn--a", "a.xn--l-fda", "ab--c", "a."]),
            ("email", ["a@[127.0.0.1]", "a.b@c-d.e"], ["a@xn--a", "a@" + "b" * 64, "a..b@c", "a@b_c"]),
            ("ipv6", ["::1", "1::5:1.2.3.4"], ["::ffff:192.168.0.01", "1:2:3:4:5:6:7::8:9", "::1.2.3.256"]),
            ("uri", ["x://[::1]:8/", "a:"], ["a", "http://a b", "http://[::1.2.3.04]", "x://a/%zz"]),
            ("uuid", ["0" * 8 + "-0000-0000-0000-" + "F" * 12], ["0" * 32]),
            ("duration", ["P1W", "PT1H2M"], ["P", "PT", "P1W2D", "PT1H2S"]),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("types", ["string", ["null", "string"]])
    def test_are_those_of_the_package(self, compiler, name, right, wrong, types):
        texts = [json.dumps(text) for text in (*right, *wrong)]
        assert taken(compiler, {"type": types, "format": name}, texts) == texts[: len(right)]

    @pytest.mark.parametrize("name", ["json-pointer", "relative-json-pointer", "uri-reference", "iri", "x"])
    def test_others_are_annotations(self, compiler, name):
        fine = ['"/k\\"l"', '"1/a"', '"a b"', '""']
        broken = ['"/k"l"', '"1/"a"', '"/\n"', '"\x01"']
        for more in ({}, {"maxLength": 9}):
            schema = {"type": "string", "format": name, **more}
            assert taken(compiler, schema, [*broken, *fine])[-1:] == ['""']
            assert not set(broken).intersection(taken(compiler, schema, broken))


class TestNumbers:
    @pytest.mark.parametrize(
        ("bounds", "keyword"),
        [
            ({"minimum": 9007199254740993}, "minimum"),
            ({"exclusiveMinimum": 9007199254740993, "exclusiveMaximum": 1e16}, "exclusiveMinimum"),
            ({"exclusiveMinimum": -5821178802293.248}, "exclusiveMinimum"),
            ({"exclusiveMinimum": 0, "maximum": 1e-7}, "maximum"),
            ({"maximum": 123456789012.5}, "maximum"),
            ({"exclusiveMaximum": 2**63}, "exclusiveMaximum"),
            ({"minimum": 1 / 3}, "minimum"),
            ({"minimum": 1e20}, "minimum"),
        ],
    )
    def test_bounds_that_would_be_rounded(self, compiler, bounds, keyword):
        refused(compiler, {"type": "number", **bounds}, f"#/{keyword}")
        inside = {"type": "array", "items": {"type": ["string", "number"], **bounds}}
        refused(compiler, inside, f"#/items/{keyword}")

    @pytest.mark.parametrize(
        "bounds",
        [
            {"exclusiveMinimum": 0, "exclusiveMaximum": 0.000001},
            {"exclusiveMinimum": 5, "exclusiveMaximum": 5.000001},
            {"exclusiveMinimum": -0.5, "maximum": -0.5},
            {"minimum": 3, "exclusiveMaximum": 3},
        ],
    )
    def test_a_range_without_a_number_takes_no_empty_text(self, compiler, bounds):
        refused(compiler, {"type": "number", **bounds}, "#")
        refused(compiler, {"type": "array", "items": {"type": "number", **bounds}}, "#/items")

    @pytest.mark.parametrize(
        ("bounds", "expected"),
        [
            ({"minimum": 1.2, "maximum": 3.9}, ["2", "3"]),
            ({"exclusiveMinimum": 1, "exclusiveMaximum": 4.5}, ["2", "3", "4"]),
            ({"minimum": -0.5, "exclusiveMinimum": -1, "exclusiveMaximum": 1e0}, ["0"]),
            ({"minimum": 3, "maximum": 9007199254740993}, ["3", "4", "9007199254740993"]),
        ],
    )
    def test_bounds_of_integers_are_rounded_inwards(self, compiler, bounds, expected):
        texts = ["-1", "0", "1", "2", "3", "4", "9007199254740993", "9007199254740994", "2.5", ""]
        assert taken(compiler, {"type": "integer", **bounds}, texts) == expected


class TestCountsOfNames:
    REPEATED = ('{"x":1,"x":2}', '{"a":1,"a":2}', '{"a":1,"x":1,"x":2}', '{"a":1,"\\u0078":1,"x":2}')

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object", "minProperties": 2},
            {"type": "object", "minProperties": 3, "additionalProperties": {"type": "integer"}},
            {"type": "object", "minProperties": 2, "properties": {"a": {"type": "integer"}}},
            {"type": "object", "minProperties": 2, "propertyNames": {"enum": ["a", "b"]}},
            {"type": "object", "minProperties": 3, "properties": {"a": {}}, "required": ["a"]},
        ],
        ids=json.dumps,
    )
    def test_that_a_repeated_name_would_fill_are_refused(self, compiler, schema):
        refused(compiler, schema, "#/minProperties")
        refused(compiler, {"anyOf": [{"type": "null"}, schema]}, "#/anyOf/1/minProperties")

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object", "minProperties": 1},
            {"type": "object", "minProperties": 2, "properties": {"a": {}}, "required": ["a"]},
            {"minProperties": 2, "properties": {"a": {}, "x": {}}, "additionalProperties": False},
        ],
        ids=json.dumps,
    )  # fmt: skip
    def test_that_it_cannot_fill_are_enforced(self, compiler, schema):
        texts = ["{}", '{"a":1,"x":3}', *self.REPEATED]
        found = taken(compiler, schema, texts)
        assert '{"a":1,"x":3}' in found
        assert all(len(json.loads(text)) >= schema["minProperties"] for text in found)


class TestPropertyNames:
    @pytest.mark.parametrize(
        "names",
        [{}, {"minLength": 0}, {"type": ["string", "null"]}, {"enum": ["a", 1, None]}, {"maximum": 3}],
    )
    def test_are_strings(self, compiler, names):
        schema = {"type": "object", "propertyNames": names}
        texts = ['{"a":1}', "{}", "{1:2}", "{null:1}", "{[]:1}", "{true:1}", '{-9e1:"x"}']
        assert taken(compiler, schema, texts) == texts[:2]

    @pytest.mark.parametrize(
        "names",
        [
            {"$ref": "#/$defs/any"},
            {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            {"const": 1},
            {"enum": [1, None]},
            {"type": "integer"},
        ],
    )
    def test_that_may_be_others_are_refused(self, compiler, names):
        schema = {"type": "object", "propertyNames": names, "$defs": {"any": {}}}
        refused(compiler, schema, "#/propertyNames")
