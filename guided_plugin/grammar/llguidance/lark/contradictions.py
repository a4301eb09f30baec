"""Which part of a schema allows nothing, and what to change. Depends on algebra and document.

Asked only about schemas that are refused. A part that must hold and allows nothing by itself is looked into;
in the innermost one, the keywords are named without which it would allow something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from guided_plugin.errors import GrammarError, UnsatisfiableSpecError
from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.constraints import Literals
from guided_plugin.grammar.llguidance.lark.document import Document, Numbered
from guided_plugin.spec.references import Path, Scope
from guided_plugin.spec.schema import crossed_bounds, pointer

_SECONDS = 0.5
"""Processor time for one answer. What is found until then is the answer."""

_OPENING = "set strict: false, which leaves objects open"
_NOTHING = "allows no output at all"

AllowsNothing = Callable[[Algebra, Literals], bool]
Child = tuple[Path, Any]


def contradiction(
    algebra: Algebra, nothing: AllowsNothing, opened: Callable[[], bool]
) -> UnsatisfiableSpecError:
    """The error of a schema that allows nothing. `opened`: whether it allows something where objects are open
    unless it closes them."""
    return _Search(algebra, nothing, opened).error()


class _OutOfTimeError(Exception):
    pass


class _Search:
    def __init__(self, algebra: Algebra, nothing: AllowsNothing, opened: Callable[[], bool]) -> None:
        self._algebra, self._nothing, self._opened = algebra, nothing, opened
        self._document: Document = algebra.document
        self._end = time.process_time() + _SECONDS

    def error(self) -> UnsatisfiableSpecError:
        node = self._node(self._document.root, self._document.root_base, ())
        place: Path = ()
        seen: set[int] = set()
        try:
            while True:
                seen.add(id(node))
                inner = next((child for child in _needed(node) if self._is_empty(node, child)), None)
                if inner is None:
                    return self._local(node, place)
                place = (*place, *inner[0])
                node = self._node(inner[1], node.base, place)
                if id(node) in seen:
                    return _error(
                        "it needs itself inside itself, without an end",
                        place,
                        "let the recursion end: take the name out of `required`, or allow null as well",
                    )
                if isinstance(inner[1], Mapping) and "$ref" in inner[1]:
                    place = node.path  # the path of an equal schema may be another one
        except (_OutOfTimeError, GrammarError):
            return _error(_together(node), place, "change one of them")

    def _node(self, schema: Any, base: Scope, path: Path) -> Numbered:
        return self._document.nodes[self._document.number(schema, base, path)]

    def _is_empty(self, node: Numbered, child: Child) -> bool:
        return self._allows_nothing(child[1], node.base, (*node.path, *child[0]))

    def _allows_nothing(self, schema: Any, base: Scope, path: Path) -> bool:
        if time.process_time() > self._end:
            raise _OutOfTimeError
        return self._nothing(self._algebra, self._algebra.literals(schema, base, path))

    def _local(self, node: Numbered, place: Path) -> UnsatisfiableSpecError:
        """The error of a schema of which each part by itself allows something."""
        if node.schema is False:
            return _error("`false` allows no value", place, "write a schema, or {} for any value")
        crossed = crossed_bounds(node.keywords)
        if crossed:
            return _error(crossed[0], (*place, crossed[0].split()[0]), crossed[1])
        lacking = _undescribed(node.keywords)
        alone = self._freeing(node, lacking)
        if "required" in alone and lacking:
            return self._closed_out(node, place, lacking)
        if not alone:
            return _error(_together(node), place, self._or_opened("change one of them"))
        what = f"{_listed(alone)} contradict each other"
        if len(alone) == 1:
            what = _ALONE.get(alone[0], "nothing meets `{}`").format(alone[0])
        return _error(what, (*place, alone[0]), self._or_opened(f"change {_listed(alone, 'or')}"))

    def _freeing(self, node: Numbered, lacking: list[str]) -> list[str]:
        """The keywords of which one must go, those first that say what must be there."""
        order = sorted(node.keywords, key=lambda keyword: (keyword not in _DEMANDING, keyword))
        found = []
        for keyword in order:
            others = {key: value for key, value in node.schema.items() if key != keyword}
            if not self._allows_nothing(others, node.base, node.path):
                found.append(keyword)
                if keyword == "required" and lacking:
                    break
        if "type" in found and (len(found) > 2 or not _OF_ANY_TYPE & {*found}):
            found.remove("type")
        return found[:4]

    def _closed_out(self, node: Numbered, place: Path, lacking: list[str]) -> UnsatisfiableSpecError:
        names = ", ".join(f'"{name[:60]}"' for name in lacking[:3])
        what = f"`required` names {names}, which `properties` does not describe, and the object is closed"
        hint = f'add "{lacking[0][:60]}" to `properties`, or take it out of `required`'
        if not {"additionalProperties", "unevaluatedProperties"} & node.keywords.keys():
            hint = f'add "{lacking[0][:60]}" to `properties`, or {_OPENING}'
        return _error(what, (*place, "required"), hint)

    def _or_opened(self, hint: str) -> str:
        return f"{hint}, or {_OPENING}" if self._opened() else hint


_ALONE = {
    "allOf": "the parts of `allOf` contradict each other",
    "anyOf": "no alternative of `anyOf` allows anything",
    "oneOf": "no value satisfies exactly one alternative of `oneOf`",
    "not": "`not` forbids every value",
}
_OF_ANY_TYPE = {"enum", "const", "not", "allOf", "anyOf", "oneOf", "$ref", "if", "format"}
_DEMANDING = ("required", "minItems", "minLength", "minProperties", "minContains", "const", "enum")


def _needed(node: Numbered) -> Iterator[Child]:
    """The parts of a schema that each of its values has, or satisfies."""
    keywords = node.keywords
    if "$ref" in keywords:
        yield ("$ref",), {"$ref": keywords["$ref"]}
    for index, member in enumerate(keywords.get("allOf", ())):
        yield ("allOf", index), member
    described, required = keywords.get("properties", {}), keywords.get("required", ())
    if keywords.get("type") in ("object", ["object"]) and isinstance(required, list):
        for name in required:
            if name in described:
                yield ("properties", name), described[name]
    items = keywords.get("items") if keywords.get("minItems") and "prefixItems" not in keywords else None
    if keywords.get("type") in ("array", ["array"]) and isinstance(items, Mapping):
        yield ("items",), items


def _undescribed(keywords: Mapping[str, Any]) -> list[str]:
    required = keywords.get("required")
    if not isinstance(required, list) or "patternProperties" in keywords:
        return []
    return [name for name in required if name not in keywords.get("properties", {})]


def _together(node: Numbered) -> str:
    names = [name for name in node.keywords if not name.startswith("$")][:6]
    return f"{_listed(names)} together allow nothing" if names else "nothing satisfies it"


def _listed(names: list[str], last: str = "and") -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


def _error(what: str, path: Path, hint: str) -> UnsatisfiableSpecError:
    return UnsatisfiableSpecError(f"{_NOTHING}: {what}", where=pointer(path), hint=hint)
