"""JSON Schema as a tree: walking it, pointing into it, refusing what is malformed.

Depends on errors, forms and keywords. Knows the shape of keywords, not how any backend
enforces them. No function here recurses: a schema nested a thousand deep must not
exhaust the stack.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from guided_plugin.errors import SpecError, did_you_mean, near_miss, printable, shown
from guided_plugin.keywords import ASSERTIONS, KEYWORDS, subschemas
from guided_plugin.spec.forms import Kind
from guided_plugin.spec.references import Path, pointer, resolved, target_of

Schema = Mapping[str, Any] | bool

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def walk(schema: Any) -> Iterator[tuple[Path, Any]]:
    """Every schema in a document, the root first, with its path; what only a reference
    makes a schema comes last."""
    # With the path to the schema around it: many paths, all of them deep, would take
    # more than the document.
    pending: deque[tuple[Path, Path, Any]] = deque([((), (), schema)])
    seen: set[int] = set()
    while pending:
        above, step, node = pending.pop()
        if id(node) in seen:
            continue
        path = above + step
        yield path, node
        if isinstance(node, dict):
            seen.add(id(node))
            for step, child in subschemas(node):
                pending.append((path, step, child))
            if "$ref" in node and (target := target_of(schema, node["$ref"])):
                pending.appendleft(((), target[1], target[0]))


def check_schema(schema: Any) -> None:
    """Refuse a document that is not a JSON Schema, with the path to what is wrong."""
    # The schemas with an `$id` around the one that is looked at, the root first.
    named: list[tuple[Path, Any]] = [((), schema)]
    for path, node in walk(schema):
        while path[: len(named[-1][0])] != named[-1][0]:
            named.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            wrong = f"a schema is an object or true/false, not {_kind(node)}"
            raise SpecError(
                wrong, where=pointer(path), hint="check the brackets around it"
            )
        for keyword in filter(KEYWORDS.__contains__, node):
            complaint = _complaint(KEYWORDS[keyword].value, node[keyword])
            if complaint:
                raise SpecError(
                    complaint[0], where=pointer((*path, keyword)), hint=complaint[1]
                )
        if not path and node and node.keys().isdisjoint(KEYWORDS):
            near = (near_miss(name, _DECIDING) for name in [*node][:10])
            name = next(filter(None, near), "")
            raise SpecError(
                "has no keyword of JSON Schema: any JSON would match",
                where="#",
                hint=f"did you mean {name!r}?"
                if name
                else "put names of properties into `properties`",
            )
        own = node.get("$id", node.get("id"))
        if isinstance(own, str) and not own.startswith("#"):
            named.append((path, node))
        reference = node.get("$ref")
        if isinstance(reference, str):
            _check_reference(schema, named[-1][1], reference, (*path, "$ref"))


def _check_reference(root: Any, named: Any, reference: str, path: Path) -> None:
    """`named`: the innermost schema with an `$id` around it, from which the standard
    reads its pointer."""
    target, _ = resolved(root, reference, path)
    from_named = target_of(named, reference)
    if from_named and from_named[0] is not target:
        raise SpecError(
            f"{shown(reference)} points elsewhere from the `$id` around it than from the root",
            where=pointer(path),
            hint="leave out each `$id` but that of the root",
        )


# Types of Python that tools are described with.
_PYTHON = {"dict": "object", "float": "number"}

_NUMBER = "write the number without quotes, or leave the keyword out"
_NAMES = 'for example ["name", "age"]'

Complaint = tuple[str, str] | None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
    }
    return names.get(
        type(value), "an object" if isinstance(value, Mapping) else type(value).__name__
    )


def _complaint(kind: str, value: Any) -> Complaint:
    """Return what is wrong with the value of a keyword that takes this kind, and what
    to do about it."""
    listed = isinstance(value, list)
    match kind:
        case "types":
            for name in value if listed else [value]:
                if name not in TYPES:
                    return f"unknown type {shown(name)}", did_you_mean(
                        _PYTHON.get(str(name), name), TYPES
                    )
            if value == []:
                return (
                    "an empty list of types allows nothing",
                    "leave `type` out to allow every type",
                )
        case "named schemas" | "named schemas or names" | "named names":
            if not isinstance(value, Mapping):
                return f"must be an object, not {_kind(value)}", "write it as {...}"
            for names in value.values() if kind != "named schemas" else ():
                if isinstance(names, list) and (found := _complaint("names", names)):
                    return found
                if kind == "named names" and not isinstance(names, list):
                    return "must hold lists of property names", _NAMES
        case "schemas" | "values":
            if not listed:
                return (
                    f"must be a list of {kind}, not {_kind(value)}",
                    "put [ ] around it",
                )
            if not value and kind == "values":
                return (
                    "an empty enum allows nothing",
                    "leave `enum` out to allow every value",
                )
            if not value:
                return "an empty list allows nothing", "leave the keyword out"
        # Draft 3 wrote `required: true` on the property itself; it says nothing in
        # later drafts.
        case "names" if not isinstance(value, bool):
            if not listed:
                return f"must be a list of property names, not {_kind(value)}", _NAMES
            for name in value:
                if not isinstance(name, str):
                    return (
                        f"must be a list of property names; {shown(name)} is not one",
                        _NAMES,
                    )
        case "count":
            if not _is_number(value) or value < 0 or value % 1:
                wrong = "null" if value is None else shown(value)
                return f"must be a whole number of at least 0, not {wrong}", _NUMBER
        case "bound" if isinstance(value, bool):
            return None  # as draft 4 has it
        case "number" | "bound" | "divisor":
            if not _is_number(value):
                return f"must be a number, not {_kind(value)}", _NUMBER
            if kind == "divisor" and value <= 0:
                return "must be greater than 0", "leave it out where any number will do"
        case "text":
            if not isinstance(value, str):
                return f"must be a string, not {_kind(value)}", "put it in quotes"
        case "flag":
            if not isinstance(value, bool):
                return (
                    f"must be true or false, not {_kind(value)}",
                    "write true, or leave it out",
                )
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_BOUNDS = (
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
)


def crossed_bounds(node: Mapping[str, Any]) -> Complaint:
    """The complaint about a minimum above its maximum. Values of one type are ruled out
    by it, no others."""
    for low, high in _BOUNDS:
        ends = node.get(low), node.get(high)
        if None in ends or not all(isinstance(end, int | float) for end in ends):
            continue
        if node[low] > node[high]:
            return (
                f"{low} {node[low]} is above {high} {node[high]}",
                f"lower {low} or raise {high}",
            )
    return None


def schemas_in(kind: Kind, document: Any) -> Iterator[tuple[str, Any]]:
    """Every schema in a spec's document, with its place. A regex in a structural tag is
    written as in a schema."""
    if kind == "json_schema":
        yield "#", document
    if kind != "structural_tag":
        return
    pending: list[tuple[str, Any]] = [("#", document)]
    while pending:
        place, node = pending.pop()
        if isinstance(node, dict):
            if isinstance(node.get("pattern"), str):
                yield place, {"pattern": node["pattern"]}
            for key, value in node.items():
                if key in ("json_schema", "schema"):
                    yield f"{place}/{key}", value
                elif isinstance(value, (dict, list)):
                    pending.append((f"{place}/{key}", value))
        elif isinstance(node, list):
            pending.extend(
                (f"{place}/{index}", value) for index, value in enumerate(node)
            )


def misspelt(keyword: str, where: str) -> str:
    """A warning about an unknown keyword at a place that looks like a known one, else
    an empty text. The standard ignores it; its author did not mean to. Names that begin
    with `_` or `x-` are meant to be unknown, and an annotation that is misspelt changes
    no output."""
    near = "" if keyword.startswith(("_", "x-")) else near_miss(keyword, _DECIDING)
    said = f"{where}: unknown keyword, ignored (did you mean {near!r}?)"
    return near and printable(said)


_DECIDING = ASSERTIONS | {"$defs", "definitions"}
