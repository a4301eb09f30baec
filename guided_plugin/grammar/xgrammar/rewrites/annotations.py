"""Drops what decides nothing: annotations, keywords for another type or of another draft, bounds of zero.

A keyword that xgrammar doesn't know beside it may cost a schema its backend.
"""

from __future__ import annotations

from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.walking import Context, SchemaRewrite
from guided_plugin.hookspecs import hookimpl
from guided_plugin.spec.keywords import ANNOTATIONS, ASSERTIONS, idle_reason, names_draft

__all__ = ["drop_annotations"]

_ZERO = ("minLength", "minItems", "minProperties")


def drop_annotations(node: dict[str, Any], context: Context) -> Any:
    """The subschema with the keywords that count."""
    dropped = [
        keyword for keyword in node if not context.is_referred(keyword) and _is_idle(node, keyword, context)
    ]
    for keyword in dropped:
        del node[keyword]
    return node


def _is_idle(node: dict[str, Any], keyword: str, context: Context) -> bool:
    value = node[keyword]
    if keyword in ANNOTATIONS:
        return True
    named = names_draft(context.document)
    if keyword in ASSERTIONS and idle_reason(node, keyword, context.draft, named=named):
        return True
    if keyword in _ZERO and value == 0:
        return True
    return (keyword == "required" and not value) or (keyword in ("items", "propertyNames") and value is True)


@hookimpl
def register_lowerings(register: Any) -> None:
    """Offer it."""
    register("annotations", SchemaRewrite(drop_annotations))
