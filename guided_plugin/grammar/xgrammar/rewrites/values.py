"""Folds what stands beside `enum` and `const` into their lists of values. Touches disjoint for types.

xgrammar reads nothing beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.disjoint import canonical, type_of
from guided_plugin.grammar.xgrammar.rewrites.walking import Context, SchemaRewrite
from guided_plugin.hookspecs import hookimpl

__all__ = ["fold_values"]


def fold_values(node: dict[str, Any], context: Context) -> Any:
    """The subschema with the values that its other keywords allow, and without those keywords."""
    if "enum" not in node and ("const" not in node or context.draft < 6):
        return node
    values = list(node["enum"]) if "enum" in node else [node["const"]]
    if "enum" in node and "const" in node and context.draft >= 6:
        values = [value for value in values if canonical(value) == canonical(node["const"])]
    beside = [
        keyword for keyword in node if keyword in _CHECKS and _holds_for(keyword, node[keyword]) is not None
    ]
    if context.draft <= 4 and ("exclusiveMinimum" in node or "exclusiveMaximum" in node):
        beside = [keyword for keyword in beside if "imum" not in keyword]
    for keyword in beside:
        holds = _holds_for(keyword, node[keyword])
        values = [value for value in values if holds is None or holds(value)]
    kept = list({canonical(value): value for value in values}.values())
    rest = {key: value for key, value in node.items() if key not in (*beside, "enum", "const")}
    if kept:
        return {"enum": kept, **rest}
    return False


Holds = Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return type_of(value) == "number"


def _type(names: Any) -> Holds:
    wanted = {names} if isinstance(names, str) else set(names)
    return lambda value: (
        type_of(value) in wanted or ("integer" in wanted and _is_number(value) and value == int(value))
    )


_CHECKS: dict[str, Callable[[Any], Holds]] = {
    "type": _type,
    "minimum": lambda bound: lambda value: not _is_number(value) or value >= bound,
    "maximum": lambda bound: lambda value: not _is_number(value) or value <= bound,
    "exclusiveMinimum": lambda bound: lambda value: not _is_number(value) or value > bound,
    "exclusiveMaximum": lambda bound: lambda value: not _is_number(value) or value < bound,
    "minLength": lambda bound: lambda value: not isinstance(value, str) or len(value) >= bound,
    "maxLength": lambda bound: lambda value: not isinstance(value, str) or len(value) <= bound,
    "minItems": lambda bound: lambda value: not isinstance(value, list) or len(value) >= bound,
    "maxItems": lambda bound: lambda value: not isinstance(value, list) or len(value) <= bound,
    "minProperties": lambda bound: lambda value: not isinstance(value, dict) or len(value) >= bound,
    "maxProperties": lambda bound: lambda value: not isinstance(value, dict) or len(value) <= bound,
    "required": lambda names: lambda value: not isinstance(value, dict) or set(names) <= value.keys(),
}


def _holds_for(keyword: str, value: Any) -> Holds | None:
    if isinstance(value, bool):  # a draft 3 `required`, a draft 4 `exclusiveMinimum`
        return None
    return _CHECKS[keyword](value)


@hookimpl
def register_lowerings(register: Any) -> None:
    """Offer it."""
    register("values", SchemaRewrite(fold_values))
