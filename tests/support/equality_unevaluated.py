"""`unevaluatedProperties` and `unevaluatedItems` for the oracle, of drafts 2019-09 and 2020-12.

The `jsonschema` package misses what `additionalProperties` evaluates in 2019-09, and counts `contains` there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import _legacy_keywords

__all__ = ["unevaluated_items", "unevaluated_properties"]


def unevaluated_properties(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """The keyword."""
    if validator.is_type(instance, "object"):
        others = {name: schema[name] for name in schema if name != "unevaluatedProperties"}
        for name in instance.keys() - _evaluated(validator, instance, others):
            yield from validator.descend(instance[name], rest, path=name)


def unevaluated_items(validator: Any, rest: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """The keyword."""
    if validator.is_type(instance, "array"):
        others = {name: schema[name] for name in schema if name != "unevaluatedItems"}
        for place in set(range(len(instance))) - _evaluated(validator, instance, others):
            yield from validator.descend(instance[place], rest, path=place)


def _evaluated(validator: Any, instance: Any, schema: Any) -> set[Any]:
    """The names or places that a schema evaluates, of an instance that it allows."""
    if not isinstance(schema, Mapping):
        return set()
    found = _properties(instance, schema) if isinstance(instance, dict) else set()
    if isinstance(instance, list):
        found |= _items(validator, instance, schema)
    for inner, part in _in_place(validator, instance, schema):
        found |= _evaluated(inner, instance, part)
    return found


def _in_place(validator: Any, instance: Any, schema: Any) -> Iterator[tuple[Any, Any]]:
    """The schemas that apply to the same instance and allow it, each with its validator."""
    for keyword in ("$ref", "$dynamicRef"):
        if isinstance(schema.get(keyword), str):
            yield _target(validator, validator._resolver.lookup(schema[keyword]))
    if "$recursiveRef" in schema:
        yield _target(validator, _legacy_keywords.lookup_recursive_ref(validator._resolver))
    for keyword in ("allOf", "anyOf", "oneOf"):
        for part in schema.get(keyword, ()):
            if _allows(validator, instance, part):
                yield validator, part
    if "if" in schema:
        holds = _allows(validator, instance, schema["if"])
        if holds:
            yield validator, schema["if"]
        yield validator, schema.get("then" if holds else "else", True)
    if isinstance(instance, dict):
        for keyword in ("dependentSchemas", "dependencies"):
            for name, part in schema.get(keyword, {}).items():
                if name in instance:
                    yield validator, part


def _target(validator: Any, resolved: Any) -> tuple[Any, Any]:
    return validator.evolve(schema=resolved.contents, _resolver=resolved.resolver), resolved.contents


def _allows(validator: Any, instance: Any, part: Any) -> bool:
    return next(iter(validator.descend(instance, part)), None) is None


def _properties(instance: dict[str, Any], schema: Any) -> set[Any]:
    if "additionalProperties" in schema or "unevaluatedProperties" in schema:
        return set(instance)
    patterns = schema.get("patternProperties", {})
    by_pattern = {name for name in instance for pattern in patterns if re.search(pattern, name)}
    return by_pattern | (schema.get("properties", {}).keys() & instance.keys())


def _items(validator: Any, instance: list[Any], schema: Any) -> set[Any]:
    items, everything = schema.get("items"), set(range(len(instance)))
    if "unevaluatedItems" in schema or ("items" in schema and not isinstance(items, list)):
        return everything
    if isinstance(items, list) and "additionalItems" in schema:
        return everything
    first = items if isinstance(items, list) else schema.get("prefixItems", ())
    found = everything & set(range(len(first)))
    # Drafts before 2020-12 don't count what `contains` finds.
    if "contains" in schema and "2020-12" in validator.META_SCHEMA["$id"]:
        found |= {place for place in everything if _allows(validator, instance[place], schema["contains"])}
    return found
