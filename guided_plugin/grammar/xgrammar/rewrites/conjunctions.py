"""What must hold together, written as one schema: `allOf`, and keywords beside `$ref` or `anyOf`.

Merges bounds, types, values, properties and items; `anyOf` is distributed over what stands beside it. What
has no merged form stays as it was. Touches disjoint for equality of values.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

from guided_plugin.grammar.xgrammar.rewrites.disjoint import canonical
from guided_plugin.grammar.xgrammar.rewrites.walking import Context, SchemaRewrite
from guided_plugin.hookspecs import hookimpl
from guided_plugin.spec.keywords import ASSERTIONS
from guided_plugin.spec.schema import resolve_pointer

__all__ = ["merge_conjunctions"]

# How many merges one subschema may take: nested alternatives multiply.
_BUDGET = 400
_MOST_BRANCHES = 24


class _NotMerged(Exception):
    """Two schemas have no common form that is known here."""


def merge_conjunctions(node: dict[str, Any], context: Context) -> Any:
    """The subschema as one conjunction."""
    beside = [
        keyword for keyword in node if keyword in ASSERTIONS and keyword not in ("allOf", "anyOf", "$ref")
    ]
    several = len(beside) + sum(keyword in node for keyword in ("anyOf", "$ref"))
    if "allOf" not in node and (several <= 1 or not {"anyOf", "$ref"} & node.keys()):
        return node
    if "$ref" in node and context.draft <= 7:
        return node
    if any(context.is_referred(keyword) for keyword in ("allOf", "anyOf")):
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
        merged: Any = {key: value for key, value in node.items() if key not in ("allOf", "anyOf", "$ref")}
        if "$ref" in node:
            merged = self.merged(merged, {"$ref": node["$ref"]})
        for part in node.get("allOf", ()):
            merged = self.merged(merged, part)
        if "anyOf" in node:
            merged = self._distributed(merged, node["anyOf"])
        return merged

    def merged(self, a: Any, b: Any) -> Any:
        """The values of both."""
        self._left -= 1
        if self._left < 0:
            raise _NotMerged
        if a is False or b is False:
            return False
        if b is True or _says_nothing(b):
            return a
        if a is True or _says_nothing(a):
            return _with_rest(copy.deepcopy(b), a)
        for one, other in ((a, b), (b, a)):
            if "$ref" in one:
                return self._followed(one, other)
            if "allOf" in one:
                return self.merged(self.whole(one), other)
            if "anyOf" in one:
                rest = {key: value for key, value in one.items() if key != "anyOf"}
                return self._distributed(self.merged(rest, other), one["anyOf"])
        return self._closed(self._keywords(a, b))

    def _followed(self, one: Mapping[str, Any], other: Any) -> Any:
        reference = one["$ref"]
        if not isinstance(reference, str) or not reference.startswith("#") or reference in self._following:
            raise _NotMerged
        try:
            target = resolve_pointer(self._context.document, reference)
        except KeyError:
            raise _NotMerged from None
        # Up to draft 7 nothing counts beside it.
        rest = {} if self._context.draft <= 7 else {k: v for k, v in one.items() if k != "$ref"}
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
        named = _rest(base)
        kept = [{k: v for k, v in b.items() if k not in named} if isinstance(b, dict) else b for b in kept]
        return {**named, "anyOf": kept} if len(kept) > 1 or named else kept[0]

    def _keywords(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> Any:
        if not _UNEVALUATED.isdisjoint({*a, *b}):
            raise _NotMerged
        if any(not keys.isdisjoint(a) and not keys.isdisjoint(b) for keys in _TOGETHER):
            raise _NotMerged
        merged: dict[str, Any] = {}
        for key in (*a, *(key for key in b if key not in a)):
            if key in ("properties", "additionalProperties", "patternProperties", "items", "prefixItems"):
                continue
            if key in a and key in b:
                merged[key] = a[key] if a[key] == b[key] else self._both(key, a[key], b[key])
                if merged[key] is None:
                    return False
            else:
                merged[key] = a[key] if key in a else b[key]
        merged |= self._objects(a, b) | self._items(a, b)
        return merged

    def _both(self, key: str, a: Any, b: Any) -> Any:
        """The value of a keyword that says what both say; None where nothing satisfies both."""
        if key == "type":
            return _types(a, b)
        if key in ("enum", "const"):
            return self._values(key, a, b)
        if key == "required":
            return [*a, *(name for name in b if name not in a)]
        if key in ("$defs", "definitions"):
            return a
        join = _JOINS.get(key)
        if join is None or isinstance(a, bool) != isinstance(b, bool):
            raise _NotMerged
        return join(a, b)

    def _values(self, key: str, a: Any, b: Any) -> Any:
        if key == "const":
            return a if canonical(a) == canonical(b) else None
        allowed = {canonical(value) for value in b}
        return [value for value in a if canonical(value) in allowed] or None

    def _objects(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
        keys = ("properties", "additionalProperties", "patternProperties")
        if not any(key in b for key in keys):
            return {key: a[key] for key in keys if key in a}
        if not any(key in a for key in keys):
            return {key: copy.deepcopy(b[key]) for key in keys if key in b}
        if "patternProperties" in a or "patternProperties" in b:
            raise _NotMerged
        more_a, more_b = a.get("additionalProperties", True), b.get("additionalProperties", True)
        if self._context.strict and ("additionalProperties" in a) != ("additionalProperties" in b):
            # Whether the one without it is closed by default depends on the other: leave it to others.
            raise _NotMerged
        own, others = a.get("properties", {}), b.get("properties", {})
        described = {}
        for name in (*own, *(name for name in others if name not in own)):
            described[name] = self.merged(own.get(name, more_a), others.get(name, more_b))
        merged: dict[str, Any] = {"properties": described}
        if "additionalProperties" in a or "additionalProperties" in b:
            merged["additionalProperties"] = self.merged(more_a, more_b)
        return merged

    def _items(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
        keys = ("items", "prefixItems")
        if not any(key in b for key in keys):
            return {key: a[key] for key in keys if key in a}
        if not any(key in a for key in keys):
            return {key: copy.deepcopy(b[key]) for key in keys if key in b}
        if (
            "prefixItems" in a
            or "prefixItems" in b
            or isinstance(a["items"], list)
            or isinstance(b["items"], list)
        ):
            raise _NotMerged
        return {"items": self.merged(a["items"], b["items"])}

    def _closed(self, merged: Any) -> Any:
        """False for a closed object that must have a property which it has no room for."""
        if not isinstance(merged, dict) or merged.get("type") != "object" or "patternProperties" in merged:
            return merged
        if "properties" not in merged or not isinstance(merged.get("required"), list):
            return merged
        described = merged["properties"]
        if any(described.get(name) is False for name in merged["required"]):
            return False
        closed = merged.get("additionalProperties", not self._context.strict) is False
        if closed and any(name not in described for name in merged["required"]):
            return False
        return merged


_UNEVALUATED = {"unevaluatedProperties", "unevaluatedItems"}
# Keywords that are read together: those of two schemas don't mix.
_TOGETHER = ({"if", "then", "else"}, {"contains", "minContains", "maxContains"})


def _says_nothing(schema: Mapping[str, Any]) -> bool:
    return ASSERTIONS.isdisjoint(schema)


def _rest(schema: Any) -> dict[str, Any]:
    """What names or describes a schema and says nothing of values."""
    return (
        {key: value for key, value in schema.items() if key not in ASSERTIONS}
        if isinstance(schema, dict)
        else {}
    )


def _with_rest(schema: Any, empty: Any) -> Any:
    rest = _rest(empty)
    if not rest:
        return schema
    return {**rest, **(schema if isinstance(schema, dict) else ({} if schema else {"not": {}}))}


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
    **dict.fromkeys(
        (
            "minimum",
            "exclusiveMinimum",
            "minLength",
            "minItems",
            "minProperties",
        ),
        max,
    ),
    **dict.fromkeys(
        (
            "maximum",
            "exclusiveMaximum",
            "maxLength",
            "maxItems",
            "maxProperties",
        ),
        min,
    ),
    "multipleOf": _multiple,
    "uniqueItems": lambda a, b: a or b,
}


@hookimpl
def register_lowerings(register: Any) -> None:
    """Offer it."""
    register("conjunctions", SchemaRewrite(merge_conjunctions))
