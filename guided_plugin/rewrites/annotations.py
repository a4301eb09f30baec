"""Drops what decides nothing: annotations, keywords for another type or of another draft, bounds of zero.

A keyword that xgrammar doesn't know beside it may cost a schema its backend.
"""

from __future__ import annotations

from typing import Any

from guided_plugin.hookspecs import hookimpl
from guided_plugin.lowering.document import KEYWORDS, SINCE, TYPES_OF
from guided_plugin.rewrites.walking import Context, SchemaRewrite

__all__ = ["drop_annotations"]

_REMARKS = ("title", "description", "default", "examples", "$comment", "readOnly", "writeOnly", "deprecated")
_CONTENT = ("contentEncoding", "contentMediaType", "contentSchema")
_NEEDS = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}
_ZERO = ("minLength", "minItems", "minProperties")


def drop_annotations(node: dict[str, Any], context: Context) -> Any:
    """The subschema with the keywords that count."""
    alone = context.draft <= 7 and isinstance(node.get("$ref"), str)
    idle = {
        keyword
        for keyword in node
        if not context.is_referred(keyword)
        and (_is_idle(node, keyword, context) or (alone and keyword in KEYWORDS and keyword != "$ref"))
    }
    for keyword in idle:
        del node[keyword]
    return node


def _is_idle(node: dict[str, Any], keyword: str, context: Context) -> bool:
    value = node[keyword]
    if keyword in _REMARKS or keyword in _CONTENT:
        return True
    if any(context.draft < since and keyword in names for since, names in SINCE.items()):
        return True
    if keyword in _ZERO and value == 0:
        return True
    if keyword in _NEEDS and node.keys().isdisjoint(_NEEDS[keyword]):
        return True
    if keyword == "additionalItems" and not isinstance(node.get("items"), list):
        return True
    if (keyword == "uniqueItems" and value is False) or (keyword == "required" and not value):
        return True
    if keyword in ("items", "propertyNames", "contains") and value is True:
        return keyword != "contains"
    return _is_of_another_type(node, keyword)


def _is_of_another_type(node: dict[str, Any], keyword: str) -> bool:
    named = node.get("type")
    if named is None or keyword not in TYPES_OF:
        return False
    return TYPES_OF[keyword].isdisjoint({named} if isinstance(named, str) else named)


@hookimpl
def register_lowerings(register: Any) -> None:
    """Offer it."""
    register("annotations", SchemaRewrite(drop_annotations))
