"""Which part of a schema allows nothing, and what to change. Depends on algebra and
document.

Asked only about schemas that are refused. The algebra knows of many parts whether they
are empty; the place is the innermost of these that every value must have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.document import Numbered
from guided_plugin.spec.references import Path
from guided_plugin.spec.schema import crossed_bounds, pointer

_LIKELY = (
    "not",
    "oneOf",
    "anyOf",
    "allOf",
    "const",
    "enum",
    "contains",
    "maxLength",
    "pattern",
    "maximum",
    "minItems",
    "minProperties",
    "required",
)
"""The keywords of which one is mostly the mistake."""


def contradiction(algebra: Algebra, *, closed: bool) -> UnsatisfiableSpecError:
    """Return the error of a schema that allows nothing. `closed`: whether objects are
    closed that don't say otherwise."""
    document = algebra.document
    number: int | None = document.number(document.root, document.root_base)
    seen: set[int] = set()
    while number is not None and number not in seen:
        seen.add(number)
        node = document.nodes[number]
        number = _empty_part(algebra, node)
    what, keyword, hint = _complaint(node)
    if closed and keyword in ("required", "minProperties"):
        hint += ", or set strict: false, which leaves objects open"
    place = (*node.path, keyword) if keyword else node.path
    return UnsatisfiableSpecError(
        f"allows no output at all: {what}", where=pointer(place), hint=hint
    )


def _empty_part(algebra: Algebra, node: Numbered) -> int | None:
    """The number of a part that allows nothing, though each value must satisfy it."""
    for schema, *path in _needed(node.keywords):
        place = (*node.path, *path)
        try:
            if algebra.empty(algebra.literals(schema, node.base, place)):
                return algebra.document.number(schema, node.base, place)
        except UnsupportedSpecError:
            pass  # it may allow what can't be written
    return None


def _needed(keywords: Mapping[str, Any]) -> Iterator[tuple[Any, *Path]]:
    """The parts of a schema that each of its values has, or satisfies, and their
    places."""
    if "$ref" in keywords:
        yield {"$ref": keywords["$ref"]}, "$ref"
    for index, member in enumerate(keywords.get("allOf", ())):
        yield member, "allOf", index
    described = keywords.get("properties", {})
    if keywords.get("type") == "object":
        for name in keywords.get("required", ()):
            if name in described:
                yield described[name], "properties", name
    items = keywords.get("items")
    if keywords.get("type") == "array" and isinstance(items, Mapping):
        if keywords.get("minItems") and "prefixItems" not in keywords:
            yield items, "items"


def _complaint(node: Numbered) -> tuple[str, str, str]:
    """What is wrong with a schema of which each part by itself allows something, at
    which keyword, and a hint."""
    keywords = node.keywords
    if node.schema is False:
        return "`false` allows no value", "", "write a schema, or {} for any value"
    crossed = crossed_bounds(keywords)
    if crossed:
        what, hint = crossed
        return what, what.split()[0], hint
    described = keywords.get("properties", {})
    for name in keywords.get("required", ()):
        if name not in described and "additionalProperties" in keywords:
            told = f'"{name[:60]}"'
            what = f"`required` names {told}, which `properties` does not describe"
            hint = f"add {told} to `properties`, or take it out of `required`"
            return what, "required", hint
    likely = next((name for name in _LIKELY if name in keywords), "")
    told = ", ".join(dict.fromkeys(f"`{name}`" for name in (likely, *keywords) if name))
    hint = "change one of them; a recursion needs an end: null, or a name that is not in `required`"
    return f"{told} together allow nothing", likely, hint
