"""JSON Schema written as a grammar.

document.py     the schema as the standard reads it: drafts, which keywords count
algebra.py      each schema, or its negation, as alternatives of constraints (constraints.py)
reader.py       a schema's keywords as such alternatives; by_type.py: those that constrain one type
negation.py     what breaks a constraint
emitter.py      constraints as rules (rules.py); arrays.py, objects.py, members.py
terminals.py    what texts look like: patterns.py, numbers.py (remainders.py: multiples); languages.py: which
                take nothing
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.grammar.llguidance.lark.algebra import Algebra
from guided_plugin.grammar.llguidance.lark.arrays import array_rule
from guided_plugin.grammar.llguidance.lark.constraints import Array, Literals, Object
from guided_plugin.grammar.llguidance.lark.document import Document
from guided_plugin.grammar.llguidance.lark.emitter import Emitter, Style
from guided_plugin.grammar.llguidance.lark.objects import object_rule
from guided_plugin.grammar.llguidance.lark.reader import read_schema
from guided_plugin.grammar.llguidance.lark.rules import Grammar, Symbol
from guided_plugin.grammar.llguidance.lark.spelling import Spelling
from guided_plugin.grammar.llguidance.lark.terminals import empty_terminal
from guided_plugin.spec.schema import crossed_bounds, pointer

__all__ = ["DISTINCT", "HEADER", "Lowered", "demands_of", "lower_schema", "schema_to_lark"]

# Without this, where a grammar leaves one text only, llguidance allows one spelling of it alone: the first
# token of its own tokenization. A model must be free to take any token that fits.
HEADER = '%llguidance {"no_forcing": true}\n'
DISTINCT = "// distinct\n"
"""At the end of a grammar whose output must be checked for items that are not distinct."""

_FLEXIBLE_HEADER = """%llguidance {"no_forcing": true, "ignore_once": true}
%ignore /[\\x20\\x0A\\x0D\\x09]+/
"""


def schema_to_lark(
    schema: Any,
    *,
    strict: bool,
    flexible: bool,
    unenforced: Iterable[str] = (),
    impossible_token: int | None = None,
) -> str:
    """A grammar, in llguidance's Lark, of the JSON texts that satisfy a schema.

    Strict closes objects that don't say otherwise and keeps properties in the order of the schema; else
    they come in any order. `impossible_token`, if there is one, must be masked out always; it makes some
    patterns cheaper. Raises an UnsupportedSpecError with the keyword and its place.
    """
    grammar = Grammar()
    found = lower_schema(
        schema,
        grammar,
        closed=strict,
        ordered=strict,
        unenforced=unenforced,
        impossible_token=impossible_token,
    )
    text = grammar.lark(found.symbol, _FLEXIBLE_HEADER if flexible else HEADER)
    return text + DISTINCT if found.distinct else text


@dataclass(frozen=True, slots=True)
class Lowered:
    """A schema in a grammar."""

    symbol: Symbol
    types: frozenset[str]
    """The types of its values."""
    distinct: bool
    """Whether items or names must differ in a way that the grammar can't see: see DISTINCT."""


def lower_schema(
    schema: Any,
    grammar: Grammar,
    *,
    closed: bool,
    ordered: bool,
    unenforced: Iterable[str] = (),
    impossible_token: int | None = None,
) -> Lowered:
    """Write a schema into a grammar, which may hold others. Strict ones are closed and ordered."""
    algebra, root = demands_of(schema, strict=closed, unenforced=unenforced)
    document = algebra.document
    style = Style(
        closed=closed,
        ordered=ordered,
        spelling=Spelling(fraction_zero=not closed and document.draft > 4, exponents=not closed),
        impossible_token=impossible_token,
    )
    emitter = Emitter(algebra, style, {Array: array_rule, Object: object_rule}, grammar)
    try:
        start = emitter.root(root)
        types = frozenset(kind for kind, found in algebra.shape(root).items() if found)
    except RecursionError as error:
        raise UnsupportedSpecError("is nested too deep", where="json_schema") from error
    except UnsupportedSpecError as error:
        raise _placed(error, document) from None
    if not grammar.productive(start, empty_terminal):
        raise _unsatisfiable(document)
    return Lowered(start, types, emitter.distinct)


def demands_of(schema: Any, *, strict: bool, unenforced: Iterable[str] = ()) -> tuple[Algebra, Literals]:
    """What a schema demands, and of the whole text: for the grammar, and for checks next to it."""
    document = Document(schema, unenforced=unenforced)
    algebra = Algebra(document, read_schema, closing=strict)
    return algebra, algebra.literals(schema, document.root_base, ())


def _unsatisfiable(document: Document) -> UnsatisfiableSpecError:
    """An error with the first bounds that cross, if there are any: of the keywords that count."""
    for node in document.nodes:
        complaint = crossed_bounds(node.keywords)
        if complaint:
            where = pointer((*node.path, complaint[0].split()[0]))
            return UnsatisfiableSpecError(f"allows no output at all: {complaint[0]}", where=where)
    return UnsatisfiableSpecError(
        "allows no output at all",
        where="json_schema",
        hint="look for a recursion without an end, or for parts that contradict each other",
    )


def _placed(error: UnsupportedSpecError, document: Document) -> UnsupportedSpecError:
    """The error with the place of the pattern that it is about: what reads patterns knows no places."""
    if error.where != "pattern":
        return error
    for node in document.nodes:
        matching = node.keywords.get("patternProperties", {})
        places: list[tuple[str, tuple[str, ...]]]
        places = [(source, ("patternProperties", source)) for source in matching]
        if "pattern" in node.keywords:
            places.append((node.keywords["pattern"], ("pattern",)))
        for source, place in places:
            try:
                patterns.pattern(source)
            except UnsupportedSpecError as found:
                if found.what == error.what:
                    where = pointer((*node.path, *place))
                    return UnsupportedSpecError(error.what, where=where, hint=error.hint)
    return error
