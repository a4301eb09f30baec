"""JSON Schemas as xgrammar must get them. Depends on schema, disjoint and regexes.

xgrammar reads one group of keywords a schema and drops the others with nothing but a line on stderr, and
it matches a `pattern` against the text between a string's quotes instead of its value. What can be mended
is mended here; every keyword that would be dropped is refused, so that another backend can take the spec.
What is let through was compared with exact arithmetic and with a validator, for xgrammar 0.2.8.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.xgrammar.rewrites.disjoint import all_disjoint, canonical
from guided_plugin.spec.keywords import ASSERTIONS, constraining, draft_of
from guided_plugin.spec.regexes import (
    control_in_class,
    counted_options,
    misplaced_anchor,
    quoted_pattern,
    spelt_out_classes,
    unsupported_construct,
    wide_class,
)
from guided_plugin.spec.schema import TYPES, pointer, resolve_pointer, walk

__all__ = ["KEY_RULE", "places", "prepared_schema", "refusal"]

_Path = tuple[str | int, ...]

_NEVER = frozenset(
    (
        *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains"),
        *("minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems", "additionalItems"),
        *("$dynamicRef", "$recursiveRef"),
    )
)
_BY_TYPE = {kind: constraining(kind) - _NEVER for kind in TYPES}
# xgrammar looks for these in this order and reads nothing beside the first it finds.
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
# Formats that xgrammar turns into a pattern of their own; any other is an annotation to it.
_FORMATS = {
    *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"),
    *("uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
}

# Larger divisors are dropped, and so are all of a range of 10,000 numbers or with an open end.
_MOST_DIVISOR = 1024
_WIDEST_RANGE = 5_000


def prepared_schema(document: Any, *, strict: bool) -> Any:
    """A schema rewritten in place for xgrammar; raises where a keyword would not be enforced."""
    found = list(places(document))
    names = {id(node.get("propertyNames")) for _, node in found}
    for path, node in found:
        _check(node, path, is_name=id(node) in names)
        _check_reference(node, path, document)
        _check_names(node, path, strict)
        branches = node.get("oneOf")
        if branches and not all_disjoint(branches, document, closed=strict):
            raise refusal(
                "`oneOf` with branches that may both hold of one value",
                (*path, "oneOf"),
                "use anyOf, or tell the branches apart by type or by a constant property they require",
            )
    for path, node in found:
        _quote_patterns(node, path)
    return document


def places(document: Any) -> Iterator[tuple[_Path, dict[str, Any]]]:
    """Every schema object once, with its path: also those that only a reference leads to."""
    seen: set[int] = set()
    pending: list[tuple[_Path, Any]] = [((), document)]
    while pending:
        start, schema = pending.pop()
        if id(schema) in seen:
            continue
        for step, node in walk(schema):
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            yield (*start, *step), node
            reference = node.get("$ref")
            if isinstance(reference, str) and reference.startswith("#/") and not _ESCAPED.search(reference):
                with contextlib.suppress(KeyError):
                    target = resolve_pointer(document, reference)
                    pending.append((tuple(reference[2:].split("/")), target))


def _check(node: Mapping[str, Any], path: _Path, *, is_name: bool) -> None:
    """Refuse what xgrammar would drop from one schema."""
    asserted = [
        keyword
        for keyword in node
        if keyword in ASSERTIONS and not (keyword == "uniqueItems" and not node[keyword])
    ]
    alone = next((keyword for keyword in _ALONE if keyword in node), None)
    if alone is not None:
        if alone == "allOf" and len(node["allOf"]) > 1:
            raise refusal("`allOf` of several schemas", (*path, "allOf"), "merge them into one")
        if len(asserted) > 1:
            other = next(keyword for keyword in asserted if keyword != alone)
            raise refusal(
                f"`{other}` beside `{alone}`",
                (*path, other),
                "move it into the other schema or merge the two",
            )
        return
    # Names are strings, whether or not their schema says so.
    names = ["string"] if is_name else _types(node)
    allowed = {"type"}.union(*(_BY_TYPE.get(name, ()) for name in names))
    for keyword in asserted:
        if keyword not in allowed and (names or keyword != "type"):
            # A keyword for another type says nothing where the type is known.
            if (names or "type" in node) and keyword not in _NEVER:
                continue
            raise refusal(
                f"`{keyword}`" + ("" if "type" in node else " without `type`"), (*path, keyword), _HINT
            )
    _check_string(node, path)
    _check_array(node, path)
    _check_object(node, path)
    _check_number(node, names, path)


_HINT = "remove it from the schema, or use the backend `llguidance`, which enforces more keywords"


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
        raise refusal(
            f"`{groups[0]}` beside `{groups[1]}`",
            (*path, groups[0]),
            "put the length into the pattern, as in ^[a-z]{1,8}$",
        )


def _check_number(node: Mapping[str, Any], names: list[str], path: _Path) -> None:
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(node.get(keyword), bool):
            raise refusal(f"a boolean `{keyword}`", (*path, keyword), "write the bound itself")
    if "multipleOf" not in node or not {"integer", "number"}.intersection(names):
        return
    where, divisor = (*path, "multipleOf"), node["multipleOf"]
    if "number" in names:
        raise refusal("`multipleOf` of numbers", where, "use integers")
    if divisor % 1 or divisor > _MOST_DIVISOR:
        raise refusal(
            f"`multipleOf` {divisor!r}", where, f"use a whole number from 1 to {_MOST_DIVISOR}, or an enum"
        )
    lowest = [node[keyword] for keyword in ("minimum", "exclusiveMinimum") if keyword in node]
    highest = [node[keyword] for keyword in ("maximum", "exclusiveMaximum") if keyword in node]
    if bool(lowest) != bool(highest) or (lowest and min(highest) - max(lowest) > _WIDEST_RANGE):
        raise refusal(
            f"`multipleOf` beside `{'minimum' if lowest else 'maximum'}`",
            where,
            f"leave both bounds out, or give two that are at most {_WIDEST_RANGE} apart",
        )


_ESCAPED = re.compile("[%~]")


def _check_reference(node: Mapping[str, Any], path: _Path, document: Any) -> None:
    """Refuse a `$ref` that xgrammar resolves to something else, or to anything at all."""
    if "$ref" not in node:
        return
    reference, where = node["$ref"], (*path, "$ref")
    hint = "copy the schema it means into $defs and write #/$defs/Name"
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise refusal(f"`$ref` {reference!r}, which is no pointer into this schema,", where, hint)
    if _ESCAPED.search(reference):
        raise refusal(f"`$ref` {reference!r} with an escape in it", where, "give that schema a plain name")
    target = document
    for part in reference.split("/")[1:]:
        if not isinstance(target, Mapping) or part not in target:
            what = "goes through a list" if isinstance(target, list) else "points at nothing in this schema"
            raise refusal(f"`$ref` {reference!r}, which {what},", where, hint)
        target = target[part]
    if not isinstance(target, Mapping | bool):
        raise refusal(f"`$ref` {reference!r}, which points at no schema,", where, hint)
    if _has_own_base(document, path):
        raise refusal("`$ref` inside a schema with an `$id` of its own", where, "leave that `$id` out")


def _has_own_base(document: Any, path: _Path) -> bool:
    """Whether references at a place are resolved against another schema than the whole document."""
    keywords = ("$id", "id") if draft_of(document) <= 4 else ("$id",)
    node = document
    for part in path:
        node = node[int(part) if isinstance(node, list) else part]
        if isinstance(node, Mapping) and any(isinstance(node.get(keyword), str) for keyword in keywords):
            return True
    return False


# In the rule for further names of an object, xgrammar keeps those of `properties` out as they are written.
# With escapes a name could be spelt so that the rule doesn't know it.
KEY_RULE = re.compile(r'(?m)^(\w*_addl_key_\d+ ::= .*?) \| \("\\\\" basic_escape basic_string_sub\)')
_PLAIN_NAME = re.compile(r"[ !#-\[\]-~]*\Z")


def _check_names(node: Mapping[str, Any], path: _Path, strict: bool) -> None:
    described = node.get("properties")
    if not isinstance(described, Mapping) or node.get("additionalProperties", not strict) is False:
        return
    for name in described:
        if not _PLAIN_NAME.match(name):
            raise refusal(
                f"property {name!r} of an object that takes further ones",
                (*path, "properties"),
                "use letters of ASCII in its name, or set additionalProperties to false",
            )


def _check_array(node: Mapping[str, Any], path: _Path) -> None:
    if node.get("uniqueItems"):
        raise refusal("`uniqueItems`", (*path, "uniqueItems"), "no grammar can: check it afterwards")
    if isinstance(node.get("items"), list):
        raise refusal("a list in `items`", (*path, "items"), "call it prefixItems")


def _check_object(node: Mapping[str, Any], path: _Path) -> None:
    described = node.get("properties") or {}
    required = node.get("required")
    if isinstance(required, list):
        missing = [name for name in required if name not in described]
        if missing:
            raise refusal(
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
        raise refusal(
            f"`patternProperties` beside `{several[0]}`", (*path, "patternProperties"), "describe them apart"
        )
    if "propertyNames" in node and described:
        raise refusal("`propertyNames` beside `properties`", (*path, "propertyNames"), "leave one out")
    if "propertyNames" in node and node.get("additionalProperties") is False:
        raise refusal(
            "`additionalProperties` beside `propertyNames`", (*path, "additionalProperties"), "leave one out"
        )
    if len({canonical(value) for value in (node.get("patternProperties") or {}).values()}) > 1:
        raise refusal(
            "`patternProperties` with several patterns, of which two may match one name,",
            (*path, "patternProperties"),
            "use one pattern",
        )


def _quote_patterns(node: dict[str, Any], path: _Path) -> None:
    if "pattern" in node:
        node["pattern"] = _quoted(node["pattern"], (*path, "pattern"))
    members = node.get("patternProperties")
    if isinstance(members, dict):
        where = (*path, "patternProperties")
        node["patternProperties"] = {_quoted(name, (*where, name)): value for name, value in members.items()}


def _quoted(pattern: str, path: _Path) -> str:
    construct = unsupported_construct(pattern) or control_in_class(pattern) or misplaced_anchor(pattern)
    if construct is not None:
        raise refusal(
            f"{construct.name} in a pattern (character {construct.position})",
            path,
            "rewrite the pattern without it",
        )
    pattern = counted_options(spelt_out_classes(pattern))
    quoted = quoted_pattern(pattern)
    wide = wide_class(pattern) if quoted != pattern else None
    if wide is not None:
        # Beside an escaped quote, xgrammar no longer keeps raw ones out of classes.
        raise refusal(
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


def refusal(what: str, path: _Path, hint: str) -> UnsupportedSpecError:
    """The error for something that xgrammar would drop."""
    return UnsupportedSpecError(f"{what} is not enforced by xgrammar", where=pointer(path), hint=hint)
