"""Structural tags written as one grammar, the schemas inside included.

A document is read as `nodes` (`reader`, with `fields`, `texts` and `xml`), and refused
where no lexer reads these as they are meant (`lexing`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from guided_plugin.errors import GrammarError, UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import HEADER, Lowered, lower_schema
from guided_plugin.grammar.llguidance.lark.emitter import CONTROL
from guided_plugin.grammar.llguidance.lark.expressions import (
    AND,
    Expression,
    Group,
    Known,
    Opposite,
)
from guided_plugin.grammar.llguidance.lark.expressions import (
    Regex as Pattern,
)
from guided_plugin.grammar.llguidance.lark.expressions import (
    Texts as Literals,
)
from guided_plugin.grammar.llguidance.lark.patterns import whole_text
from guided_plugin.grammar.llguidance.lark.rules import (
    Grammar,
    LarkGrammar,
    Repeated,
    Symbol,
    Token,
)
from guided_plugin.grammar.llguidance.lark.rules import (
    Text as Literal,
)
from guided_plugin.grammar.llguidance.lark.strings import known_of
from guided_plugin.grammar.llguidance.lark.writer import written
from guided_plugin.grammar.llguidance.tags.lexing import Lexing
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
    parts_of,
)
from guided_plugin.grammar.llguidance.tags.reader import Reader
from guided_plugin.grammar.llguidance.tags.texts import Texts
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.languages import whole
from guided_plugin.spec.references import pointer

_NOT_EMPTY = Pattern("(?s:.+)")


def tag_to_lark(
    spec: OutputSpec,
    controls: Mapping[int, str],
    unenforced: Collection[str] = (),
    *,
    marked: bool = False,
) -> LarkGrammar:
    """A grammar, in llguidance's Lark, of the texts of a structural tag.

    `controls`: the names of the control tokens that it may name, by id. The other
    options are those of `schema_to_lark`. Raises an UnsupportedSpecError with a place
    in the whole tag.
    """
    try:
        node = Reader(spec, Texts(controls)).document()
        writer = _Writer(spec, unenforced, marked)
        Lexing(node, lambda schema: writer.lowered(schema).types).check()
        start = writer.symbol(node)
    except RecursionError as error:
        raise UnsupportedSpecError(
            "is nested too deep", where="structural_tag"
        ) from error
    return written(writer.grammar, start, HEADER, spec, marked=marked)


@dataclass
class _Writer:
    """Writes nodes into one grammar."""

    spec: OutputSpec
    unenforced: Collection[str]
    marked: bool
    grammar: Grammar = field(default_factory=Grammar)
    _schemas: dict[tuple[str, bool], Lowered] = field(default_factory=dict)

    def lowered(self, node: Schema) -> Lowered:
        """A schema's rules; tags often repeat a schema."""
        key = (json.dumps(node.schema), node.any_order)
        if key not in self._schemas:
            self._schemas[key] = self._lowered(node)
        found = self._schemas[key]
        if node.without_strings and "string" in found.types:
            raise UnsupportedSpecError(
                "a value that may be a string, or something else, is not supported as XML by llguidance",
                where=pointer(node.path),
            )
        return found

    def _lowered(self, node: Schema) -> Lowered:
        """Write a schema's rules."""
        try:
            return lower_schema(
                node.schema,
                self.grammar,
                self.spec,
                self.unenforced,
                in_order=not node.any_order,
                marked=self.marked,
            )
        except GrammarError as error:
            place = _place(node, error.where)
            raise type(error)(error.what, where=place, hint=error.hint) from None

    def symbol(self, node: Node) -> Symbol:
        """The symbol of a node."""
        match node:
            case Text(text):
                known = Known((text,), len(text.encode()))
                return self.grammar.terminal(Literals((text,)), known)
            case Control(token) if self.marked:
                name = Literal(f"{token};")
                return self.grammar.rule((Token(CONTROL), name))
            case Control(token):
                return Token(token)
            case Free():
                return self._free(node)
            case Regex(pattern):
                known = known_of(whole(pattern))
                texts = tuple(text for text in known.texts if text)
                return self.grammar.terminal(
                    Group(AND, (whole_text(pattern), _NOT_EMPTY)),
                    replace(known, texts=texts),
                )
            case Schema():
                return self.lowered(node).symbol
            case Sequence(parts):
                return self.grammar.rule(self._symbols(parts))
            case Either(options):
                return self.grammar.rule(
                    *(self._symbols(parts_of(each)) for each in options)
                )
            case Repeat(part, low, loop):
                return Repeated((self.symbol(part),), low, None if loop else 1)

    def _free(self, node: Free) -> Symbol:
        """Free text, up to its ending if it has one."""
        ending = node.ending
        text: Expression = _NOT_EMPTY
        if ending:
            text = Pattern(f"(?s:.*){_escaped(ending)}")
        if node.stops:
            stop = "|".join(map(_escaped, node.stops))
            behind = "+" if node.reaches_stop else "*"
            stopped = Pattern(f"(?s:.*)({stop})(?s:.{behind})")
            text = Group(AND, (text, Opposite(stopped)))
        ends = [each for each in (ending, *node.stops) if each]
        most = max(map(len, ends), default=1)
        marks = frozenset(each[-1] for each in ends)
        return self.grammar.terminal(text, Known((ending or "a",), most, marks))

    def _symbols(self, nodes: Iterable[Node]) -> tuple[Symbol, ...]:
        """The symbols of nodes that come one after the other."""
        return tuple(map(self.symbol, nodes))


def _place(node: Schema, where: str) -> str:
    """The place in the whole tag of an error in a schema."""
    path = node.path
    if node.shared is not None and where.startswith(("#/$defs/", "#/definitions/")):
        path = node.shared
    return pointer(path) + (where[1:] if where.startswith("#") else "")


def _escaped(text: str) -> str:
    """A literal text as a part of a regular expression."""
    return "".join(
        char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}"
        for char in text
    )
