"""Which part of a schema allows nothing, and what to change. Depends on algebra and
document.

Asked only about schemas that are refused. The algebra knows of many parts whether they
are empty; the place is the innermost of these that every value must have.
"""

from __future__ import annotations

from typing import NamedTuple

from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.document import Numbered
from guided_plugin.keywords import subschemas
from guided_plugin.spec.references import Path, pointer
from guided_plugin.spec.schema import crossed_bounds

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


class Part(NamedTuple):
    """A subschema by its number, and where it stands."""

    number: int
    path: Path


def contradiction(algebra: Algebra, *, closed: bool) -> UnsatisfiableSpecError:
    """Return the error of a schema that allows nothing. `closed`: whether objects are
    closed that don't say otherwise."""
    document = algebra.document
    root = document.number(document.root)
    part: Part | None = Part(root, ())
    seen: set[int] = set()
    while part is not None and part.number not in seen:
        seen.add(part.number)
        node = document.nodes[part.number]
        place = node.path if node.keywords else part.path
        part = _empty_part(algebra, node)
    what, keyword, hint = _complaint(node)
    if keyword:
        place = (*place, keyword)
    if closed and "properties" in node.keywords:
        hint += ", or set strict: false, which leaves objects open"
    return UnsatisfiableSpecError(
        f"allows no output at all: {what}", where=pointer(place), hint=hint
    )


def _empty_part(algebra: Algebra, node: Numbered) -> Part | None:
    """A part that allows nothing, though each value must satisfy it."""
    keywords = node.keywords
    needed: set[Path] = {("properties", name) for name in keywords.get("required", ())}
    needed.update(("allOf", index) for index in range(len(keywords.get("allOf", ()))))
    if keywords.get("minItems", 0) > len(keywords.get("prefixItems", ())):
        needed.add(("items",))
    for path, schema in subschemas(keywords):
        if path not in needed:
            continue
        place = (*node.path, *path)
        number = algebra.document.number(schema, place)
        try:
            if algebra.empty(frozenset({(number, True)})):
                return Part(number, place)
        except UnsupportedSpecError:
            pass  # it may allow what can't be written
    return None


def _complaint(node: Numbered) -> tuple[str, str, str]:
    """Return the fault of a schema of which each part by itself allows something, its
    keyword, and a hint."""
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
    in_order = [name for name in (*_LIKELY, *keywords) if name in keywords]
    told = ", ".join(f"`{name}`" for name in dict.fromkeys(in_order))
    hint = "change one of them; a recursion needs an end: null, or a name that is not in `required`"
    return f"{told} together allow nothing", in_order[0], hint
