"""Folds what stands next to `enum` and `const` into their lists of values: xgrammar would drop it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.traversal import Context


def fold_values(node: dict[str, Any], context: Context) -> Any:
    """The subschema with the values that its other keywords allow, and without those keywords."""
    constant = [node["const"]] if "const" in node and context.draft >= 6 else []
    values = node.get("enum", constant)
    if not values:
        return node
    # A boolean is draft 3's `required` or draft 4's `exclusiveMinimum`.
    folded = {key for key, value in node.items() if key in _CHECKS and not isinstance(value, bool)}
    if context.draft <= 4 and ("exclusiveMinimum" in node or "exclusiveMaximum" in node):
        folded = {key for key in folded if "imum" not in key}
    kept = {
        canonical(value): value
        for value in values
        if all(_CHECKS[key](node[key], value) for key in folded)
        and all(canonical(value) == canonical(other) for other in constant)
    }
    if not kept:
        return False
    rest = {key: value for key, value in node.items() if key not in (*folded, "enum", "const")}
    return {"enum": list(kept.values()), **rest}


def canonical(value: Any) -> str:
    """The same text for values that JSON Schema holds equal."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1.0 and 1 are one JSON value
    if isinstance(value, list):
        return "[" + ",".join(canonical(item) for item in value) + "]"
    if isinstance(value, dict):
        members = sorted((json.dumps(key), canonical(item)) for key, item in value.items())
        return "{" + ",".join(f"{key}:{item}" for key, item in members) + "}"
    return json.dumps(value)


def type_of(value: Any) -> str:
    """The JSON type of a value; integers are numbers."""
    if value is None:
        return "null"
    kinds = ((bool, "boolean"), (int | float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")


_Check = Callable[[Any, Any], bool]
"""Whether what a keyword says holds for a value."""


def _is_of_type(names: Any, value: Any) -> bool:
    wanted, kind = {names} if isinstance(names, str) else set(names), type_of(value)
    return kind in wanted or ("integer" in wanted and kind == "number" and value % 1 == 0)


def _bounds(low: str, high: str, kind: str, measure: Callable[[Any], Any]) -> dict[str, _Check]:
    return {
        low: lambda bound, value: type_of(value) != kind or measure(value) >= bound,
        high: lambda bound, value: type_of(value) != kind or measure(value) <= bound,
    }


_CHECKS: dict[str, _Check] = {
    "type": _is_of_type,
    "exclusiveMinimum": lambda bound, value: type_of(value) != "number" or value > bound,
    "exclusiveMaximum": lambda bound, value: type_of(value) != "number" or value < bound,
    "required": lambda names, value: type_of(value) != "object" or set(names) <= value.keys(),
    **_bounds("minimum", "maximum", "number", lambda number: number),
    **_bounds("minLength", "maxLength", "string", len),
    **_bounds("minItems", "maxItems", "array", len),
    **_bounds("minProperties", "maxProperties", "object", len),
}
