"""Formats and lengths of strings as a `pattern`. Depends on spec."""

from __future__ import annotations

from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.traversal import Context
from guided_plugin.spec.formats import FORMATS

# The letters may be lower case, too.
_FORMATS = {
    "date-time": FORMATS["date-time"].replace("T", "[Tt]").replace("Z", "[Zz]"),
    "time": FORMATS["time"].replace("Z", "[Zz]"),
}
# Beyond this xgrammar's patterns get slower than its bounds
# (docs/decisions/xgrammar.md#length-bounds-as-patterns).
_LONGEST = 128


def names_are_strings(node: dict[str, Any], context: Context) -> Any:
    """The schema with the type of its property names: without it, xgrammar takes them for any values."""
    names = node.get("propertyNames")
    if not isinstance(names, dict) or context.is_target("propertyNames"):
        return node
    if isinstance(names.get("enum"), list):
        strings = [value for value in names["enum"] if isinstance(value, str)]
        return {**node, "propertyNames": {**names, "enum": strings}} if strings else node
    types = names.get("type", "string")
    if "const" in names or "string" not in types:
        return node
    return {**node, "propertyNames": {**names, "type": "string"}}


def formats_to_pattern(node: dict[str, Any], context: Context) -> Any:
    """The schema with its format written as a pattern: xgrammar's own readings of formats allow more."""
    name, kind = node.get("format"), node.get("type")
    others = {"pattern", "minLength", "maxLength", "enum", "const", "$ref"}
    if not isinstance(name, str) or name not in FORMATS or not others.isdisjoint(node):
        return node
    if "string" not in (kind if isinstance(kind, list) else [kind]):
        return node
    rest = {key: value for key, value in node.items() if key != "format"}
    return {**rest, "pattern": f"^(?:{_FORMATS.get(name, FORMATS[name])})$"}


def lengths_to_pattern(node: dict[str, Any], context: Context) -> Any:
    """The string schema with its length bounds as a pattern: masks cost a thirtieth, compiles less, too."""
    if node.get("type") != "string" or not {"pattern", "format", "enum", "const", "$ref"}.isdisjoint(node):
        return node
    shortest, longest = int(node.get("minLength", 0)), node.get("maxLength")
    if (longest is None and not shortest) or shortest > _LONGEST or (longest or 0) > _LONGEST:
        return node
    rest = {key: value for key, value in node.items() if key not in ("minLength", "maxLength")}
    return {**rest, "pattern": f"^[\\s\\S]{{{shortest},{'' if longest is None else int(longest)}}}$"}
