"""How the grammar writes strings. Depends on patterns and rules."""

from __future__ import annotations

from collections.abc import Iterable
from json.encoder import encode_basestring

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.grammar.llguidance.lark.constraints import String
from guided_plugin.grammar.llguidance.lark.expressions import (
    AND,
    Expression,
    Group,
    Opposite,
    Regex,
    Texts,
    may_be_empty,
)
from guided_plugin.grammar.llguidance.lark.patterns import pattern
from guided_plugin.grammar.llguidance.lark.rules import Text
from guided_plugin.spec.languages import times

ANY_STRING = Regex(f'"{patterns.ANY_CHARACTER}*"')

NULL = Text("null")
COMMA = Text(",")
COLON = Text(":")


def value_terminal(string: String) -> Expression:
    """The strings of a constraint as values. Where they are free but for their length,
    in all spellings."""
    if string == String(string.shortest, string.longest):
        return _any_strings(string, patterns.ANY_SPELLING)
    return string_terminal(string)


def _any_strings(string: String, character: str) -> Regex:
    return Regex(f'"{character}{times(string.shortest, string.longest)}"')


def is_empty(string: String) -> bool:
    """Whether no string satisfies a constraint, unless it lists none."""
    return string != String(values=string.values) and empty_terminal(
        string_terminal(string)
    )


def string_terminal(string: String) -> Expression:
    """The strings of a constraint in one spelling, quotes included."""
    if string.values is not None:
        return Texts(tuple(map(key_text, string.values)))
    return Group(AND, tuple(string_parts(string)))


def string_parts(string: String) -> list[Expression]:
    """The parts of the intersection for a constraint that lists no values."""
    terms = [patterns.quoted_format(name) for name in sorted(string.formats)]
    if string.shortest or string.longest is not None:
        terms.append(_any_strings(string, patterns.ANY_CHARACTER))
    terms += map(pattern, sorted(string.patterns))
    # One part at least says what literals are.
    terms = terms or [ANY_STRING]
    terms += [Opposite(pattern(source)) for source in sorted(string.no_patterns)]
    return terms + excluding(string.excluded)


def excluding(texts: Iterable[str]) -> list[Expression]:
    """A part of an intersection that refuses some string literals."""
    refused = tuple(key_text(text) for text in sorted(texts))
    return [Opposite(Texts(refused))] if refused else []


def empty_terminal(expression: Expression) -> bool:
    """Whether an expression takes no text. Of an intersection of any string with a few
    left out there are always others."""
    if not may_be_empty(expression):
        return False
    parts: tuple[Expression, ...] = (expression,)
    if isinstance(expression, Group) and expression.operator == AND:
        parts = expression.parts
    for part in parts:
        leaves_out = isinstance(part, Opposite) and isinstance(part.part, Texts)
        if part != ANY_STRING and not leaves_out:
            return patterns.takes_nothing(expression)
    return False


def lead(string: String) -> str | None:
    """The characters that such a string may begin with in any number, where those are
    nearly all."""
    bounded = string.shortest or string.longest is not None
    if bounded or string.no_patterns or string.formats:
        return None
    leads = {patterns.lead(source) for source in string.patterns}
    # Each pattern can still be met after what the others began with, so the narrowest
    # lead will do.
    narrow = leads - {patterns.ANY_CHARACTER}
    if len(narrow) > 1:
        return None
    return next(iter(narrow or leads), None)


def key_text(text: str) -> str:
    """A text as a JSON string literal."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedSpecError(
            f"has a lone surrogate, which no text can hold: {shown(text)}",
            where="#",
        ) from error
    return encode_basestring(text)
