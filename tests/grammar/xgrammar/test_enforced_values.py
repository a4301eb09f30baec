"""Strings and multiples on xgrammar: what it takes is exact, what it would drop is refused."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from xgrammar_specs import accepted, content, on_xgrammar, tag, tag_on_xgrammar

from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.spec import OutputSpec

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?\Z")


def numbers(divisor: float) -> list[str]:
    chosen = random.Random(str(divisor))
    near = [chosen.randrange(-(10**12), 10**12) for _ in range(60)]
    multiples = [int(Fraction(Decimal(repr(divisor))) * k) for k in (*range(-30, 30), *near)]
    return [*map(str, (*range(-50, 120), *near, *multiples)), "1.5", "-0.25", "3.0", "0.123456789"]


def right(schema: dict[str, Any], text: str) -> bool:
    value = Fraction(Decimal(text))
    if schema["type"] == "integer" and value.denominator != 1:
        return False
    bounds = (schema.get("minimum", value) <= value) and (value <= schema.get("maximum", value))
    return bounds and (value / Fraction(Decimal(repr(schema["multipleOf"])))).denominator == 1


LARGE = [1025, 2048, 4294967296, 12345678901, 2**63, 1e20, 0.123456789, 2.5, 0.1]


class TestMultipleOf:
    @pytest.mark.parametrize("divisor", [1, 2, 3, 7, 10, 12, 64, 97, 360, 1000, 1023, 1024, 5.0])
    @pytest.mark.parametrize(
        "bounds", [{}, {"minimum": -40, "maximum": 4960}, {"minimum": 5, "maximum": 1029}]
    )
    def test_is_exact_where_xgrammar_takes_it(self, compiler, divisor, bounds):
        schema = {"type": "integer", "multipleOf": divisor, **bounds}
        texts = numbers(divisor)
        taken = accepted(compiler, on_xgrammar(schema), texts)
        assert [text for text in taken if not right(schema, text)] == []
        assert {text for text in texts if right(schema, text) and "." not in text} <= set(taken)

    @pytest.mark.parametrize(
        "schema",
        [
            *({"type": "integer", "multipleOf": divisor} for divisor in LARGE),
            *({"type": "number", "multipleOf": divisor} for divisor in (1, 3, *LARGE)),
            {"type": ["integer", "number"], "multipleOf": 3},
            {"type": ["string", "integer"], "multipleOf": 4096},
            {"type": "integer", "multipleOf": 3, "minimum": 0},
            {"type": "integer", "multipleOf": 3, "exclusiveMinimum": 0},
            {"type": "integer", "multipleOf": 3, "maximum": 100},
            {"type": "integer", "multipleOf": 3, "exclusiveMaximum": 100},
            {"type": "integer", "multipleOf": 3, "minimum": 0, "maximum": 1_000_000},
            {"type": "integer", "multipleOf": 2048, "minimum": 0, "maximum": 100},
            {"enum": [1, 2, 3], "multipleOf": 2},
            {"multipleOf": 3},
        ],
        ids=json.dumps,
    )
    @pytest.mark.parametrize("depth", [0, 2])
    def test_is_refused_where_xgrammar_drops_it(self, compiler, schema, depth):
        place = ""
        for _ in range(depth):
            schema = {"type": "object", "properties": {"p": {"type": "array", "items": schema}}}
            place += "/properties/p/items"
        in_tag = tag_on_xgrammar({"format": tag(content(schema))})
        for spec, root in ((on_xgrammar(schema), "#"), (in_tag, "#/format/content/json_schema")):
            with pytest.raises(UnsupportedSpecError) as caught:
                compiler.compile(spec)
            assert caught.value.where == f"{root}{place}/multipleOf"
            assert caught.value.hint

    @pytest.mark.parametrize("divisor", [3, 7, 1000, 4096, 0.5, 2.5, 0.3, 0.01, 1e-9, *LARGE])
    @pytest.mark.parametrize("kind", ["integer", "number"])
    @pytest.mark.parametrize("bounds", [{}, {"minimum": 0}, {"minimum": 2, "maximum": 100_000}])
    def test_auto_enforces_it_or_refuses_it(self, compiler, divisor, kind, bounds):
        schema = {"type": kind, "multipleOf": divisor, **bounds}
        refused = None
        try:
            taken = accepted(compiler, OutputSpec.json_schema(schema), numbers(divisor))
        except UnsupportedSpecError as error:
            taken, refused = [], error.where
        except UnsatisfiableSpecError:
            taken = []
            assert not any(right(schema, text) for text in numbers(divisor))
        assert [text for text in taken if not right(schema, text)] == []
        assert refused in (None, "#/multipleOf")
        assert refused is None or divisor not in (3, 7, 1000, 0.5, 2.5, 0.01)


class TestStrings:
    @pytest.mark.parametrize(
        ("pattern", "texts", "expected"),
        [
            ("^a(?:ba+)?b$", ["ab", "abab", "abaab", "aab", "aaab"], ["ab", "abab", "abaab"]),
            ("^[0-9]{2}(?:\\.[0-9]+)?Z$", ["12Z", "12.5Z", "125Z", "1234Z"], ["12Z", "12.5Z"]),
            ("^(?:ab+)??c*?$", ["", "ab", "abbc", "bc", "b"], ["", "ab", "abbc"]),
            ("^(?<y>[0-9]-+)?[?]?\\??$", ["", "1-", "??", "-", "1-??"], ["", "1-", "??", "1-??"]),
        ],
    )  # fmt: skip
    def test_an_optional_part_is_all_there_or_not_at_all(self, compiler, pattern, texts, expected):
        spec = on_xgrammar({"type": "string", "pattern": pattern})
        taken = accepted(compiler, spec, [json.dumps(text) for text in texts])
        assert taken == [json.dumps(text) for text in expected]

    @pytest.mark.parametrize(
        ("pattern", "texts", "expected"),
        [
            ("(^a)+", ["a", "aa", "ba"], ["a", "aa"]),
            ("(a$|b)c", ["bc", "ac"], ["bc"]),
            ("a*^b", ["b", "bx", "ab"], ["b", "bx"]),
            ("^(?:a|b$)+$", ["aab", "a", "ba"], ["aab", "a"]),
            ("b", ["b", "ac"], ["b"]),
        ],
    )
    def test_anchors_hold_where_the_text_begins_and_ends(self, compiler, pattern, texts, expected):
        spec = on_xgrammar({"type": "string", "pattern": pattern})
        assert accepted(compiler, spec, [f'"{text}"' for text in texts]) == [f'"{t}"' for t in expected]

    @pytest.mark.parametrize("pattern", ["a^b", "a$b", "^a^"])
    def test_an_anchor_that_never_holds_is_refused(self, compiler, pattern):
        specs = [
            on_xgrammar({"type": "string", "pattern": pattern}),
            OutputSpec.regex(pattern, backend="xgrammar"),
            tag_on_xgrammar({"format": {"type": "regex", "pattern": pattern}}),
            tag_on_xgrammar({"format": content({"type": "string", "pattern": pattern})}),
        ]
        for spec in specs:
            with pytest.raises(UnsupportedSpecError):
                compiler.compile(spec)

    @pytest.mark.parametrize(
        ("name", "bad"),
        [
            ("date", "2023-02-29"),
            ("ipv4", "01.2.3.4"),
            ("date-time", "2024-02-30T12:00:00Z"),
            ("date-time", "2024-02-01T01:40:0797-16:59"),
            ("time", "01:40:0797-16:59"),
        ],
    )
    @pytest.mark.parametrize("kind", ["string", ["string", "null"], ["integer", "string"]])
    def test_formats_are_those_of_the_standard_next_to_other_types(self, compiler, name, bad, kind):
        spec = on_xgrammar({"type": kind, "format": name})
        good = {"date": "2024-02-29", "ipv4": "1.2.3.4", "time": "12:00:00.5+05:30"}
        fine = good.get(name, "2024-02-29T12:00:00.25Z")
        assert accepted(compiler, spec, [f'"{fine}"', f'"{bad}"']) == [f'"{fine}"']
        named = on_xgrammar({"type": "object", "propertyNames": {"format": name}}, strict=False)
        assert accepted(compiler, named, [f'{{"{fine}":1}}', f'{{"{bad}":1}}']) == [f'{{"{fine}":1}}']
