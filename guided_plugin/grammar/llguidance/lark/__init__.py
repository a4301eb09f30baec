"""JSON Schema written as a grammar.

A `document` is read as Boolean algebra (`reader`, `by_type`, `algebra`), whose
`constraints` are written as `rules` (`emitter`, with `arrays`, `objects` and `members`)
and terminals (`strings`, `patterns`, `numbers`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.arrays import array_rule
from guided_plugin.grammar.llguidance.lark.constraints import Array, Object
from guided_plugin.grammar.llguidance.lark.contradictions import contradiction
from guided_plugin.grammar.llguidance.lark.document import Document
from guided_plugin.grammar.llguidance.lark.emitter import Emitter, Style
from guided_plugin.grammar.llguidance.lark.numbers import Spelling
from guided_plugin.grammar.llguidance.lark.objects import object_rule
from guided_plugin.grammar.llguidance.lark.reader import read_schema
from guided_plugin.grammar.llguidance.lark.rules import Grammar, LarkGrammar, Symbol
from guided_plugin.grammar.llguidance.lark.strings import empty_terminal
from guided_plugin.grammar.llguidance.lark.writer import written
from guided_plugin.spec import OutputSpec

# Without this, where a grammar leaves one text only, llguidance allows one spelling of
# it alone: the first token of its own tokenization. A model must be free to take any
# token that fits.
HEADER = '%llguidance {"no_forcing": true}\n'


_ONLY_OTHERWISE = (
    "can't be enforced: the grammar omits some spellings of its values, of a format, or of numbers like "
    "1.0, which draft 4 does not count as integers"
)


def schema_to_lark(
    spec: OutputSpec, unenforced: Collection[str] = (), *, marked: bool = False
) -> LarkGrammar:
    """A grammar, in llguidance's Lark, of the JSON texts that satisfy a spec's schema.

    Strict closes objects that don't say otherwise and keeps properties in the order of
    the schema; else they come in any order. `unenforced`: keywords that are left out.
    `marked`: for the check that items are distinct. Raises an UnsupportedSpecError with
    the keyword and its place.
    """
    grammar = Grammar()
    found = lower_schema(spec.document(), grammar, spec, unenforced, marked=marked)
    return written(grammar, found.symbol, HEADER, spec, marked=marked)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A schema in a grammar."""

    symbol: Symbol
    types: frozenset[str]
    """The types of its values."""


def lower_schema(
    schema: Any,
    grammar: Grammar,
    spec: OutputSpec,
    unenforced: Collection[str],
    *,
    in_order: bool = True,
    marked: bool = False,
) -> Lowered:
    """Write a schema into a grammar, which may hold others. `in_order`: properties keep
    the schema's order, where a spec is strict."""
    closed = spec.strict is True
    document = Document(schema, unenforced, grammar.left_out)
    algebra = Algebra(document, read_schema, closing=closed)
    style = Style(
        closed=closed,
        ordered=closed and in_order,
        spelling=Spelling(
            not closed and document.draft > 4,
            not closed,
            digits=spec.max_digits or 0,
        ),
        marked=marked,
    )
    emitter = Emitter(algebra, style, {Array: array_rule, Object: object_rule}, grammar)
    try:
        root = algebra.literals(schema, ())
        start = emitter.root(root)
        shape = algebra.shape(root)
        if not grammar.productive(start, empty_terminal):
            found = contradiction(algebra, closed=closed)
            if algebra.empty(root) and not algebra.widest.empty(root):
                raise UnsupportedSpecError(
                    _ONLY_OTHERWISE, where=found.where, hint=found.hint
                )
            raise found
    except RecursionError as error:
        raise UnsupportedSpecError(
            "is nested too deep", where="#", hint="flatten it"
        ) from error
    return Lowered(start, frozenset(filter(shape.get, shape)))
