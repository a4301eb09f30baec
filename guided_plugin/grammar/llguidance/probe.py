"""Finds, where a spec is admitted, texts that llguidance could not go on with while a
request runs.

A text that must meet several demands at once (patterns, formats, lengths, and the
opposites of these) may need more work for one mask than the lexer's fuel allows. That
request would fail in the middle. So the terminals that may come next at one place are
tried: a few tokens, with half of the fuel that requests have. Depends on spec and lark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

import numpy as np

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.patterns import FUEL
from guided_plugin.grammar.llguidance.lark.rules import LarkGrammar
from guided_plugin.grammar.llguidance.matcher import first_line
from guided_plugin.spec import OutputSpec
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
    largest_first = sorted(grammar.probes, key=lambda probe: -len(probe.text))
    for probe in largest_first[:_MOST_GROUPS]:
        reason = _walk(matcher(probe.text), np.array(list(stops)))
        if reason:
            raise too_entangled(spec, reason, probe.sources)


def too_entangled(
    spec: OutputSpec, reason: str, sources: Set[str] | None = None
) -> UnsupportedSpecError:
    """The refusal of a spec for some of its grammar, which takes more work than a mask
    may take. `sources`: the patterns and formats there; by default all of them."""
    schemas = spec.kind in ("json_schema", "structural_tag")
    demands = "patterns, formats and lengths" if schemas else "patterns"
    return UnsupportedSpecError(
        f"{demands} that one text must match, or not match, need too much work for a mask ({reason})",
        where=(_place(spec, sources) if schemas else "") or spec.kind,
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


def _place(spec: OutputSpec, sources: Set[str] | None) -> str:
    """Where the schema is that says most of some patterns and formats."""
    best = 0
    place = ""
    for path, node in values(spec.document()):
        said = _said(node) if isinstance(node, dict) else ()
        found = [source for source in said if sources is None or source in sources]
        if len(found) > best:
            best = len(found)
            place = pointer(path)
    return place


def _said(node: Mapping[str, Any]) -> Iterator[str]:
    """The patterns and the format of a schema, if it is one and no other value."""
    matching = node.get("patternProperties")
    if isinstance(matching, dict):
        yield from matching
    for source in (node.get("pattern"), node.get("format")):
        if isinstance(source, str):
            yield source
