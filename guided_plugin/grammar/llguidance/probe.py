"""Finds, where a spec is admitted, texts that llguidance could not go on with while a
request runs.

A text that must meet several demands at once (patterns, formats, lengths, and the
opposites of these) may need more work for one mask than the lexer's fuel allows. That
request would fail in the middle. So the terminals that may come next at one place are
tried: a few tokens, with half of the fuel that requests have. Depends on spec and lark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from guided_plugin.errors import GuidedError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.patterns import (
    FUEL,
    also_pattern,
    pattern,
    quoted_format,
)
from guided_plugin.grammar.llguidance.lark.rules import LarkGrammar
from guided_plugin.grammar.llguidance.matcher import first_line
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.schema import pointer, values

FUEL_OF_PROBES = {name: fuel // 2 for name, fuel in FUEL.items()}

# Of 600 schemas with random patterns, six ways of eight tokens find 71 that run out of
# fuel. One way finds 68; three find 69 and take 1.7 times as long as one.
_STEPS = 8
# Schemas have a few; each takes some masks.
_MOST_GROUPS = 64


def check_starts(
    spec: OutputSpec,
    grammar: LarkGrammar,
    matcher: Callable[[str], Any],
    stops: Iterable[int],
) -> None:
    """Raise an UnsupportedSpecError where a grammar has such a place. `matcher` makes
    one of a text."""
    texts = sorted(grammar.probes, key=len, reverse=True)
    if spec.kind in ("regex", "grammar") and (
        "&" in grammar.text or "~" in grammar.text
    ):
        texts = [grammar.text]
    for text in texts[:_MOST_GROUPS]:
        reason = _walk(matcher(text), np.array(list(stops)))
        if reason:
            raise too_entangled(spec, text, reason)


def too_entangled(spec: OutputSpec, text: str, reason: str) -> UnsupportedSpecError:
    """The refusal of a spec for some of its grammar, which takes more work than a mask
    may take."""
    schemas = spec.kind in ("json_schema", "structural_tag")
    demands = "patterns, formats and lengths" if schemas else "patterns"
    return UnsupportedSpecError(
        f"{demands} that one text must match, or not match, need too much work for a mask ({reason})",
        where=_place(spec, text) or spec.kind,
        hint="use fewer of them for one text, shorter counted repetitions, or no lookahead",
    )


def _walk(matcher: Any, stops: Any) -> str:
    """Go along one way, always the same. Why it can't go on; empty if it can."""
    for step in range(_STEPS):
        if matcher.is_error():
            return first_line(matcher.get_error())
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            return first_line(matcher.get_error())
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if not len(allowed):
            return "nothing may come next"
        going_on = allowed[~np.isin(allowed, stops)]
        if not len(going_on):
            return ""
        matcher.consume_token(int(going_on[7_919 * step % len(going_on)]))
    return ""


def _place(spec: OutputSpec, text: str) -> str:
    """Where the schema is that most patterns and formats in a grammar come from."""
    if spec.kind not in ("json_schema", "structural_tag"):
        return ""
    best = 0
    place = ""
    for path, node in values(spec.document()):
        parts_of = _parts(node) if isinstance(node, dict) else ()
        found = sum(any(part in text for part in parts) for parts in parts_of)
        if found > best:
            best = found
            place = pointer(path)
    return place


def _parts(node: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """How the grammar writes each pattern and format of a schema."""
    matching = node.get("patternProperties")
    for source in [
        node.get("pattern"),
        *(matching if isinstance(matching, dict) else ()),
    ]:
        if isinstance(source, str):
            try:
                yield pattern(source), also_pattern(source)
            except GuidedError:  # not a schema, but a value that looks like one
                continue
    name = node.get("format")
    if isinstance(name, str) and name in FORMATS:
        yield (quoted_format(name),)
