"""What must hold together, written as one schema: `allOf`, and keywords next to `$ref` or `anyOf`.

Merges bounds, types, values, properties and items; `anyOf` is distributed over what stands next to it. What
has no merged form stays as it was.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Container, Mapping
from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.traversal import Context
from guided_plugin.grammar.xgrammar.rewrites.values import canonical
from guided_plugin.spec.keywords import ASSERTIONS
from guided_plugin.spec.schema import resolve_pointer

# How many merges one subschema may take: nested alternatives multiply.
_BUDGET = 400
_MOST_BRANCHES = 24

_OF_OBJECTS = ("properties", "additionalProperties", "patternProperties")
_OF_ARRAYS = ("items", "prefixItems")
_UNEVALUATED = {"unevaluatedProperties", "unevaluatedItems"}
# Keywords that are read together: those of two schemas don't mix.
_TOGETHER = ({"if", "then", "else"}, {"contains", "minContains", "maxContains"})


class _NotMerged(Exception):
    """Two schemas have no common form that is known here."""


def merge_conjunctions(node: dict[str, Any], context: Context) -> Any:
    """The subschema as one conjunction."""
    asserted = ASSERTIONS & node.keys()
    if "allOf" not in node and (len(asserted) <= 1 or not {"anyOf", "$ref"} & asserted):
        return node
    if "$ref" in node and context.draft <= 7:
        return node
    if any(context.is_target(keyword) for keyword in ("allOf", "anyOf")):
        return node
    try:
        return _Merger(context).whole(node)
    except _NotMerged:
        return node


class _Merger:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._left = _BUDGET
        self._following: list[str] = []

    def whole(self, node: Mapping[str, Any]) -> Any:
        """A schema with everything that it composes merged into it."""
        merged: Any = _without(node, ("allOf", "anyOf", "$ref"))
        if "$ref" in node:
            merged = self.merged(merged, {"$ref": node["$ref"]})
        for part in node.get("allOf", ()):
            merged = self.merged(merged, part)
        if "anyOf" in node:
            merged = self._distributed(merged, node["anyOf"])
        return merged

    def merged(self, a: Any, b: Any) -> Any:
        """A schema that holds where both hold."""
        self._left -= 1
        if self._left < 0:
            raise _NotMerged
        if a is False or b is False:
            return False
        if b is True or ASSERTIONS.isdisjoint(b):
            return a
        if a is True or ASSERTIONS.isdisjoint(a):
            return {**_unasserted(a), **b}
        for one, other in ((a, b), (b, a)):
            if "$ref" in one:
                return self._followed(one, other)
            if "allOf" in one:
                return self.merged(self.whole(one), other)
            if "anyOf" in one:
                return self._distributed(self.merged(_without(one, ["anyOf"]), other), one["anyOf"])
        return self._keywords(a, b)

    def _followed(self, one: Mapping[str, Any], other: Any) -> Any:
        reference = one["$ref"]
        if not isinstance(reference, str) or not reference.startswith("#") or reference in self._following:
            raise _NotMerged
        try:
            target = resolve_pointer(self._context.document, reference)
        except KeyError:
            raise _NotMerged from None
        # Up to draft 7 nothing counts next to it.
        rest = {} if self._context.draft <= 7 else _without(one, ["$ref"])
        self._following.append(reference)
        try:
            return self.merged(self.merged(copy.deepcopy(target), rest), other)
        finally:
            self._following.pop()

    def _distributed(self, base: Any, branches: list[Any]) -> Any:
        if len(branches) > _MOST_BRANCHES:
            raise _NotMerged
        merged = [self.merged(base, branch) for branch in branches]
        kept = [branch for branch in merged if branch is not False]
        if not kept:
            return False
        named = _unasserted(base)
        kept = [_without(branch, named) if isinstance(branch, dict) else branch for branch in kept]
        return {**named, "anyOf": kept} if len(kept) > 1 or named else kept[0]

    def _keywords(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> Any:
        """Two schemas without composition as one; False where nothing satisfies both."""
        if not _UNEVALUATED.isdisjoint({*a, *b}):
            raise _NotMerged
        if any(not keys.isdisjoint(a) and not keys.isdisjoint(b) for keys in _TOGETHER):
            raise _NotMerged
        merged = {**a, **_without(b, a)}
        for key in a:
            if key in b and key not in (*_OF_OBJECTS, *_OF_ARRAYS):
                merged[key] = _both(key, a[key], b[key])
                if merged[key] is None:
                    return False
        if not a.keys().isdisjoint(_OF_OBJECTS) and not b.keys().isdisjoint(_OF_OBJECTS):
            merged |= self._objects(a, b)
        if not a.keys().isdisjoint(_OF_ARRAYS) and not b.keys().isdisjoint(_OF_ARRAYS):
            if "prefixItems" in merged or isinstance(a["items"], list) or isinstance(b["items"], list):
                raise _NotMerged
            merged["items"] = self.merged(a["items"], b["items"])
        return False if self._is_impossible(merged) else merged

    def _objects(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
        if "patternProperties" in a or "patternProperties" in b:
            raise _NotMerged
        more_a, more_b = a.get("additionalProperties", True), b.get("additionalProperties", True)
        if self._context.strict and ("additionalProperties" in a) != ("additionalProperties" in b):
            # Whether the one without it is closed by default depends on the other.
            raise _NotMerged
        own, others = a.get("properties", {}), b.get("properties", {})
        merged: dict[str, Any] = {
            "properties": {
                name: self.merged(own.get(name, more_a), others.get(name, more_b))
                for name in (*own, *(name for name in others if name not in own))
            }
        }
        if "additionalProperties" in a or "additionalProperties" in b:
            merged["additionalProperties"] = self.merged(more_a, more_b)
        return merged

    def _is_impossible(self, schema: Mapping[str, Any]) -> bool:
        """Whether a closed object must have a property which it has no room for."""
        described, required = schema.get("properties"), schema.get("required")
        if schema.get("type") != "object" or "patternProperties" in schema:
            return False
        if described is None or not isinstance(required, list):
            return False
        others = schema.get("additionalProperties", not self._context.strict)
        return any(described.get(name, others) is False for name in required)


def _both(key: str, a: Any, b: Any) -> Any:
    """The value of a keyword that says what both say; None where nothing satisfies both."""
    if key == "const":
        return a if canonical(a) == canonical(b) else None
    if key == "enum":
        allowed = {canonical(value) for value in b}
        return [value for value in a if canonical(value) in allowed] or None
    if isinstance(a, bool) != isinstance(b, bool):
        raise _NotMerged
    if a == b or key in ("$defs", "definitions"):
        return a
    if key not in _JOINS:
        raise _NotMerged
    return _JOINS[key](a, b)


def _types(a: Any, b: Any) -> Any:
    wanted = [{names} if isinstance(names, str) else set(names) for names in (a, b)]
    for names in wanted:
        if "number" in names:
            names.add("integer")
    both = wanted[0] & wanted[1]
    if "number" in both:
        both.discard("integer")
    return sorted(both) if len(both) > 1 else next(iter(both), None)


def _multiple(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return math.lcm(a, b)
    raise _NotMerged


_JOINS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
    "multipleOf": _multiple,
    "required": lambda a, b: list(dict.fromkeys((*a, *b))),
    "type": _types,
    "uniqueItems": lambda a, b: a or b,
}


def _without(schema: Mapping[str, Any], keywords: Container[str]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in keywords}


def _unasserted(schema: Any) -> dict[str, Any]:
    """What names or describes a schema and says nothing about values."""
    return _without(schema, ASSERTIONS) if isinstance(schema, dict) else {}
