"""Whether two JSON Schemas can both hold of one value. Touches schema only.

`oneOf` is `anyOf` where the branches exclude each other, and grammars can express only that. The answer
here is a proof: False means "not proven", never "they overlap".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from guided_plugin.spec.schema import TYPES, resolve_pointer

__all__ = ["all_disjoint", "canonical", "disjoint", "type_of"]

# How deep to look into references and properties: discriminators lie at the top.
_DEPTH = 6

_EVERY = frozenset(TYPES) - {"integer"}  # integers are numbers


def all_disjoint(branches: list[Any], document: Any, *, closed: bool = False) -> bool:
    """Whether no value fits two of the branches. `closed`: objects are closed unless opened."""
    return all(disjoint(a, b, document, closed=closed) for a, b in combinations(branches, 2))


def disjoint(a: Any, b: Any, document: Any, *, closed: bool = False, depth: int = _DEPTH) -> bool:
    """Whether it is proven that no value fits both schemas."""
    a, b = _resolve(a, document), _resolve(b, document)
    if a is False or b is False:
        return True
    if not isinstance(a, Mapping) or not isinstance(b, Mapping) or depth == 0:
        return False
    for schema, other in ((a, b), (b, a)):
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list) and all(
                disjoint(branch, other, document, closed=closed, depth=depth - 1) for branch in branches
            ):
                return True
        if any(
            disjoint(part, other, document, closed=closed, depth=depth - 1)
            for part in schema.get("allOf") or ()
        ):
            return True
    values_a, values_b = _values(a), _values(b)
    if values_a is not None and values_b is not None:
        return not values_a & values_b
    shared = _types(a) & _types(b)
    if not shared:
        return True
    if shared != {"object"}:
        return shared == {"number"} and _ranges_apart(a, b)
    return _objects_disjoint(a, b, document, closed, depth)


def _resolve(schema: Any, document: Any) -> Any:
    for _ in range(_DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        if not schema["$ref"].startswith("#"):
            return schema
        try:
            schema = resolve_pointer(document, schema["$ref"])
        except KeyError:
            return schema
    return schema


def _values(schema: Mapping[str, Any]) -> set[str] | None:
    """The finite set of values a schema may allow, each as canonical JSON, or None."""
    if "const" in schema:
        return {canonical(schema["const"])}
    if isinstance(schema.get("enum"), list):
        return {canonical(value) for value in schema["enum"]}
    return None


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


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    found = _EVERY
    named = schema.get("type")
    if named is not None:
        names = named if isinstance(named, list) else [named]
        found = frozenset("number" if name == "integer" else name for name in names)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        found &= {type_of(value) for value in values}
    return found


def type_of(value: Any) -> str:
    """The JSON type of a value; integers are numbers."""
    if value is None:
        return "null"
    kinds = ((bool, "boolean"), (int | float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")


def _ranges_apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return _below(a, b) or _below(b, a)


def _below(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    high, low = a.get("maximum"), b.get("minimum")
    numbers = all(isinstance(bound, int | float) for bound in (high, low))
    return numbers and high < low  # type: ignore[operator]


def _objects_disjoint(
    a: Mapping[str, Any], b: Mapping[str, Any], document: Any, closed: bool, depth: int
) -> bool:
    required_a, required_b = _required(a), _required(b)
    properties_a, properties_b = a.get("properties") or {}, b.get("properties") or {}
    for name in required_a | required_b:
        # A property that one side demands and the other describes: the descriptions must clash.
        if (
            name in properties_a
            and name in properties_b
            and disjoint(properties_a[name], properties_b[name], document, closed=closed, depth=depth - 1)
        ):
            return True
    return _forbids(b, required_a, closed) or _forbids(a, required_b, closed)


def _forbids(schema: Mapping[str, Any], names: set[str], closed: bool) -> bool:
    """Whether a closed object has no room for one of these properties."""
    if {"patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"} & schema.keys():
        return False
    described = schema.get("properties")
    if "additionalProperties" in schema:
        shut = schema["additionalProperties"] is False
    else:
        shut = closed and isinstance(described, Mapping)
    return shut and bool(names - set(described or {}))


def _required(schema: Mapping[str, Any]) -> set[str]:
    names = schema.get("required")
    return set(names) if isinstance(names, list) else set()
