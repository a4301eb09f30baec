"""Drops what decides nothing: annotations, keywords for another type or of another draft, bounds of zero.

Next to a keyword that it doesn't know, xgrammar may drop those that count.
"""

from __future__ import annotations

from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.traversal import Context
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.keywords import ANNOTATIONS, ASSERTIONS, idle_reason, names_draft


def drop_annotations(node: dict[str, Any], context: Context) -> Any:
    """The subschema with the keywords that count."""
    for keyword in [key for key in node if _decides_nothing(node, key, context)]:
        if not context.is_target(keyword):
            del node[keyword]
    return node


def _decides_nothing(node: dict[str, Any], keyword: str, context: Context) -> bool:
    value, named = node[keyword], names_draft(context.document)
    return (
        keyword in ANNOTATIONS
        or (keyword in ASSERTIONS and idle_reason(node, keyword, context.draft, named=named) != "")
        or (keyword in ("minLength", "minItems", "minProperties") and value == 0)
        or (keyword == "required" and not value)
        or (keyword in ("items", "propertyNames") and value is True)
        or (keyword == "format" and value not in FORMATS)
        or (keyword == "patternProperties" and not value)
    )
