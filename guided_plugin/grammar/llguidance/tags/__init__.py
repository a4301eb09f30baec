"""Structural tags written as one grammar, the schemas inside included.

A document is read as `nodes` (`reader`, with `fields` and `xml`), and refused where no
lexer reads these as they are meant (`lexing`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from guided_plugin.errors import GrammarError, UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.lark import HEADER, Lowered, lower_schema
from guided_plugin.grammar.llguidance.lark.emitter import CONTROL
from guided_plugin.grammar.llguidance.lark.patterns import whole_text
from guided_plugin.grammar.llguidance.lark.reach import known_of
from guided_plugin.grammar.llguidance.lark.rules import (
    Grammar,
    LarkGrammar,
    Repeated,
    Symbol,
    literal,
)
from guided_plugin.grammar.llguidance.lark.rules import Text as Terminal
from guided_plugin.grammar.llguidance.tags.lexing import misread
from guided_plugin.grammar.llguidance.tags.nodes import (
    Control,
    Either,
    Free,
    Node,
    Regex,
    Repeat,
    Schema,
    Sequence,
    Text,
    Until,
)
from guided_plugin.grammar.llguidance.tags.reader import read_tag
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.languages import whole
from guided_plugin.spec.schema import pointer

_NOT_EMPTY = "/(?s:.+)/"


def tag_to_lark(
    spec: OutputSpec,
    controls: Mapping[int, str],
    unenforced: Iterable[str] = (),
    *,
    impossible_token: int | None = None,
    marked: bool = False,
) -> LarkGrammar:
    """A grammar, in llguidance's Lark, of the texts of a structural tag.

    `controls`: the names of the control tokens that it may name, by id. The other
    options are those of `schema_to_lark`. Raises an UnsupportedSpecError with a place
    in the whole tag.
    """
    try:
        node = read_tag(spec, controls)
        named = impossible_token in _tokens(node)
        writer = _Writer(
            spec, tuple(unenforced), None if named else impossible_token, marked
        )
        clash = misread(node, lambda schema: writer.lowered(schema).types)
        if clash is not None:
            raise UnsupportedSpecError(
                f"can't be read from left to right: {clash}",
                where="structural_tag (llguidance)",
                hint="let the parts begin and end with texts that differ",
            )
        start = writer.symbol(node)
    except RecursionError as error:
        raise UnsupportedSpecError(
            "is nested too deep", where="structural_tag"
        ) from error
    written = writer.grammar.lark(
        start, HEADER, spec.layout, spec.bounds.max_whitespace, marked=marked
    )
    return replace(written, distinct=writer.distinct)


def _tokens(node: Node) -> set[int]:
    match node:
        case Control(token):
            return {token}
        case Sequence(parts) | Either(parts):
            return set().union(*map(_tokens, parts))
        case Repeat(part):
            return _tokens(part)
        case _:
            return set()


@dataclass
class _Writer:
    """Writes nodes into one grammar."""

    spec: OutputSpec
    unenforced: tuple[str, ...]
    impossible_token: int | None
    marked: bool
    grammar: Grammar = field(default_factory=Grammar)
    _schemas: dict[tuple[str, bool], Lowered] = field(default_factory=dict)

    @property
    def distinct(self) -> bool:
        """Whether the output must be checked for items that are not distinct."""
        return any(found.distinct for found in self._schemas.values())

    def lowered(self, node: Schema) -> Lowered:
        """A schema's rules; tags often repeat a schema."""
        key = (json.dumps(node.schema), node.any_order)
        if key not in self._schemas:
            try:
                self._schemas[key] = lower_schema(
                    node.schema,
                    self.grammar,
                    closed=self.spec.closed,
                    ordered=self.spec.closed and not node.any_order,
                    bounds=self.spec.bounds,
                    unenforced=self.unenforced,
                    impossible_token=self.impossible_token,
                    marked=self.marked,
                )
            except GrammarError as error:
                raise type(error)(
                    error.what, where=_place(node, error.where), hint=error.hint
                ) from None
        found = self._schemas[key]
        if node.without_strings and "string" in found.types:
            raise UnsupportedSpecError(
                "a value that may be a string, or something else, is not supported as XML by llguidance",
                where=pointer(node.path),
            )
        return found

    def symbol(self, node: Node) -> Symbol:
        """The symbol of a node."""
        match node:
            case Text(text):
                return self.grammar.terminal(_quoted(text))
            case Control(token):
                if self.marked:
                    return self.grammar.rule(
                        (Terminal(f"<[{CONTROL}]>"), Terminal(f'"{token};"'))
                    )
                return Terminal(f"<[{token}]>")
            case Free(stops, suffix):
                ending = [f"/(?s:.*){_escaped(suffix)}/"] if suffix else []
                return self._free(
                    [_NOT_EMPTY, *ending, *_lacking(stops, "*")], stops, suffix
                )
            case Until(stop, stops, barred):
                parts = [
                    f"/(?s:.*){_escaped(stop)}/",
                    *_lacking(stops, "+"),
                    *_lacking(barred, "{0}"),
                ]
                return self._free(parts, stops, stop)
            case Regex(pattern):
                known = known_of(whole(pattern))
                return self.grammar.terminal(
                    f"({whole_text(pattern)}) & {_NOT_EMPTY}",
                    reach=known.most,
                    marks=known.marks,
                    texts=tuple(text.encode() for text in known.texts if text),
                )
            case Schema():
                return self.lowered(node).symbol
            case Sequence(parts):
                return self.grammar.rule(tuple(map(self.symbol, parts)))
            case Either(options):
                return self.grammar.rule(*map(self._symbols, options))
            case Repeat(part, low, high):
                return Repeated((self.symbol(part),), low, high)
            case _:
                raise TypeError(f"free text was not written out: {node!r}")

    def _free(self, parts: list[str], stops: tuple[str, ...], end: str) -> Symbol:
        """Free text that ends in some way; what may stop it are its marks."""
        return self.grammar.terminal(
            " & ".join(parts),
            reach=max(map(len, (end, *stops))),
            marks=frozenset(stop[-1] for stop in (end, *stops) if stop),
            texts=(end.encode() or b"a",),
        )

    def _symbols(self, node: Node) -> tuple[Symbol, ...]:
        return (
            tuple(map(self.symbol, node.parts))
            if isinstance(node, Sequence)
            else (self.symbol(node),)
        )


def _place(node: Schema, where: str) -> str:
    """The place in the whole tag of an error in a schema."""
    if node.shared is not None and where.startswith(("#/$defs/", "#/definitions/")):
        return pointer(node.shared) + where[1:]
    return pointer(node.path) + (where[1:] if where.startswith("#") else "")


def _lacking(stops: tuple[str, ...], after: str) -> list[str]:
    """A part of a terminal for texts without a stop that has so many characters behind
    it."""
    return (
        [f"~/(?s:.*)({'|'.join(map(_escaped, stops))})(?s:.{after})/"] if stops else []
    )


def _quoted(text: str) -> str:
    _check(text)
    return literal(text)


def _check(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(
            f"has a lone surrogate, which no text can hold: {shown(text)}",
            where="structural_tag",
        ) from None


def _escaped(text: str) -> str:
    """A literal text as a part of a regular expression."""
    _check(text)
    return "".join(
        char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}"
        for char in text
    )
