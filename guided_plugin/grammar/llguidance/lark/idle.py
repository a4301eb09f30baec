"""Why a keyword of a schema decides nothing where it stands. Touches the tables of keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guided_plugin.grammar.llguidance.lark.document import SINCE, TYPES_OF

__all__ = ["ANNOTATIONS", "idle"]

ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "$comment", "readOnly", "writeOnly", "deprecated")
) | {"contentEncoding", "contentMediaType", "contentSchema"}

# Keywords that say nothing without another one.
_NEEDS = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
    "additionalItems": ("items",),
}


def idle(node: Mapping[str, Any], keyword: str, draft: int, *, named: bool = True) -> str:
    """Why a keyword of the standard decides nothing in a schema of a draft; empty where it does.

    `named`: whether the schema names its draft. Where it doesn't, `$recursiveRef` counts too.
    """
    value = node[keyword]
    if draft <= 7 and keyword != "$ref" and isinstance(node.get("$ref"), str):
        return f"beside $ref, which stands alone in draft {draft}"
    since = next((since for since, names in SINCE.items() if keyword in names), 0)
    if draft < since:
        return f"a keyword since {_named(since)}, in a schema of {_named(draft)}"
    if keyword == "$recursiveRef" and draft > 2019 and named:
        return "a keyword of draft 2019-09 alone"
    if keyword == "uniqueItems" and value is False:
        return "false says nothing"
    if keyword == "required" and isinstance(value, bool):
        return "a list of names since draft 4"
    needs = _NEEDS.get(keyword, ())
    if needs and node.keys().isdisjoint(needs):
        return f"says nothing without `{'` or `'.join(needs)}`"
    if keyword == "additionalItems" and not isinstance(node["items"], list):
        return "says nothing without a list in `items`"
    return _of_another_type(node, keyword)


def _of_another_type(node: Mapping[str, Any], keyword: str) -> str:
    named = node.get("type")
    if named is None or keyword not in TYPES_OF:
        return ""
    types = {named} if isinstance(named, str) else set(named)
    if types & TYPES_OF[keyword] or "any" in types:
        return ""
    return f"says nothing of the type {', '.join(sorted(types))}"


def _named(draft: int) -> str:
    return {2019: "draft 2019-09", 2020: "draft 2020-12"}.get(draft, f"draft {draft}")
