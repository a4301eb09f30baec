"""Structural tags as xgrammar must get them. Depends on xgrammar_schema, the rewrites and regexes.

Their schemas are held to the same rules as schemas of their own; errors name the place in the whole tag.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from guided_plugin.errors import GrammarError, GuidedError, UnsupportedSpecError
from guided_plugin.grammar.xgrammar.rewrites.annotations import drop_annotations
from guided_plugin.grammar.xgrammar.rewrites.conjunctions import merge_conjunctions
from guided_plugin.grammar.xgrammar.rewrites.exclusive import open_exclusive
from guided_plugin.grammar.xgrammar.rewrites.formats import formats_to_pattern
from guided_plugin.grammar.xgrammar.rewrites.lengths import lengths_to_pattern
from guided_plugin.grammar.xgrammar.rewrites.values import fold_values
from guided_plugin.grammar.xgrammar.rewrites.walking import Rewrite, rewritten
from guided_plugin.grammar.xgrammar.schema import places, prepared_schema, refusal
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.regexes import misplaced_anchor, refuse_unsupported
from guided_plugin.spec.schema import check_schema, pointer

__all__ = ["check_regex", "tag_text", "tag_texts"]

_Path = tuple[str | int, ...]

# Schemas inside structural tags go through no lowerings: those are for specs.
_REWRITES: list[Rewrite] = [
    drop_annotations,
    open_exclusive,
    merge_conjunctions,
    fold_values,
    formats_to_pattern,
    lengths_to_pattern,
]


def tag_text(spec: OutputSpec) -> str:
    """A structural tag as xgrammar reads it; the older form with `structures` is turned into `format`."""
    document = spec.document()
    if "structures" not in document:
        _prepare(document)
        return json.dumps(document)
    structures, triggers = document["structures"], document.get("triggers")
    tags = structures if isinstance(structures, list) else []
    if not triggers or not tags or not all(isinstance(tag, dict) for tag in tags):
        raise GrammarError(
            "`structures` must be a list of objects and must have `triggers` beside it",
            where="structural_tag",
            hint='{"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}',
        )
    converted = [
        {
            "type": "tag",
            "begin": tag.get("begin", ""),
            "content": {
                "type": "json_schema",
                "json_schema": _prepared(tag.get("schema", True), ("structures", index, "schema")),
            },
            "end": tag.get("end", ""),
        }
        for index, tag in enumerate(tags)
    ]
    layout = {"type": "triggered_tags", "triggers": triggers, "tags": converted}
    return json.dumps({"type": "structural_tag", "format": layout})


def tag_texts(spec: OutputSpec) -> Iterator[str]:
    """Every text of a structural tag in which it may name a control token: all but those of its schemas."""
    pending = [spec.document()]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            yield node
        elif isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict):
            pending.extend(part for key, part in node.items() if key not in ("json_schema", "schema"))


def check_regex(pattern: str, where: str) -> None:
    """Refuse a regular expression of which xgrammar would drop a part."""
    refuse_unsupported(pattern, where)
    anchor = misplaced_anchor(pattern)
    if anchor is not None:
        raise UnsupportedSpecError(
            f"{anchor.name} is not enforced by xgrammar",
            where=f"{where}, character {anchor.position}",
            hint="leave the anchor out: the whole text must match anyway",
        )


def _prepare(tag: Any) -> None:
    """Prepare every part of a structural tag that is more than text, in place."""
    for path, node in _parts(tag):
        schema = node.get("json_schema")
        if schema is not None:
            node["json_schema"] = _prepared(schema, (*path, "json_schema"))
            _check_options(node, path)
        if node.get("type") == "regex" and isinstance(node.get("pattern"), str):
            check_regex(node["pattern"], pointer((*path, "pattern")))


def _parts(tag: Any) -> Iterator[tuple[_Path, dict[str, Any]]]:
    """Every object in a tag, with its path; schemas are left out."""
    pending: list[tuple[_Path, Any]] = [((), tag)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, list):
            pending.extend(((*path, index), part) for index, part in enumerate(node))
        elif isinstance(node, dict):
            pending.extend(((*path, key), part) for key, part in node.items() if key != "json_schema")
            yield path, node


def _prepared(schema: Any, path: _Path) -> Any:
    """A schema of a tag, prepared; what is refused is told with its place in the tag."""
    try:
        check_schema(schema)
        return prepared_schema(rewritten(schema, _REWRITES, strict=True), strict=True)
    except GuidedError as error:
        # Malformed or not enforced: both end this one spec, when it is compiled.
        kind = type(error) if isinstance(error, GrammarError) else GrammarError
        where = pointer(path) + error.where.removeprefix("#")
        raise kind(error.what, where=where, hint=error.hint) from None


def _check_options(node: dict[str, Any], path: _Path) -> None:
    """Refuse options with which xgrammar would drop keywords of the schema."""
    schemas = [schema for _, schema in places(node["json_schema"])]
    if node.get("any_order") and any(schema.get("required") for schema in schemas):
        raise refusal(
            "`required` beside `any_order`", (*path, "any_order"), "leave any_order out, or require nothing"
        )
    dropping = {"pattern", "format", "minLength", "maxLength"}
    if node.get("excludes") and any(not dropping.isdisjoint(schema) for schema in schemas):
        raise refusal(
            "`excludes` beside strings with a pattern, a format or a length",
            (*path, "excludes"),
            "leave one of the two out",
        )
