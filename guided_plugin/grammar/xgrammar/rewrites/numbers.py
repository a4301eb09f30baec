"""Bounds of integers as whole numbers: xgrammar takes no others."""

from __future__ import annotations

import math
from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.traversal import Context
from guided_plugin.spec.arithmetic import exact

_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def integer_bounds(node: dict[str, Any], context: Context) -> Any:
    """The schema of integers with its bounds rounded inwards, and none of them exclusive."""
    bounds = {key: node[key] for key in _BOUNDS if key in node}
    if (
        node.get("type") != "integer"
        or not bounds
        or any(isinstance(bound, bool) for bound in bounds.values())
    ):
        return node
    low = [math.ceil(exact(bounds["minimum"]))] if "minimum" in bounds else []
    low += [math.floor(exact(bounds["exclusiveMinimum"])) + 1] if "exclusiveMinimum" in bounds else []
    high = [math.floor(exact(bounds["maximum"]))] if "maximum" in bounds else []
    high += [math.ceil(exact(bounds["exclusiveMaximum"])) - 1] if "exclusiveMaximum" in bounds else []
    rest = {key: value for key, value in node.items() if key not in bounds}
    return rest | ({"minimum": max(low)} if low else {}) | ({"maximum": min(high)} if high else {})
