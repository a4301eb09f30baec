"""Structural tags in the form that xgrammar enforces. Depends on schema.

Their schemas are held to the same rules as schemas of their own; errors name the place in the whole tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from guided_plugin.errors import GrammarError, GuidedError
from guided_plugin.grammar.xgrammar.schema import places, prepared_schema, refusal, regex_text
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.schema import check_schema, pointer

_Path = tuple[str | int, ...]


def tag_source(spec: OutputSpec, tokens: Sequence[bytes], read: Callable[[str], str]) -> str:
    """The EBNF of a structural tag; `read` has xgrammar make it of the tag's text.

    xgrammar's tags have no way to ask for compact JSON, but one to bound whitespace. It is bounded by a
    number that the grammar has nowhere else, and what has this bound is left out.
    """
    source = read(tag_text(spec, tokens))
    if spec.whitespace != "compact":
        return source
    most = next(number for number in count(1000) if f"{{0, {number}}}" not in source)
    bounded = read(tag_text(spec, tokens, most_whitespace=most))
    return re.sub(rf"\w+\{{0, {most}\}}", '""', bounded)


def tag_text(spec: OutputSpec, tokens: Sequence[bytes] = (), *, most_whitespace: int = 0) -> str:
    """A structural tag as xgrammar reads it; the older form with `structures` is turned into `format`.

    Tokens that it names become ids, by the texts of `tokens`. `most_whitespace` bounds that of its JSON.
    """
    document = spec.document()
    older = "structures" in document
    key = "schema" if older else "json_schema"
    for path, node in list(_parts(document, key)):
        _number_tokens(node, tokens)
        if key in node:
            node[key] = _prepared(node[key], (*path, key))
            if not older:
                _check_options(node, path)
        if node.get("type") == "regex" and isinstance(node.get("pattern"), str):
            node["pattern"] = regex_text(node["pattern"], pointer((*path, "pattern")))
    document = _newer_form(document) if older else document
    if most_whitespace:
        for _, node in _parts(document, "json_schema"):
            if node.get("type") == "json_schema" and node.get("style", "json") == "json":
                node["max_whitespace_cnt"] = most_whitespace
    return json.dumps(document)


def _number_tokens(node: dict[str, Any], tokens: Sequence[bytes]) -> None:
    """Write ids for the names of tokens in a format. xgrammar refuses a name that stays: no token has it."""

    def numbered(token: Any) -> Any:
        name = token.encode(errors="replace") if isinstance(token, str) else b""
        return tokens.index(name) if name and name in tokens else token

    if node.get("type") == "token":
        node["token"] = numbered(node.get("token"))
    for key in ("trigger_tokens", "exclude_tokens"):
        if isinstance(node.get(key), list):
            node[key] = [numbered(token) for token in node[key]]
    if node.get("type") == "token_dispatch" and isinstance(node.get("rules"), list):
        pairs = [rule for rule in node["rules"] if isinstance(rule, list) and rule]
        for rule in pairs:
            rule[0] = numbered(rule[0])


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


def _parts(tag: Any, schema_key: str) -> Iterator[tuple[_Path, dict[str, Any]]]:
    """Every object in a tag, with its path; schemas are left out."""
    pending: list[tuple[_Path, Any]] = [((), tag)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, list):
            pending.extend(((*path, index), part) for index, part in enumerate(node))
        elif isinstance(node, dict):
            pending.extend(((*path, key), part) for key, part in node.items() if key != schema_key)
            yield path, node


def _prepared(schema: Any, path: _Path) -> Any:
    """A schema of a tag for xgrammar; an error names its place in the tag."""
    try:
        check_schema(schema)
        return prepared_schema(schema, strict=True)
    except GuidedError as error:
        # Malformed or not enforced: both end this one spec, when it is compiled.
        kind = type(error) if isinstance(error, GrammarError) else GrammarError
        where = pointer(path) + error.where.removeprefix("#")
        raise kind(error.what, where=where, hint=error.hint) from None


def _check_options(node: dict[str, Any], path: _Path) -> None:
    """Refuse options with which xgrammar would drop keywords of the schema."""
    schemas = [schema for _, schema in places(node["json_schema"])]
    if node.get("any_order") and any(schema.get("required") for schema in schemas):
        what = "`required` next to `any_order`"
        raise refusal(what, (*path, "any_order"), "leave any_order out, or require nothing")
    dropping = {"pattern", "format", "minLength", "maxLength"}
    if node.get("excludes") and any(not dropping.isdisjoint(schema) for schema in schemas):
        what = "`excludes` next to strings with a pattern, a format or a length"
        raise refusal(what, (*path, "excludes"), "leave one of the two out")


def _newer_form(document: dict[str, Any]) -> dict[str, Any]:
    structures, triggers = document["structures"], document.get("triggers")
    tags = structures if isinstance(structures, list) else []
    if not triggers or not tags or not all(isinstance(tag, dict) for tag in tags):
        raise GrammarError(
            "`structures` must be a list of objects and must have `triggers` next to it",
            where="structural_tag",
            hint='{"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f"]}',
        )
    converted = [
        {
            "type": "tag",
            "begin": tag.get("begin", ""),
            "content": {"type": "json_schema", "json_schema": tag.get("schema", True)},
            "end": tag.get("end", ""),
        }
        for tag in tags
    ]
    return {
        "type": "structural_tag",
        "format": {"type": "triggered_tags", "triggers": triggers, "tags": converted},
    }
