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
_OPENING = "set strict: false, which leaves objects open"


def contradiction(algebra: Algebra, *, opened: bool) -> UnsatisfiableSpecError:
    """Return the error of a schema that allows nothing. `opened`: whether it does where
    objects are open."""
    document = algebra.document
    place: Path = ()
    node = document.nodes[document.number(document.root, document.root_base)]
    seen: set[int] = set()
    while id(node) not in seen:
        seen.add(id(node))
        inner = next(
            (part for part in _needed(node) if _is_empty(algebra, node, *part)), None
        )
        if inner is None:
            break
        path, schema = inner
        place = (*place, *path)
        node = document.nodes[document.number(schema, node.base, place)]
        if isinstance(schema, Mapping) and "$ref" in schema:
            place = node.path
    what, place, hint = _complaint(node, place)
    if opened:
        hint += f", or {_OPENING}"
    return UnsatisfiableSpecError(
        f"allows no output at all: {what}", where=pointer(place), hint=hint
    )


def _is_empty(algebra: Algebra, node: Numbered, path: Path, schema: Any) -> bool:
    try:
        return algebra.empty(algebra.literals(schema, node.base, (*node.path, *path)))
    except UnsupportedSpecError:
        return False  # it may allow what can't be written


def _needed(node: Numbered) -> Iterator[tuple[Path, Any]]:
    """The parts of a schema that each of its values has, or satisfies."""
    keywords = node.keywords
    if "$ref" in keywords:
        yield ("$ref",), {"$ref": keywords["$ref"]}
    for index, member in enumerate(keywords.get("allOf", ())):
        yield ("allOf", index), member
    described = keywords.get("properties", {})
    if keywords.get("type") in ("object", ["object"]):
        for name in keywords.get("required", ()):
            if name in described:
                yield ("properties", name), described[name]
    items = (
        keywords.get("items")
        if keywords.get("minItems") and "prefixItems" not in keywords
        else None
    )
    if keywords.get("type") in ("array", ["array"]) and isinstance(items, Mapping):
        yield ("items",), items


def _complaint(node: Numbered, place: Path) -> tuple[str, Path, str]:
    """What is wrong with a schema of which each part by itself allows something, where,
    and a hint."""
    keywords = node.keywords
    if node.schema is False:
        return "`false` allows no value", place, "write a schema, or {} for any value"
    crossed = crossed_bounds(keywords)
    if crossed:
        what, hint = crossed
        return what, (*place, what.split()[0]), hint
    lacking = [
        name
        for name in keywords.get("required", ())
        if name not in keywords.get("properties", {})
    ]
    if (
        lacking
        and "additionalProperties" in keywords
        and "patternProperties" not in keywords
    ):
        name = lacking[0][:60]
        what = f'`required` names "{name}", which `properties` does not describe, and the object is closed'
        hint = f'add "{name}" to `properties`, or take it out of `required`'
        return what, (*place, "required"), hint
    likely = next((name for name in _LIKELY if name in keywords), None)
    names = [
        *([likely] if likely else []),
        *(name for name in keywords if name != likely),
    ]
    told = ", ".join(f"`{name}`" for name in names if not name.startswith("$"))
    hint = "change one of them; a recursion needs an end: null, or a name that is not in `required`"
    where = (*place, likely) if likely else place
    return (
        f"{told} together allow nothing" if told else "no value satisfies it",
        where,
        hint,
    )
