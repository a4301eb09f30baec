"""How the grammar writes texts. Depends on patterns and rules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from json.encoder import encode_basestring

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.grammar.llguidance.lark.constraints import String
from guided_plugin.grammar.llguidance.lark.patterns import (
    also_pattern,
    expression,
    pattern,
)
from guided_plugin.grammar.llguidance.lark.rules import Text, literal
from guided_plugin.spec.formats import LENGTHS
from guided_plugin.spec.languages import times

# Any string but a few: there are always others.
_ANY_STRING = expression(f'"{patterns.ANY_CHARACTER}*"')
_BUT_TEXTS = re.compile(r" & ~\((?:\"(?:[^\"\\]|\\.)*\"(?: \| )?)+\)$")

NULL = Text('"null"')
COMMA = Text('","')
COLON = Text('":"')


def value_terminal(string: String) -> str:
    """The strings of a constraint as values. Where they are free but for their length,
    in all spellings."""
    if string == String(string.shortest, string.longest):
        return _any_strings(string, patterns.ANY_SPELLING)
    return string_terminal(string)


def _any_strings(string: String, character: str) -> str:
    return expression(f'"{character}{times(string.shortest, string.longest)}"')


def string_terminal(string: String) -> str:
    """The strings of a constraint in one spelling, quotes included."""
    if string.values is not None:
        return " | ".join(map(key_text, string.values))
    terms = [patterns.quoted_format(name) for name in sorted(string.formats)]
    if string.shortest or string.longest is not None:
        terms.append(_any_strings(string, patterns.ANY_CHARACTER))
    terms = both_patterns(terms, sorted(string.patterns))
    if not terms:
        terms.append(_any_strings(string, patterns.ANY_CHARACTER))
    terms += [f"~{also_pattern(source)}" for source in sorted(string.no_patterns)]
    terms += excluding(string.excluded)
    return " & ".join(terms)


def both_patterns(required: list[str], sources: Iterable[str]) -> list[str]:
    """The parts of an intersection with those for some patterns. One part at least says
    what literals are."""
    for source in sources:
        required = [*required, (also_pattern if required else pattern)(source)]
    return required


def excluding(texts: Iterable[str]) -> list[str]:
    """A part of a terminal that refuses some string literals."""
    bodies = [key_text(text) for text in sorted(texts)]
    return [f"~({' | '.join(bodies)})"] if bodies else []


def empty_terminal(body: str) -> bool:
    """Whether a terminal takes no text. Only intersections and those with an empty
    class may be empty."""
    if " & " not in body and patterns.NOTHING not in body:
        return False
    if _BUT_TEXTS.sub("", body) == _ANY_STRING:
        return False
    return patterns.takes_nothing(body)


def entangled(body: str) -> bool:
    """Whether a terminal is an intersection that may need much work, as far as its text
    tells.

    Texts to leave out add little to one pattern, and one pattern to leave out no more
    than to take.
    """
    body = _BUT_TEXTS.sub("", body).removeprefix(f"{_ANY_STRING} & ")
    return " & " in body and body not in _lone_formats()


@cache
def _lone_formats() -> frozenset[str]:
    return frozenset(map(patterns.quoted_format, LENGTHS))


def any_of(bodies: list[str]) -> str:
    """A part of a terminal that takes what any of these takes."""
    return "(" + " | ".join(f"({body})" for body in bodies) + ")"


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
    """A JSON string literal as a literal of the grammar."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedSpecError(
            f"has a lone surrogate, which no text can hold: {shown(text)}",
            where="#",
        ) from error
    return literal(encode_basestring(text))
