"""`oneOf` as `anyOf`, where its branches are proven to exclude each other. Touches disjoint.

By type, by values, by ranges, by a property that both describe and one requires.
"""

from __future__ import annotations

from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.disjoint import all_disjoint
from guided_plugin.grammar.xgrammar.rewrites.walking import Context, SchemaRewrite
from guided_plugin.hookspecs import hookimpl

__all__ = ["open_exclusive"]


def open_exclusive(node: dict[str, Any], context: Context) -> Any:
    """The subschema with `anyOf` where `oneOf` says the same."""
    branches = node.get("oneOf")
    if not branches or "anyOf" in node or context.is_referred("oneOf"):
        return node
    if not all_disjoint(branches, context.document, closed=context.strict):
        return node
    return {("anyOf" if keyword == "oneOf" else keyword): value for keyword, value in node.items()}


@hookimpl
def register_lowerings(register: Any) -> None:
    """Offer it."""
    register("exclusive", SchemaRewrite(open_exclusive))
