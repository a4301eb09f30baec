"""JSON Schemas as xgrammar must get them. Touches schema, disjoint and regexes.

xgrammar drops some keywords with nothing but a line on stderr, and matches a `pattern` against the text
between a string's quotes instead of its value. What can be mended is mended here, the rest refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from guided_plugin.disjoint import all_disjoint
from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.regexes import control_in_class, quoted_pattern, unsupported_construct
from guided_plugin.schema import pointer, walk
from guided_plugin.spec import OutputSpec

__all__ = ["prepared_schema"]

_Path = tuple[str | int, ...]


def prepared_schema(spec: OutputSpec) -> Any:
    """The schema of a spec, rewritten for xgrammar; raises where a keyword would not be enforced."""
    document = spec.document()  # a copy of our own: rewritten in place
    for path, node in walk(document):
        if not isinstance(node, Mapping):
            continue
        branches = node.get("oneOf")
        if branches and not all_disjoint(branches, document, closed=spec.strict):
            raise UnsupportedSpecError(
                "`oneOf` with branches that may both hold of one value is not enforced",
                where=pointer((*path, "oneOf")),
                hint="use anyOf, or tell the branches apart by type or by a constant property they require",
            )
    for path, node in list(walk(document)):
        if isinstance(node, dict):
            _prepare_patterns(node, path)
    return document


def _prepare_patterns(node: dict[str, Any], path: _Path) -> None:
    if "pattern" in node:
        beside = {"minLength", "maxLength"} & node.keys()
        if beside:
            raise UnsupportedSpecError(
                f"`pattern` beside `{min(beside)}` is not enforced",
                where=pointer((*path, "pattern")),
                hint="put the length into the pattern, as in ^[a-z]{1,8}$",
            )
        node["pattern"] = _quoted(node["pattern"], (*path, "pattern"))
    members = node.get("patternProperties")
    if isinstance(members, dict):
        where = (*path, "patternProperties")
        node["patternProperties"] = {_quoted(name, (*where, name)): value for name, value in members.items()}


def _quoted(pattern: str, path: _Path) -> str:
    construct = unsupported_construct(pattern) or control_in_class(pattern)
    if construct is not None:
        raise UnsupportedSpecError(
            f"{construct.name} in a pattern is not supported (character {construct.position})",
            where=pointer(path),
            hint="rewrite the pattern without it",
        )
    return quoted_pattern(pattern)
