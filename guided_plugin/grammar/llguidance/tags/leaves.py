"""Formats that have no formats inside. Depends on fields and spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from guided_plugin.errors import GrammarError, GuidedError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.tags.fields import (
    Fields,
    Reading,
    flag,
    malformed,
    refusal,
    texts,
)
from guided_plugin.grammar.llguidance.tags.nodes import Dispatch, Node, Path, Regex, Schema, optional
from guided_plugin.grammar.llguidance.tags.xml import xml_schema
from guided_plugin.spec import ecma
from guided_plugin.spec.languages import nullable, whole
from guided_plugin.spec.schema import check_schema, pointer


def const_string(reading: Reading, node: Fields, path: Path) -> Node:
    """A literal text."""
    text = node.get("value")
    if not isinstance(text, str):
        raise malformed("must be a string", (*path, "value"))
    return reading.names.spelled(text)


def json_schema(reading: Reading, node: Fields, path: Path) -> Node:
    """JSON that satisfies a schema."""
    if node.get("excludes"):
        raise refusal("`excludes` of JSON", (*path, "excludes"))
    most = node.get("max_whitespace_cnt")
    if most is not None and (not isinstance(most, int) or most < 1):
        raise malformed("must be a number above zero", (*path, "max_whitespace_cnt"))
    if most is not None and reading.flexible:
        raise refusal("`max_whitespace_cnt`", (*path, "max_whitespace_cnt"), "use compact whitespace")
    if "json_schema" not in node:
        raise malformed("must have a `json_schema`", path)
    any_order = flag(node, "any_order", path)
    found = schema_node(node["json_schema"], (*path, "json_schema"), any_order=any_order)
    return found if node.get("style", "json") == "json" else xml_schema(reading, node, path)


def schema_node(schema: Any, path: Path, *, any_order: bool = False) -> Node:
    """A schema that is well formed."""
    try:
        check_schema(schema)
    except GuidedError as error:
        where = pointer(path) + error.where.removeprefix("#")
        raise GrammarError(error.what, where=where, hint=error.hint) from None
    return Schema(schema, path, any_order)


def regex(reading: Reading, node: Fields, path: Path) -> Node:
    """Text that a regular expression matches as a whole."""
    path = (*path, "pattern")
    pattern = node.get("pattern")
    if not isinstance(pattern, str) or not pattern:
        raise malformed("must be a string that is not empty", path)
    try:
        tree = whole(pattern)
    except UnsupportedSpecError as error:
        raise refusal(error.what, path, error.hint) from None
    found = Regex(pattern, frozenset(_alphabet(tree)))
    return optional(found) if nullable(tree) else found


def any_text(reading: Reading, node: Fields, path: Path) -> Node:
    """Text without some texts, up to the end of the tag around it."""
    for key in ("max_tokens", "max_chars"):
        if node.get(key) is not None:
            raise refusal(f"`{key}`", (*path, key))
    return Dispatch((), (*texts(node, "excludes", path), *reading.ends))


def token(reading: Reading, node: Fields, path: Path) -> Node:
    """One control token."""
    return reading.token(node.get("token"), (*path, "token"))


def any_tokens(reading: Reading, node: Fields, path: Path) -> Node:
    """Any text: it has no control tokens, whichever are excluded."""
    if node.get("max_tokens") is not None:
        raise refusal("`max_tokens`", (*path, "max_tokens"))
    reading.tokens(node, "exclude_tokens", path)
    return Dispatch((), ())


def _alphabet(tree: ecma.Node) -> Iterator[int]:
    """Every byte that may be in a text of this language."""
    if isinstance(tree, ecma.Not):
        yield from range(256)
    elif isinstance(tree, ecma.Characters):
        yield from _bytes(tree)
    else:
        for part in ecma.children(tree):
            yield from _alphabet(part)


def _bytes(characters: ecma.Characters) -> Iterator[int]:
    """Every byte that may be in one of these characters; some more where dialects differ."""
    yield from range(128, 256)
    for code in range(128):
        inside = any(low <= code <= high for low, high in characters.ranges)
        if characters.properties or inside != characters.negated:
            yield code
    if characters.negated:
        yield from (10, 13)


FORMATS: Mapping[str, Any] = {
    "const_string": (("value",), const_string),
    "json_schema": (("json_schema", "style", "any_order", "max_whitespace_cnt", "excludes"), json_schema),
    "regex": (("pattern",), regex),
    "any_text": (("excludes", "max_tokens", "max_chars"), any_text),
    "token": (("token",), token),
    "any_tokens": (("exclude_tokens", "max_tokens"), any_tokens),
}
"""The fields of each type, and what reads it."""
