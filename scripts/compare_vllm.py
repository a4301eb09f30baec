"""Write docs/vllm-compared.md: the same texts, matched by this package and by vLLM's
own backends.

Specs go through vLLM's check of requests and its classes of backends, on the CPU and
without an engine, with the options of a server that sets none. Needs vLLM's interpreter
(`make compare`). A test fails when the page differs.

python scripts/compare_vllm.py
"""

from __future__ import annotations

import json
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
os.environ["LLGUIDANCE_LOG_LEVEL"] = "0"  # matchers that refuse a text say nothing

from oracle import oracle  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from vllm import SamplingParams, __version__  # noqa: E402
from vllm.config import StructuredOutputsConfig  # noqa: E402
from vllm.exceptions import VLLMValidationError  # noqa: E402
from vllm.sampling_params import StructuredOutputsParams  # noqa: E402
from vllm.v1.structured_output.backend_guidance import GuidanceBackend  # noqa: E402
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend  # noqa: E402
from vllm.v1.structured_output.request import get_structured_output_key  # noqa: E402

from guided_plugin import GuidedConfig, OutputSpec  # noqa: E402
from guided_plugin.compiling.compiler import GrammarCompiler  # noqa: E402
from guided_plugin.demo import MODEL_DIR  # noqa: E402
from guided_plugin.errors import GuidedError  # noqa: E402
from guided_plugin.grammar.vocabulary import Vocabulary  # noqa: E402

TARGET = ROOT / "docs" / "vllm-compared.md"
HEADING = "# Next to vLLM's own, spec by spec"
Takes = Callable[[str], bool]

A = {"type": "integer"}
NULL = {"type": "null"}


def obj(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


def items(item: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, **more}


def texts(*values: Any) -> list[str]:
    return [
        json.dumps(value, separators=(",", ":"), ensure_ascii=False) for value in values
    ]


SHAPES = texts({}, {"a": 1}, {"a": {"b": [1]}, "c": "x"})
SCHEMAS: dict[str, list[tuple[Any, list[str]]]] = {
    "Objects": [
        ({"type": "object"}, [*SHAPES, "[]"]),
        (obj({}), SHAPES),
        (obj({"o": {"type": "object"}}), texts({}, {"o": {}}, {"o": {"a": 1}})),
        ({"type": "object", "minProperties": 1}, SHAPES),
        ({"type": "object", "minProperties": 2}, ['{"a":1}', '{"a":1,"b":2}', '{"a":1,"a":2}']),
        ({"type": "object", "maxProperties": 1}, SHAPES),
        ({"type": "object", "required": ["a"]}, SHAPES),
        (obj({"a": A}), ["{}", '{"a":1}', '{"a":1,"b":2}', '{"b":2}', '{"a":1,"a":2}']),
        (obj({"a": A, "b": A}), ['{"a":1,"b":2}', '{"b":2,"a":1}']),
        (obj({"a": A}, required=["a", "b"]), ['{"a":1}', '{"a":1,"b":2}', '{"b":2}', '{"a":1,"b":2,"c":3}']),
        (obj({"a": A}, additionalProperties=True), ['{"a":1,"b":2}', '{"b":2}', '{"a":"x"}']),
        (obj({"a": A}, additionalProperties=False), ["{}", '{"a":1}', '{"a":1,"b":2}']),
        ({"type": "object", "additionalProperties": A}, texts({}, {"a": 1}, {"a": "x"})),
        ({"type": "object", "patternProperties": {"^x": A}}, texts({}, {"x": 1}, {"x": "s"}, {"y": 1})),
        ({"type": "object", "propertyNames": {"pattern": "^[ab]$"}}, texts({}, {"a": 1}, {"c": 1})),
        (obj({"a": A, "b": A}, dependentRequired={"a": ["b"]}), ['{"a":1}', '{"a":1,"b":2}', '{"b":2}']),
        (obj({"a": A}, unevaluatedProperties=False), texts({"a": 1}, {"a": 1, "b": 2})),
    ],
    "Arrays": [
        ({"type": "array"}, ["[]", '[1,"a",{}]']),
        (items(A, minItems=1, maxItems=2), texts([], [1], [1, 2], [1, 2, 3])),
        (items(A, uniqueItems=True), texts([1, 2], [1, 1])),
        (items(A, contains={"const": 2}), texts([1], [1, 2])),
        ({"type": "array", "prefixItems": [A, NULL]}, texts([], [1], [1, None], [1, 1], [1, None, 3])),
        ({"type": "array", "items": [A, NULL]}, texts([1, None], [1, 1])),
    ],
    "Numbers": [
        (A, ["1", "-1", "-0", "1.0", "1e2", "01", "123456789012345678901"]),
        ({"type": "number"}, ["1.5", "1e5", "1E+5", "-0", "1.", "0.123456789012345678901"]),
        ({"type": "integer", "minimum": 0, "maximum": 12}, ["0", "12", "13", "-1", "-0"]),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 2}, ["0", "1.5", "2", "1e0", "1.999"]),
        ({"type": "number", "exclusiveMinimum": 1}, ["1", "1.01", "2"]),
        ({"type": "integer", "multipleOf": 3}, ["3", "4", "0", "-6"]),
        ({"type": "number", "multipleOf": 0.1}, ["0.3", "0.35"]),
    ],
    "Strings": [
        ({"type": "string"}, ['"é"', '"\\/"', '"\\u0041"', '"\\ud83d\\ude00"', '"\\ud800"', '"\x7f"']),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"a"', '"日本語"', '"abcd"', '"\\u0061b"']),
        ({"type": "string", "pattern": "b"}, ['"b"', '"abc"', '"a"']),
        ({"type": "string", "pattern": "^a.c$"}, ['"abc"', '"a\\nc"', '"xabc"']),
        ({"type": "string", "pattern": r"^\d+$"}, ['"12"', '"٣"']),
        ({"type": "string", "pattern": r"^\w$"}, ['"a"', '"é"']),
        ({"type": "string", "pattern": "^(?!no)[a-z]+$"}, ['"yes"', '"nope"']),
        ({"type": "string", "pattern": "^[a-f]+$", "maxLength": 3}, ['"abc"', '"abcd"']),
        ({"type": "string", "format": "date"}, ['"2024-02-29"', '"2023-02-29"', '"x"']),
        ({"type": "string", "format": "date-time"}, ['"2024-01-01T00:00:00Z"', '"2024-01-01T24:00:00Z"']),
        ({"type": "string", "format": "time"}, ['"12:00:00Z"', '"12:00:00"', '"23:59:60Z"']),
        ({"type": "string", "format": "duration"}, ['"P1D"', '"P"']),
        ({"type": "string", "format": "email"}, ['"a@b.c"', '"a"']),
        ({"type": "string", "format": "hostname"}, ['"a.b"', '"-a"']),
        ({"type": "string", "format": "ipv4"}, ['"1.2.3.4"', '"1.2.3.256"']),
        ({"type": "string", "format": "ipv6"}, ['"::1"', '"1:2"']),
        ({"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"', '"123e4567"']),
        ({"type": "string", "format": "uri"}, ['"http://a/b"', '"a b"']),
        ({"type": "string", "format": "colour"}, ['"red"']),
    ],
    "Combined": [
        ({}, ["1", "{}", '"a"']),
        ({"type": ["string", "null"]}, ['"a"', "null", "1"]),
        ({"enum": ["a", 1, None, {"b": 1}]}, ['"a"', "1", "null", '{"b":1}', '"b"', "1.0"]),
        ({"const": {"a": [1, 2]}}, ['{"a":[1,2]}', '{"a":[2,1]}']),
        ({"type": "integer", "enum": [1, "a"]}, ["1", '"a"']),
        ({"anyOf": [A, NULL]}, ["1", "null", '"a"']),
        ({"oneOf": [{"type": "integer", "minimum": 1}, {"type": "integer", "maximum": 3}]}, ["0", "2", "4"]),
        ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, ["2", "3", "6"]),
        ({"allOf": [obj({"a": A}), obj({"b": A})]}, ['{"a":1,"b":2}', '{"a":1,"b":"x"}', '{"a":1,"c":3}']),
        ({"type": "integer", "not": {"const": 0}}, ["0", "1"]),
        (
            obj({"k": {"enum": ["x", "y"]}, "v": {}}, required=["k", "v"], **{
                "if": {"properties": {"k": {"const": "x"}}}, "then": {"properties": {"v": A}}}),
            ['{"k":"x","v":1}', '{"k":"x","v":"s"}', '{"k":"y","v":"s"}'],
        ),
        (obj({"n": {"$ref": "#"}}), ['{"n":{"n":{}}}', '{"n":1}']),
        (obj({"a": {"$ref": "#/$defs/i", "maximum": 5}}, **{"$defs": {"i": A}}), ['{"a":5}', '{"a":6}']),
    ],
    "Layout": [
        (obj({"a": A, "b": A}), ['{"a": 1, "b": 2}', '{\n  "a": 1\n}', ' {"a":1}', '{"a":1} ']),
    ],
}  # fmt: skip
TAG = {
    "type": "tag",
    "begin": "<c>",
    "content": {"type": "json_schema", "json_schema": obj({"a": A})},
    "end": "</c>",
}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<c>"], "tags": [TAG]}
OTHERS: list[tuple[dict[str, Any], list[str]]] = [
    ({"json_object": True}, [*SHAPES, '{"a": 1}', "[]", '{"a":1e5}']),
    ({"regex": "a.b"}, ["axb", "a\nb", "xaxb"]),
    ({"regex": r"\d\w\s"}, ["1a ", "٣a ", "1é ", "1a\u00a0"]),
    ({"regex": "^ab$"}, ["ab", "^ab$"]),
    ({"regex": "a|bc"}, ["a", "bc", "ac"]),
    ({"regex": "(?i)ab"}, ["ab", "AB"]),
    ({"regex": r"\bab\b"}, ["ab"]),
    ({"regex": "(?!no)[a-z]+"}, ["yes", "nope"]),
    ({"regex": ""}, [""]),
    ({"choice": ["yes", "no"]}, ["yes", "no", "ye"]),
    ({"choice": ["", "a"]}, ["", "a"]),
    ({"grammar": 'root ::= "a" root | "b"'}, ["b", "aab", "a"]),
    ({"grammar": 'start: "a" start | "b"'}, ["b", "aab", "a"]),
    ({"grammar": 'start: /[0-9]+/ "x"'}, ["12x", "x"]),
    ({"structural_tag": json.dumps({"format": TAG})}, ['<c>{"a":1}</c>', '<c>{"b":1}</c>', "x"]),
    ({"structural_tag": json.dumps({"format": TRIGGERED})}, ["x", 'x<c>{"a":1}</c>y', '<c>{"b":1}</c>']),
]  # fmt: skip


class Ours:
    """This package with `take_over`, as a server without further options has it."""

    def __init__(self) -> None:
        self.vocabulary = Vocabulary.from_tokenizer(
            AutoTokenizer.from_pretrained(MODEL_DIR)
        )
        self.compiler = GrammarCompiler(
            self.vocabulary, config=GuidedConfig(isolate_compiles=False)
        )

    def spec(self, asked: dict[str, Any]) -> Takes | None:
        try:
            grammar = self.compiler.compile(OutputSpec.parse(asked))
        except GuidedError:
            return None

        def takes(text: str) -> bool:
            backend = self.compiler.backend(grammar.backend)
            matcher = backend.start(grammar, self.vocabulary.stop_token_ids)
            return (not text or matcher.accept_text(text.encode())) and matcher.complete

        return takes


class Theirs:
    """One of vLLM's own backends."""

    def __init__(self, name: str) -> None:
        self.config = StructuredOutputsConfig(backend=name)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(MODEL_DIR)
        make: Any = {"guidance": GuidanceBackend, "xgrammar": XgrammarBackend}[name]
        engine = SimpleNamespace(
            structured_outputs_config=self.config,
            model_config=None,
            speculative_config=None,
        )
        self.backend = make(engine, self.tokenizer, len(self.tokenizer))

    def spec(self, asked: dict[str, Any]) -> Takes | None:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**asked))
        try:
            model: Any = SimpleNamespace(is_diffusion=False)
            params._validate_structured_outputs(model, self.config, self.tokenizer)
        except (VLLMValidationError, ValueError):
            return None
        kind, text = get_structured_output_key(params.structured_outputs)

        def takes(output: str) -> bool:
            grammar = self.backend.compile_grammar(kind, text)
            tokens = self.tokenizer.encode(output, add_special_tokens=False)
            stop = self.tokenizer.eos_token_id
            return (
                grammar.accept_tokens("one", [*tokens, stop])
                and grammar.is_terminated()
            )

        return takes


def compared() -> Iterator[tuple[str, dict[str, Any], str, str, list[str]]]:
    """Of each text: the group and the spec, whether it is valid, what each makes of
    it."""
    sides = [Ours(), Theirs("guidance"), Theirs("xgrammar")]
    groups = {
        group: [({"json": one}, given) for one, given in every]
        for group, every in SCHEMAS.items()
    }
    for group, every in {**groups, "Other specs": OTHERS}.items():
        for asked, given in every:
            judge = oracle(asked["json"]) if "json" in asked else None
            takes = [side.spec(asked) for side in sides]
            for text in given:
                valid = (
                    "" if judge is None else "yes" if _is_valid(judge, text) else "no"
                )
                found = [
                    "400" if one is None else "takes" if one(text) else "-"
                    for one in takes
                ]
                yield group, asked, text, valid, found


def _is_valid(judge: Callable[[Any], bool], text: str) -> bool:
    try:
        return judge(json.loads(text))
    except ValueError:
        return False


def render() -> str:
    """The page."""
    logging.disable(logging.CRITICAL)
    found = list(compared())
    logging.disable(logging.NOTSET)
    rows = [one for one in found if len(set(one[-1])) > 1]
    invalid = [
        sum(valid == "no" and each[side] == "takes" for *_, valid, each in found)
        for side in range(3)
    ]
    specs = {json.dumps(asked) for _, asked, *_ in found}
    release = __version__.partition("+")[0]
    intro = f"""
        Generated by `make compare`: texts, matched by this package with its defaults, and by the check of
        requests and the backends `guidance` and `xgrammar` of vLLM {release} with those of a server. (Its
        `auto` is `xgrammar`, and `guidance` where that refuses a spec.) A text is taken, it is not (-), or
        its spec is refused (400). `valid` is the verdict of jsonschema-rs. {len(rows)} of {len(found)} texts
        for {len(specs)} specs differ: all of these are below. Taken, though not valid, are {invalid[0]} here,
        {invalid[1]} by `guidance` and {invalid[2]} by `xgrammar`."""
    lines = [HEADING, "", textwrap.fill(" ".join(intro.split()), 120)]
    # Texts of one spec on which the verdicts are the same are one line.
    merged: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for group, asked, text, valid, verdicts in rows:
        line = (_shown(asked), valid, *verdicts)
        merged.setdefault(group, {}).setdefault(line, []).append(_code(text))
    for group, table in merged.items():
        lines += [
            "",
            f"## {group}",
            "",
            "| spec | text | valid | here | guidance | xgrammar |",
            "|---" * 6 + "|",
        ]
        before = ""
        for (spec, *verdicts), given in table.items():
            cells = ["" if spec == before else spec, " ".join(given), *verdicts]
            before = spec
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _shown(asked: dict[str, Any]) -> str:
    tag = asked.get("structural_tag")
    spec = {"structural_tag": json.loads(tag)} if tag else asked.get("json", asked)
    return _code(json.dumps(spec, ensure_ascii=False))


def _code(text: str) -> str:
    """A text as code in a table; control characters as escapes."""
    visible = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in text
    )
    marks = "``" if "`" in visible else "`"
    return f"{marks}{visible}{marks}".replace("|", "\\|") if visible else "(empty)"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET}")
