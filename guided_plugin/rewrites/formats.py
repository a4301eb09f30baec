"""`format` as a `pattern`, where xgrammar's own reading of it differs from the standard's.

Its dates take the 30th of February, its IPv4 addresses zeros in front. (Its host names take labels of any
length and its mailboxes no short domains, but patterns for those cost it seconds to compile.)
"""

from __future__ import annotations

from typing import Any

from guided_plugin.hookspecs import hookimpl
from guided_plugin.lowering.formats import FORMATS
from guided_plugin.rewrites.walking import Context, SchemaRewrite

__all__ = ["formats_to_pattern"]

_PATTERNS = {
    "date": FORMATS["date"],
    # The letters may be small ones, too.
    "date-time": FORMATS["date-time"].replace("T", "[Tt]").replace("Z", "[Zz]"),
    "ipv4": FORMATS["ipv4"],
}


def formats_to_pattern(node: dict[str, Any], context: Context) -> Any:
    """The string schema with its format written as a pattern."""
    name = node.get("format")
    if name not in _PATTERNS or node.get("type") != "string":
        return node
    if not {"pattern", "minLength", "maxLength", "enum", "const", "$ref"}.isdisjoint(node):
        return node
    rest = {key: value for key, value in node.items() if key != "format"}
    return {**rest, "pattern": f"^(?:{_PATTERNS[name]})$"}


@hookimpl
def register_lowerings(register: Any) -> None:
    """Offer it."""
    register("formats", SchemaRewrite(formats_to_pattern))
