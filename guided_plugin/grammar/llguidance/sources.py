"""A spec as text for llguidance: its own JSON Schema, Lark, or Lark lowered from a schema.

Depends on spec and lark. Nothing here compiles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import HEADER, lowering_pays, schema_to_lark
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.regexes import refuse_unsupported
from guided_plugin.spec.schema import pointer, walk

# With escapes by number a name in `properties` could be written so that it counts as another one's. Without
# them every text has one spelling; what is lost are control characters that have no short escape.
ESCAPES = 'nrbtf\\"'
_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00")


class Source(NamedTuple):
    """One way to write a spec for llguidance."""

    write: Callable[[], str]
    """Raises a GrammarError where this way doesn't express the spec."""
    reason: str


def sources(
    spec: OutputSpec,
    *,
    unenforced: Iterable[str],
    impossible_token: int | None,
    keeps_names_apart: Callable[[], bool],
) -> list[Source]:
    """The ways that may work, the cheapest first."""
    if spec.kind != "json_schema":
        return [Source(lambda: _source(spec), "")]
    document = spec.document()
    direct = Source(lambda: _schema_source(spec, keeps_names_apart), "as a JSON schema")
    reason = lowering_pays(document)

    def write() -> str:
        return schema_to_lark(
            document,
            strict=spec.strict,
            flexible=spec.whitespace == "flexible",
            unenforced=unenforced,
            impossible_token=impossible_token,
        )

    why = reason or "llguidance doesn't take the schema as it is"
    lowered = Source(write, f"lowered to a grammar: {why}")
    return [lowered, direct] if reason else [direct, lowered]


def json_source(schema: Mapping[str, Any], **options: Any) -> str:
    """A schema for llguidance's own reading of JSON Schema."""
    return HEADER + "start: %json " + json.dumps({**schema, "x-guidance": options})


def _source(spec: OutputSpec) -> str:
    if spec.kind == "json_object":
        return json_source({"type": "object"}, whitespace_flexible=spec.whitespace == "flexible")
    if spec.kind == "regex":
        from llguidance import LLMatcher

        refuse_unsupported(spec.text, "regex")
        wrapped = json.loads(LLMatcher.grammar_from_regex(spec.text))
        return HEADER + cast("str", wrapped["grammars"][0]["lark_grammar"])
    if spec.kind == "choice":
        choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in spec.document())
        return f"{HEADER}start: {choices}"
    if spec.kind == "grammar" and spec.syntax == "lark":
        return spec.text if "%llguidance" in spec.text else HEADER + spec.text
    what = "structural tags" if spec.kind == "structural_tag" else "EBNF grammars"
    raise UnsupportedSpecError(f"{what} are not supported by llguidance", where=spec.kind)


def _schema_source(spec: OutputSpec, keeps_names_apart: Callable[[], bool]) -> str:
    schema = _closed(spec)
    if schema is False:
        raise UnsatisfiableSpecError("allows no output at all", where=spec.kind)
    options: dict[str, Any] = {"whitespace_flexible": spec.whitespace == "flexible"}
    if _has_open_names(schema):
        if not keeps_names_apart():
            raise UnsupportedSpecError(
                "names that are left open next to described ones are not enforced by this version",
                where="json_schema",
                hint="set additionalProperties to false, or use a newer llguidance",
            )
        if _CONTROL.search(json.dumps(schema, ensure_ascii=False)):
            raise UnsupportedSpecError(
                "a control character next to names that are left open", where="json_schema"
            )
        options["json_allowed_escapes"] = ESCAPES
    return json_source({} if schema is True else schema, **options)


_OBJECT_KEYWORDS = {"properties", "required", "minProperties", "maxProperties", "propertyNames"}
_OPENING = {"additionalProperties", "unevaluatedProperties", "patternProperties"}
_COMPOSING = ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies")


def _closed(spec: OutputSpec) -> Any:
    """The schema with its objects closed where the spec is strict: llguidance has no such mode."""
    document = spec.document()
    if not spec.strict:
        return document
    for path, node in walk(document):
        if not isinstance(node, dict) or _OPENING & node.keys():
            continue
        kind = node.get("type")
        if not (kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node):
            continue
        if _adds_properties(node) or _inside_composition(path, document):
            # Closing one part would forbid the properties of the other parts.
            raise UnsupportedSpecError(
                "an object put together from parts can't be closed",
                where=pointer(path),
                hint="set additionalProperties or use strict=False",
            )
        node["additionalProperties"] = False
    return document


def _adds_properties(node: Mapping[str, Any]) -> bool:
    """Whether the parts next to an object's own properties may describe further ones."""
    if "$ref" in node:
        return True
    parts = {keyword: node[keyword] for keyword in _COMPOSING if keyword in node}
    describing = {"properties", "$ref", "$dynamicRef", *_OPENING}
    return any(isinstance(part, Mapping) and describing & part.keys() for path, part in walk(parts) if path)


def _inside_composition(path: tuple[str | int, ...], document: Any) -> bool:
    """Whether a schema is one part of an object that has others: under allOf, if, not, or next to them."""
    node: Any = document
    for index, part in enumerate(path):
        if part in ("allOf", "if", "then", "else", "not", "dependentSchemas"):
            return True
        describing = isinstance(node, Mapping) and bool(_OBJECT_KEYWORDS & node.keys())
        if part in ("anyOf", "oneOf") and describing and index + 2 == len(path):
            return True
        node = node[part]
    return False


def _has_open_names(schema: Any) -> bool:
    """Whether an object takes other names than those that it describes."""
    return any(
        isinstance(node, Mapping)
        and bool(node.get("properties") or node.get("patternProperties"))
        and node.get("additionalProperties") is not False
        for _, node in walk(schema)
    )
