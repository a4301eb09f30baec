"""JSON Schemas as xgrammar must get them. Touches schema, disjoint and regexes.

xgrammar reads one group of keywords a schema and drops the others with nothing but a line on stderr, and
it matches a `pattern` against the text between a string's quotes instead of its value. What can be mended
is mended here; every keyword that would be dropped is refused, so that another backend can take the spec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from guided_plugin.disjoint import all_disjoint
from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.regexes import (
    control_in_class,
    quoted_pattern,
    spelt_out_classes,
    unsupported_construct,
    wide_class,
)
from guided_plugin.rewrites.annotations import drop_annotations
from guided_plugin.rewrites.conjunctions import merge_conjunctions
from guided_plugin.rewrites.exclusive import open_exclusive
from guided_plugin.rewrites.formats import formats_to_pattern
from guided_plugin.rewrites.lengths import lengths_to_pattern
from guided_plugin.rewrites.values import fold_values
from guided_plugin.rewrites.walking import Rewrite, rewritten
from guided_plugin.schema import pointer, walk

__all__ = ["prepare_tag_schemas", "prepared_schema"]

_Path = tuple[str | int, ...]

_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_STRING = ("minLength", "maxLength", "pattern", "format")
_ARRAY = ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")
_OBJECT = (
    *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties"),
)
_BY_TYPE = {"integer": _NUMERIC, "number": _NUMERIC, "string": _STRING, "array": _ARRAY, "object": _OBJECT}
_NEVER = (
    *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains"),
    *("minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems", "additionalItems"),
    "$dynamicRef",
)
_ASSERTIONS = {
    *("$ref", "const", "enum", "anyOf", "oneOf", "allOf", "type"),
    *(_NUMERIC + _STRING + _ARRAY + _OBJECT + _NEVER),
}
# xgrammar looks for these in this order and reads nothing beside the first it finds.
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
# Formats that xgrammar turns into a pattern of their own; any other is an annotation to it.
_FORMATS = {
    *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"),
    *("uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
}

# Schemas inside structural tags go through no lowerings: those are for specs.
_TAG_REWRITES: list[Rewrite] = [
    drop_annotations,
    open_exclusive,
    merge_conjunctions,
    fold_values,
    formats_to_pattern,
    lengths_to_pattern,
]


def prepared_schema(document: Any, *, strict: bool) -> Any:
    """A schema rewritten in place for xgrammar; raises where a keyword would not be enforced."""
    for path, node in walk(document):
        if isinstance(node, dict):
            _check(node, path)
            branches = node.get("oneOf")
            if branches and not all_disjoint(branches, document, closed=strict):
                raise _refusal(
                    "`oneOf` with branches that may both hold of one value",
                    (*path, "oneOf"),
                    "use anyOf, or tell the branches apart by type or by a constant property they require",
                )
    for path, node in list(walk(document)):
        if isinstance(node, dict):
            _quote_patterns(node, path)
    return document


def prepare_tag_schemas(tag: Any) -> None:
    """The same for every schema inside a structural tag."""
    pending = [tag]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict):
            schema = node.get("json_schema")
            if schema is not None:
                schema = rewritten(schema, _TAG_REWRITES, strict=True)
                node["json_schema"] = prepared_schema(schema, strict=True)
            pending.extend(value for key, value in node.items() if key != "json_schema")


def _check(node: Mapping[str, Any], path: _Path) -> None:
    """Refuse what xgrammar would drop from one schema."""
    asserted = [
        keyword
        for keyword in node
        if keyword in _ASSERTIONS and not (keyword == "uniqueItems" and not node[keyword])
    ]
    alone = next((keyword for keyword in _ALONE if keyword in node), None)
    if alone is not None:
        if alone == "allOf" and len(node["allOf"]) > 1:
            raise _refusal("`allOf` of several schemas", (*path, "allOf"), "merge them into one")
        if len(asserted) > 1:
            other = next(keyword for keyword in asserted if keyword != alone)
            raise _refusal(
                f"`{other}` beside `{alone}`",
                (*path, other),
                "move it into the other schema or merge the two",
            )
        return
    # Names are strings, whether or not their schema says so.
    names = ["string"] if path[-1:] == ("propertyNames",) else _types(node)
    allowed = {"type"}.union(*(_BY_TYPE.get(name, ()) for name in names))
    for keyword in asserted:
        if keyword not in allowed and (names or keyword != "type"):
            # A keyword for another type says nothing where the type is known.
            if (names or "type" in node) and keyword not in _NEVER:
                continue
            raise _refusal(
                f"`{keyword}`" + ("" if "type" in node else " without `type`"), (*path, keyword), _HINT
            )
    _check_string(node, path)
    _check_array(node, path)
    _check_object(node, path)
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(node.get(keyword), bool):
            raise _refusal(f"a boolean `{keyword}`", (*path, keyword), "write the bound itself")
    if "multipleOf" in node and names != ["integer"]:
        raise _refusal("`multipleOf` of numbers", (*path, "multipleOf"), "use integers")


_HINT = "write the schema without it, or install guided-plugin[llguidance]"


def _types(node: Mapping[str, Any]) -> list[str]:
    """The types a schema names, or the one that xgrammar takes it for."""
    named = node.get("type")
    if named is not None:
        return list(named) if isinstance(named, list) else [named]
    if "properties" in node or "additionalProperties" in node:
        return ["object"]
    return ["array"] if "items" in node or "prefixItems" in node else []


def _check_string(node: Mapping[str, Any], path: _Path) -> None:
    formatted = node.get("format") in _FORMATS
    groups = [
        keyword
        for keyword in ("pattern", "format", "minLength", "maxLength")
        if keyword in node and (keyword != "format" or formatted)
    ]
    lengths = {"minLength", "maxLength"}
    if len(groups) > 1 and not set(groups) <= lengths:
        raise _refusal(
            f"`{groups[0]}` beside `{groups[1]}`",
            (*path, groups[0]),
            "put the length into the pattern, as in ^[a-z]{1,8}$",
        )


def _check_array(node: Mapping[str, Any], path: _Path) -> None:
    if node.get("uniqueItems"):
        raise _refusal("`uniqueItems`", (*path, "uniqueItems"), "no grammar can: check it afterwards")
    if isinstance(node.get("items"), list):
        raise _refusal("a list in `items`", (*path, "items"), "call it prefixItems")


def _check_object(node: Mapping[str, Any], path: _Path) -> None:
    described = node.get("properties") or {}
    required = node.get("required")
    if isinstance(required, list):
        missing = [name for name in required if name not in described]
        if missing:
            raise _refusal(
                f"`required` property {missing[0]!r} that `properties` doesn't describe",
                (*path, "required"),
                f'add "{missing[0]}": {{}} to properties',
            )
    several = [
        keyword
        for keyword in ("properties", "propertyNames", "minProperties", "maxProperties")
        if keyword in node and (keyword != "properties" or described)
    ]
    if "patternProperties" in node and several:
        raise _refusal(
            f"`patternProperties` beside `{several[0]}`", (*path, "patternProperties"), "describe them apart"
        )
    if "propertyNames" in node and described:
        raise _refusal("`propertyNames` beside `properties`", (*path, "propertyNames"), "leave one out")


def _quote_patterns(node: dict[str, Any], path: _Path) -> None:
    if "pattern" in node:
        node["pattern"] = _quoted(node["pattern"], (*path, "pattern"))
    members = node.get("patternProperties")
    if isinstance(members, dict):
        where = (*path, "patternProperties")
        node["patternProperties"] = {_quoted(name, (*where, name)): value for name, value in members.items()}


def _quoted(pattern: str, path: _Path) -> str:
    construct = unsupported_construct(pattern) or control_in_class(pattern)
    if construct is not None:
        raise _refusal(
            f"{construct.name} in a pattern (character {construct.position})",
            path,
            "rewrite the pattern without it",
        )
    pattern = spelt_out_classes(pattern)
    quoted = quoted_pattern(pattern)
    wide = wide_class(pattern) if quoted != pattern else None
    if wide is not None:
        # Beside an escaped quote, xgrammar no longer keeps raw ones out of classes.
        raise _refusal(
            "a quote, backslash or control character beside a class that may hold one "
            f"(character {wide.position})",
            path,
            "name the characters of the class, as in [a-z]",
        )
    # Beside a character outside ASCII, too: as escapes they do no harm.
    return _BEYOND_ASCII.sub(lambda found: found[1] or _escape(ord(found[2])), quoted)


_BEYOND_ASCII = re.compile(r"(\\[ -~])|\\?([^ -~])")


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"


def _refusal(what: str, path: _Path, hint: str) -> UnsupportedSpecError:
    return UnsupportedSpecError(f"{what} is not enforced by xgrammar", where=pointer(path), hint=hint)
