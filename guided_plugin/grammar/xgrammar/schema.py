"""JSON Schemas and regular expressions in the form that xgrammar enforces. Depends on rewrites and spec.

xgrammar reads one group of keywords a schema and drops the others with nothing but a line on stderr, and
it matches a `pattern` against the text between a string's quotes instead of its value. What can be rewritten
is; every keyword that would still be dropped is refused, so that another backend can take the spec. What is
let through was compared with exact arithmetic and with a validator, for xgrammar 0.2.8.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError, shown
from guided_plugin.grammar.xgrammar.checks import (
    check_array,
    check_number,
    check_object,
    check_string,
    refusal,
)
from guided_plugin.grammar.xgrammar.patterns import json_pattern
from guided_plugin.grammar.xgrammar.regexes import whole_regex
from guided_plugin.grammar.xgrammar.rewrites import REWRITES, rewritten
from guided_plugin.grammar.xgrammar.rewrites.one_of import all_disjoint
from guided_plugin.spec.keywords import ASSERTIONS, draft_of
from guided_plugin.spec.schema import pointer, resolve_pointer, walk

__all__ = ["places", "prepared_schema", "refusal", "regex_text"]

_Path = tuple[str | int, ...]

# Keywords that xgrammar never reads.
_UNREAD = {
    *("not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains"),
    *("minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems", "additionalItems"),
    *("$dynamicRef", "$recursiveRef"),
}
# xgrammar looks for these in this order and reads nothing next to the first it finds.
_ALONE = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
# In open objects, xgrammar keeps names of properties apart from further ones by their text, without escapes.
_PLAIN_NAME = re.compile(r"[ !#-\[\]-~]*\Z")
_ESCAPED = re.compile("[%~]")
_HINT = "remove it from the schema, or use the backend `llguidance`, which enforces more keywords"


def prepared_schema(document: Any, *, strict: bool) -> Any:
    """A copy of a schema, rewritten for xgrammar; raises where a keyword would not be enforced."""
    document = rewritten(document, REWRITES, strict=strict)
    found = list(places(document))
    names = {id(node.get("propertyNames")) for _, node in found}
    for path, node in found:
        _check(node, path, is_name=id(node) in names, strict=strict)
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


def _check(node: Mapping[str, Any], path: _Path, *, is_name: bool, strict: bool) -> None:
    """Refuse what xgrammar would drop from one schema."""
    asserted = [key for key in node if key in ASSERTIONS and (key != "uniqueItems" or node[key])]
    alone = next((keyword for keyword in _ALONE if keyword in node), None)
    if alone is not None:
        if alone == "allOf" and len(node["allOf"]) > 1:
            raise refusal("`allOf` of several schemas", (*path, "allOf"), "merge them into one")
        other = next((keyword for keyword in asserted if keyword != alone), None)
        if other is not None:
            hint = "move it into the other schema or merge the two"
            raise refusal(f"`{other}` next to `{alone}`", (*path, other), hint)
        return
    # Names are strings, whether or not their schema says so. Keywords for other types say nothing.
    types = ["string"] if is_name else _types(node)
    for keyword in asserted:
        if keyword in _UNREAD or not types:
            what = f"`{keyword}`" if "type" in node else f"`{keyword}` without `type`"
            raise refusal(what, (*path, keyword), _HINT)
    check_string(node, path)
    check_array(node, path)
    check_object(node, path, strict=strict)
    check_number(node, types, path)


def _types(node: Mapping[str, Any]) -> list[str]:
    """The types a schema names, or the one that xgrammar takes it for."""
    named = node.get("type")
    if named is not None:
        return list(named) if isinstance(named, list) else [named]
    if "properties" in node or "additionalProperties" in node:
        return ["object"]
    return ["array"] if "items" in node or "prefixItems" in node else []


_PLAIN_REFERENCE = "copy the schema it means into $defs and write #/$defs/Name"


def _check_reference(node: Mapping[str, Any], path: _Path, document: Any) -> None:
    """Refuse a `$ref` that xgrammar resolves to something else, or to anything at all."""
    if "$ref" not in node:
        return
    reference, where = node["$ref"], (*path, "$ref")
    hint = _PLAIN_REFERENCE
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise refusal(f"`$ref` {shown(reference)}, which is no pointer into this schema,", where, hint)
    if _ESCAPED.search(reference):
        raise refusal(
            f"`$ref` {shown(reference)} with an escape in it", where, "give that schema a plain name"
        )
    seen = set()
    target: Any = node
    while isinstance(target, Mapping) and isinstance(target.get("$ref"), str):
        if target["$ref"] in seen:
            raise UnsatisfiableSpecError(
                f"allows no output at all: `$ref` {shown(reference)} leads back to itself",
                where=pointer(where),
                hint="say what it stands for",
            )
        seen.add(target["$ref"])
        target = _target(document, target["$ref"], where)
    if not isinstance(target, Mapping | bool):
        raise refusal(f"`$ref` {shown(reference)}, which points at no schema,", where, hint)
    if _has_own_base(document, path):
        raise refusal("`$ref` inside a schema with an `$id` of its own", where, "leave that `$id` out")


def _target(document: Any, reference: str, where: _Path) -> Any:
    """What a pointer points at."""
    target = document
    for part in reference.split("/")[1:]:
        if not isinstance(target, Mapping) or part not in target:
            what = "goes through a list" if isinstance(target, list) else "points at nothing in this schema"
            raise refusal(f"`$ref` {shown(reference)}, which {what},", where, _PLAIN_REFERENCE)
        target = target[part]
    return target


def _has_own_base(document: Any, path: _Path) -> bool:
    """Whether references at a place are resolved against another schema than the whole document."""
    keywords = ("$id", "id") if draft_of(document) <= 4 else ("$id",)
    node = document
    for part in path:
        node = node[int(part) if isinstance(node, list) else part]
        if isinstance(node, Mapping) and any(isinstance(node.get(keyword), str) for keyword in keywords):
            return True
    return False


def _check_names(node: Mapping[str, Any], path: _Path, strict: bool) -> None:
    described = node.get("properties")
    if not isinstance(described, Mapping) or node.get("additionalProperties", not strict) is False:
        return
    for name in described:
        if not _PLAIN_NAME.match(name):
            raise refusal(
                f"property {shown(name)} of an object that takes further ones",
                (*path, "properties"),
                "use letters of ASCII in its name, or set additionalProperties to false",
            )


def _quote_patterns(node: dict[str, Any], path: _Path) -> None:
    if "pattern" in node:
        node["pattern"] = _quoted(node["pattern"], (*path, "pattern"))
    members = node.get("patternProperties")
    if isinstance(members, dict):
        where = (*path, "patternProperties")
        node["patternProperties"] = {_quoted(name, (*where, name)): value for name, value in members.items()}


def _quoted(pattern: str, path: _Path) -> str:
    try:
        return json_pattern(pattern)
    except UnsupportedSpecError as error:
        raise UnsupportedSpecError(error.what, where=pointer(path), hint=error.hint) from None


def regex_text(pattern: str, where: str) -> str:
    """A regular expression as xgrammar reads it."""
    try:
        return whole_regex(pattern)
    except UnsupportedSpecError as error:
        raise UnsupportedSpecError(error.what, where=where, hint=error.hint) from None
