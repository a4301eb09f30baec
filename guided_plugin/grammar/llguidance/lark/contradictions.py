"""Which part of a schema allows nothing, and what to change. Depends on algebra and document.

Asked only about schemas that are refused. A part that must hold and allows nothing by itself is looked into;
in the innermost one, the keywords are named without which it would allow something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from guided_plugin.errors import GrammarError, UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.constraints import Literals
from guided_plugin.grammar.llguidance.lark.document import Numbered
from guided_plugin.spec.references import Path
from guided_plugin.spec.schema import crossed_bounds, pointer

_SECONDS = 0.5
"""Processor time of this thread for one answer. What is found until then is the answer."""

_OPENING = "set strict: false, which leaves objects open"
_NOTHING = "allows no output at all"

Allows = Callable[[Literals], bool]
Child = tuple[Path, Any]


class _OutOfTimeError(Exception):
    pass


def contradiction(algebra: Algebra, allows: Allows, opened: Callable[[], bool]) -> UnsatisfiableSpecError:
    """The error of a schema that allows nothing.

    `allows`: whether literals allow something. `opened`: whether the schema does, where objects are open
    unless it closes them.
    """
    document, end = algebra.document, time.thread_time() + _SECONDS

    def is_empty(node: Numbered, schema: Any, path: Path = ()) -> bool:
        if time.thread_time() > end:
            raise _OutOfTimeError
        try:
            return not allows(algebra.literals(schema, node.base, (*node.path, *path)))
        except UnsupportedSpecError:
            return False  # it may allow what can't be written

    place: Path = ()
    node = document.nodes[document.number(document.root, document.root_base)]
    seen: set[int] = set()
    try:
        while id(node) not in seen:
            seen.add(id(node))
            inner = next(((path, part) for path, part in _needed(node) if is_empty(node, part, path)), None)
            if inner is None:
                return _local(node, place, is_empty, opened)
            path, part = inner
            place = (*place, *path)
            node = document.nodes[document.number(part, node.base, place)]
            if isinstance(part, Mapping) and "$ref" in part and id(node) not in seen:
                place = node.path  # the path of an equal schema may be another one
    except (_OutOfTimeError, GrammarError):
        return _error(_together(node), place, "change one of them")
    hint = "let the recursion end: take the name out of `required`, or allow null as well"
    return _error("it requires itself in an endless recursion", place, hint)


def _local(
    node: Numbered, place: Path, is_empty: Callable[[Numbered, Any], bool], opened: Callable[[], bool]
) -> UnsatisfiableSpecError:
    """The error of a schema of which each part by itself allows something."""
    keywords = node.keywords
    if node.schema is False:
        return _error("`false` allows no value", place, "write a schema, or {} for any value")
    crossed = crossed_bounds(keywords)
    if crossed:
        return _error(crossed[0], (*place, crossed[0].split()[0]), crossed[1])
    # The keywords of which one must go, those first that say what must be there.
    order = sorted(keywords, key=lambda keyword: (keyword not in _DEMANDING, keyword))
    alone = [key for key in order if not is_empty(node, {k: v for k, v in node.schema.items() if k != key})]
    lacking = [name for name in keywords.get("required", ()) if name not in keywords.get("properties", {})]
    by_itself = {"additionalProperties", "unevaluatedProperties"} & keywords.keys()
    if "required" in alone and lacking and by_itself and "patternProperties" not in keywords:
        names = ", ".join(f'"{name[:60]}"' for name in lacking[:3])
        what = f"`required` names {names}, which `properties` does not describe, and the object is closed"
        hint = f'add "{lacking[0][:60]}" to `properties`, or take it out of `required`'
        return _error(what, (*place, "required"), hint)
    if "type" in alone and (len(alone) > 2 or not _OF_ANY_TYPE & {*alone}):
        alone.remove("type")
    hint = "change it" if len(alone) == 1 else "change one of them"
    hint = f"{hint}, or {_OPENING}" if opened() else hint
    if not alone:
        return _error(_together(node), place, hint)
    what = f"{_listed(alone[:4])} contradict each other"
    if len(alone) == 1:
        what = _ALONE.get(alone[0], "no value satisfies `{}`").format(alone[0])
    return _error(what, (*place, alone[0]), hint)


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


def _together(node: Numbered) -> str:
    names = [name for name in node.keywords if not name.startswith("$")][:6]
    return f"{_listed(names)} together allow nothing" if names else "no value satisfies it"


def _listed(names: list[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _error(what: str, path: Path, hint: str) -> UnsatisfiableSpecError:
    return UnsatisfiableSpecError(f"{_NOTHING}: {what}", where=pointer(path), hint=hint)
