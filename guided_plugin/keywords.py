"""The keywords of JSON Schema, drafts 3 to 2020-12: one table, and which of them count
in a given schema.

Depends on nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Role = Literal["assertion", "annotation", "structure"]


class Keyword(NamedTuple):
    """The standard's rule for one keyword."""

    value: str = "anything"
    """The kind that its value must be, as `check_schema` checks it."""
    types: frozenset[str] = frozenset()
    """The types of values that it constrains; empty: all of them."""
    since: int = 3
    """The first draft that has it."""
    role: Role = "assertion"
    """Assertions decide which values are valid, annotations don't, and structure names
    and holds schemas."""


_NUMBER = frozenset({"number", "integer"})
_STRING = frozenset({"string"})
_ARRAY = frozenset({"array"})
_OBJECT = frozenset({"object"})
_ANNOTATION = Keyword(role="annotation")
_STRUCTURE = Keyword(role="structure")

KEYWORDS: dict[str, Keyword] = {
    "$ref": Keyword("text"),
    "$recursiveRef": Keyword("text", since=2019),
    "$dynamicRef": Keyword("text", since=2020),
    "type": Keyword("types"),
    "enum": Keyword("values"),
    "const": Keyword(since=6),
    "allOf": Keyword("schemas"),
    "anyOf": Keyword("schemas"),
    "oneOf": Keyword("schemas"),
    "not": Keyword("schema"),
    "if": Keyword("schema", since=7),
    "then": Keyword("schema", since=7),
    "else": Keyword("schema", since=7),
    "minimum": Keyword("number", _NUMBER),
    "maximum": Keyword("number", _NUMBER),
    "exclusiveMinimum": Keyword("bound", _NUMBER),
    "exclusiveMaximum": Keyword("bound", _NUMBER),
    "multipleOf": Keyword("divisor", _NUMBER),
    "minLength": Keyword("count", _STRING),
    "maxLength": Keyword("count", _STRING),
    "pattern": Keyword("text", _STRING),
    "format": Keyword("text", _STRING),
    "items": Keyword("schema or schemas", _ARRAY),
    "additionalItems": Keyword("schema", _ARRAY),
    "prefixItems": Keyword("schemas", _ARRAY, since=2020),
    "minItems": Keyword("count", _ARRAY),
    "maxItems": Keyword("count", _ARRAY),
    "uniqueItems": Keyword("flag", _ARRAY),
    "contains": Keyword("schema", _ARRAY, since=6),
    "minContains": Keyword("count", _ARRAY, since=2019),
    "maxContains": Keyword("count", _ARRAY, since=2019),
    "unevaluatedItems": Keyword("schema", _ARRAY, since=2019),
    "properties": Keyword("named schemas", _OBJECT),
    "patternProperties": Keyword("named schemas", _OBJECT),
    "additionalProperties": Keyword("schema", _OBJECT),
    "propertyNames": Keyword("schema", _OBJECT, since=6),
    "required": Keyword("names", _OBJECT),
    "minProperties": Keyword("count", _OBJECT),
    "maxProperties": Keyword("count", _OBJECT),
    "dependencies": Keyword("named schemas or names", _OBJECT),
    "dependentRequired": Keyword("named names", _OBJECT, since=2019),
    "dependentSchemas": Keyword("named schemas", _OBJECT, since=2019),
    "unevaluatedProperties": Keyword("schema", _OBJECT, since=2019),
    "$defs": Keyword("named schemas", role="structure"),
    "definitions": Keyword("named schemas", role="structure"),
    **dict.fromkeys(("$schema", "$id", "id", "$vocabulary"), _STRUCTURE),
    **dict.fromkeys(("$anchor", "$dynamicAnchor", "$recursiveAnchor"), _STRUCTURE),
    **dict.fromkeys(
        ("title", "description", "default", "examples", "$comment"), _ANNOTATION
    ),
    **dict.fromkeys(("readOnly", "writeOnly", "deprecated"), _ANNOTATION),
    **dict.fromkeys(
        ("contentEncoding", "contentMediaType", "contentSchema"), _ANNOTATION
    ),
}


_HOLDING = {
    name: keyword.value
    for name, keyword in KEYWORDS.items()
    if "schema" in keyword.value
}
"""The keywords whose values hold schemas."""


Child = tuple[tuple[str | int, ...], Any]
"""A subschema, with the path to it."""


def subschemas(schema: Mapping[str, Any]) -> list[Child]:
    """The direct subschemas of a schema object."""
    found: list[Child] = []
    for keyword, value in schema.items():
        kind = _HOLDING.get(keyword)
        if kind is None:
            continue
        if kind.startswith("named"):
            for name, member in value.items() if isinstance(value, dict) else ():
                if kind == "named schemas" or not isinstance(member, list):
                    found.append(((keyword, name), member))
        elif isinstance(value, list) and kind != "schema":
            for index, member in enumerate(value):
                found.append(((keyword, index), member))
        elif kind != "schemas":
            found.append(((keyword,), value))
    return found


def _of_role(role: Role) -> frozenset[str]:
    return frozenset(name for name, keyword in KEYWORDS.items() if keyword.role == role)


ASSERTIONS = _of_role("assertion")
ANNOTATIONS = _of_role("annotation")


_DRAFTS = {
    "draft-03": 3,
    "draft-04": 4,
    "draft-06": 6,
    "draft-07": 7,
    "2019-09": 2019,
    "2020-12": 2020,
}


def draft_of(document: Any) -> int:
    """The draft of a schema, the newest where it names none."""
    named = document.get("$schema") if isinstance(document, Mapping) else None
    text = named if isinstance(named, str) else ""
    return _DRAFTS[next(filter(text.__contains__, _DRAFTS), "2020-12")]


REFUSED = {
    "unevaluatedProperties": "list all names in `properties` and write `additionalProperties: false`",
    "unevaluatedItems": "write `items`, or `additionalItems` before draft 2020-12",
    "minContains": "leave it out: `contains` asks for one item",
    "maxContains": "leave it out, or bound the array with `maxItems`",
    "$dynamicRef": "write `$ref`",
    "$recursiveRef": "write `$ref`",
}
"""Assertions that no backend enforces, with what to write in their place. Two of 9,557
real schemas have one."""

# Keywords that say nothing without another one.
_NEEDS = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
    "additionalItems": ("items",),
}


def idle_reason(node: Mapping[str, Any], keyword: str, draft: int) -> str:
    """Why an assertion decides nothing in a schema of a draft; empty where it does."""
    value = node[keyword]
    _, constrained, since, _ = KEYWORDS[keyword]
    if draft <= 7 and keyword != "$ref" and isinstance(node.get("$ref"), str):
        return f"next to $ref, which stands alone in draft {draft}"
    if draft < since:
        return (
            f"a keyword since {_draft_name(since)}, in a schema of {_draft_name(draft)}"
        )
    if keyword == "uniqueItems" and value is False:
        return "false has no effect"
    if keyword == "required" and isinstance(value, bool):
        return "a list of names since draft 4"
    needs = _NEEDS.get(keyword, ())
    if needs and node.keys().isdisjoint(needs):
        return f"has no effect without `{'` or `'.join(needs)}`"
    if keyword == "additionalItems" and not isinstance(node["items"], list):
        return "has no effect without a list in `items`"
    kind = node.get("type")
    if constrained and kind:
        types = {kind} if isinstance(kind, str) else {*kind}
        if types.isdisjoint({*constrained, "any"}):
            return f"does not apply to type {', '.join(sorted(types))}"
    return ""


def _draft_name(draft: int) -> str:
    return {2019: "draft 2019-09", 2020: "draft 2020-12"}.get(draft, f"draft {draft}")
