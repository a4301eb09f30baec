"""`format` as a `pattern`, where xgrammar's own reading of it differs from the standard's.

Its dates take the 30th of February, its IPv4 addresses zeros in front. (Its host names take labels of any
length and its mailboxes no short domains, but patterns for those cost it seconds to compile.)
"""

from __future__ import annotations

from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.walking import Context, SchemaRewrite
from guided_plugin.hookspecs import hookimpl
from guided_plugin.spec.formats import FORMATS

__all__ = ["formats_to_pattern"]

_PATTERNS = {
    "date": FORMATS["date"],
    # The letters may be small ones, too.
    "date-time": FORMATS["date-time"].replace("T", "[Tt]").replace("Z", "[Zz]"),
    "ipv4": FORMATS["ipv4"],
}


def formats_to_pattern(node: dict[str, Any], context: Context) -> Any:
    """The string schema with its format written as a pattern."""
    names = node.get("propertyNames")
    if isinstance(names, dict) and "type" not in names:
        # Names are strings, whether or not their schema says so.
        node = {**node, "propertyNames": _rewritten(names)}
    named = node.get("type")
    return _rewritten(node) if named == "string" or (isinstance(named, list) and "string" in named) else node


def _rewritten(node: dict[str, Any]) -> dict[str, Any]:
    name = node.get("format")
    beside = {"pattern", "minLength", "maxLength", "enum", "const", "$ref"}
    if not isinstance(name, str) or name not in _PATTERNS or not beside.isdisjoint(node):
        return node
    rest = {key: value for key, value in node.items() if key != "format"}
    return {**rest, "pattern": f"^(?:{_PATTERNS[name]})$"}


@hookimpl
def register_lowerings(register: Any) -> None:
    """Offer it."""
    register("formats", SchemaRewrite(formats_to_pattern))
