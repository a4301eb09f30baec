"""Formats and lengths of strings as a `pattern`. Depends on spec."""

from __future__ import annotations

from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.traversal import Context
from guided_plugin.spec.formats import FORMATS

# Formats that xgrammar reads differently: its dates include the 30th of February, its IPv4 addresses leading
# zeros. (Its host names have labels of any length and its mailboxes no short domains, but patterns for those
# take it seconds to compile.)
_FORMATS = {
    "date": FORMATS["date"],
    # The letters may be lower case, too.
    "date-time": FORMATS["date-time"].replace("T", "[Tt]").replace("Z", "[Zz]"),
    "ipv4": FORMATS["ipv4"],
}
# Beyond this xgrammar's patterns get slower than its bounds
# (docs/decisions/xgrammar.md#length-bounds-as-patterns).
_LONGEST = 128


def formats_to_pattern(node: dict[str, Any], context: Context) -> Any:
    """The schema with its format, and that of its property names, written as a pattern."""
    names = node.get("propertyNames")
    if isinstance(names, dict) and "type" not in names:
        # Names are strings, whether or not their schema says so.
        node = {**node, "propertyNames": _with_pattern(names)}
    kind = node.get("type")
    return _with_pattern(node) if "string" in (kind if isinstance(kind, list) else [kind]) else node


def _with_pattern(node: dict[str, Any]) -> dict[str, Any]:
    name = node.get("format")
    others = {"pattern", "minLength", "maxLength", "enum", "const", "$ref"}
    if not isinstance(name, str) or name not in _FORMATS or not others.isdisjoint(node):
        return node
    rest = {key: value for key, value in node.items() if key != "format"}
    return {**rest, "pattern": f"^(?:{_FORMATS[name]})$"}


def lengths_to_pattern(node: dict[str, Any], context: Context) -> Any:
    """The string schema with its length bounds as a pattern: masks cost a thirtieth, compiles less, too."""
    if node.get("type") != "string" or not {"pattern", "format", "enum", "const", "$ref"}.isdisjoint(node):
        return node
    shortest, longest = int(node.get("minLength", 0)), node.get("maxLength")
    if (longest is None and not shortest) or shortest > _LONGEST or (longest or 0) > _LONGEST:
        return node
    rest = {key: value for key, value in node.items() if key not in ("minLength", "maxLength")}
    return {**rest, "pattern": f"^[\\s\\S]{{{shortest},{'' if longest is None else int(longest)}}}$"}
