"""`oneOf` as `anyOf`, where its branches exclude each other: no grammar can express more. Depends on spec.

That they do is proven by types, values, ranges, or a property that both describe and one requires. A proof
that fails does not mean that they overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.traversal import Context
from guided_plugin.grammar.xgrammar.rewrites.values import canonical, type_of
from guided_plugin.spec.schema import TYPES, resolve_pointer

# How deep to look into references and properties: discriminators lie at the top.
_DEPTH = 6

_EVERY = frozenset(TYPES) - {"integer"}  # integers are numbers


def open_exclusive(node: dict[str, Any], context: Context) -> Any:
    """The subschema with `anyOf` where `oneOf` says the same."""
    branches = node.get("oneOf")
    if not branches or "anyOf" in node or context.is_target("oneOf"):
        return node
    if not all_disjoint(branches, context.document, closed=context.strict):
        return node
    return {("anyOf" if keyword == "oneOf" else keyword): value for keyword, value in node.items()}


def all_disjoint(branches: list[Any], document: Any, *, closed: bool = False) -> bool:
    """Whether it is proven that no value fits two of the branches. `closed`: objects are, unless opened."""
    return all(disjoint(a, b, document, closed=closed) for a, b in combinations(branches, 2))


def disjoint(a: Any, b: Any, document: Any, *, closed: bool = False, depth: int = _DEPTH) -> bool:
    """Whether it is proven that no value fits both schemas."""
    a, b = _resolved(a, document), _resolved(b, document)
    if a is False or b is False:
        return True
    if not isinstance(a, Mapping) or not isinstance(b, Mapping) or depth == 0:
        return False

    def apart(one: Any, other: Any) -> bool:
        return disjoint(one, other, document, closed=closed, depth=depth - 1)

    for schema, other in ((a, b), (b, a)):
        for keyword in ("anyOf", "oneOf"):
            branches = schema.get(keyword)
            if isinstance(branches, list) and all(apart(branch, other) for branch in branches):
                return True
        if any(apart(part, other) for part in schema.get("allOf") or ()):
            return True
    values_a, values_b = _values(a), _values(b)
    if values_a is not None and values_b is not None:
        return values_a.keys().isdisjoint(values_b)
    shared = _types(a) & _types(b)
    if not shared:
        return True
    if shared == {"number"}:
        return _below(a, b) or _below(b, a)
    if shared != {"object"}:
        return False
    required_a, required_b = _required(a), _required(b)
    described_a, described_b = a.get("properties") or {}, b.get("properties") or {}
    return (
        # A property that one side requires and both describe: no value fits both descriptions.
        any(
            name in described_a and name in described_b and apart(described_a[name], described_b[name])
            for name in required_a | required_b
        )
        or _forbids(b, required_a, closed)
        or _forbids(a, required_b, closed)
    )


def _resolved(schema: Any, document: Any) -> Any:
    for _ in range(_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        try:
            schema = resolve_pointer(document, reference)
        except KeyError:
            return schema
    return schema


def _values(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The finite number of values that a schema may allow, by their canonical text, or None."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return {canonical(value): value for value in listed} if isinstance(listed, list) else None


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    named, values = schema.get("type", _EVERY), _values(schema)
    names = [named] if isinstance(named, str) else named
    found = frozenset("number" if name == "integer" else name for name in names)
    return found if values is None else found & {type_of(value) for value in values.values()}


def _below(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    high, low = a.get("maximum"), b.get("minimum")
    return isinstance(high, int | float) and isinstance(low, int | float) and high < low


def _forbids(schema: Mapping[str, Any], names: set[str], closed: bool) -> bool:
    """Whether a closed object has no room for one of these properties."""
    if {"patternProperties", "allOf", "anyOf", "oneOf", "$ref", "if"} & schema.keys():
        return False
    described = schema.get("properties")
    shut = schema.get("additionalProperties", not (closed and isinstance(described, Mapping))) is False
    return shut and bool(names - set(described or {}))


def _required(schema: Mapping[str, Any]) -> set[str]:
    names = schema.get("required")
    return set(names) if isinstance(names, list) else set()
