"""The strings of the grammar, and what is known of the texts of strings and patterns:
short ones, how many characters may still be needed wherever in one an output is, and
which characters end it. Depends on constraints, patterns and rules.

The number is a bound: of a pattern with counted repetitions, that many times their
part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from json.encoder import encode_basestring
from operator import attrgetter

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.grammar.llguidance.lark.constraints import String
from guided_plugin.grammar.llguidance.lark.expressions import (
    AND,
    Expression,
    Group,
    Known,
    Opposite,
    Regex,
    Texts,
    may_be_empty,
)
from guided_plugin.grammar.llguidance.lark.patterns import pattern
from guided_plugin.grammar.llguidance.lark.rules import Text
from guided_plugin.grammar.llguidance.lark.writer import times
from guided_plugin.spec.ecma import (
    ANY,
    Alternation,
    Both,
    Characters,
    Node,
    Not,
    Ranges,
    Repeat,
    Sequence,
    children,
    complement,
    parse,
)
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.languages import searched
from guided_plugin.spec.memo import remembered, texts_bytes

ANY_STRING = Regex(f'"{patterns.ANY_CHARACTER}*"')

NULL = Text("null")
COMMA = Text(",")
COLON = Text(":")

PROBES = b"a 0Z-.{]"
"""Characters that may all come next in a free text."""
_USUAL = b"a0A "
"""Characters that texts have where they may."""
_QUOTES = 2
_SEVERAL = 2
_LONGEST = 8_000
"""Characters of a text, as many as an ending has that is told (`expected`); one that is
cut is no text, and no ending is found with it."""
_WAYS = 8
"""Texts of one expression, the shortest. Chosen, not measured."""
_BEYOND = 128
"""One character stands for all beyond ASCII."""
_NO_TEXT = ((0x2028, 0x2029), (0xD800, 0xDFFF))
"""The characters that the dot, and the strings of JSON, leave out."""


def value_terminal(string: String) -> Expression:
    """The strings of a constraint as values. Where they are free but for their length,
    in all spellings."""
    if string.values is None and is_listed(string):
        return _any_strings(string, patterns.ANY_SPELLING)
    return string_terminal(string)


def _any_strings(string: String, character: str) -> Regex:
    return Regex(f'"{character}{times(string.shortest, string.longest)}"')


def is_empty(string: String) -> bool:
    """True if no string satisfies a constraint, unless it lists none or its lengths
    exclude each other."""
    return not is_listed(string) and empty_terminal(string_terminal(string))


def is_listed(string: String) -> bool:
    """True if a constraint lists its strings, or they are free but for their length."""
    return not (
        string.patterns or string.no_patterns or string.formats or string.excluded
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
    """True if an expression takes no text. If a few strings are left out of all, there
    are always others."""
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
    if bounded or string.no_patterns or string.formats or not string.patterns:
        return None
    leads = {patterns.lead(source) for source in string.patterns}
    # Each pattern can still be met after what the others began with, so the narrowest
    # lead will do.
    narrow = leads - {patterns.ANY_CHARACTER}
    if len(narrow) > 1:
        return None
    return next(iter(narrow or leads))


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


def known_of_string(string: String) -> Known:
    """Return what is known of the strings of a constraint, with their quotes: no texts
    where several demands meet."""
    if string.values is not None:
        sizes = [len(each.encode()) for each in string.values]
        shortest = sorted(string.values, key=len)[:_WAYS]
        most = _QUOTES + max(sizes, default=0)
        return Known(tuple(map(encode_basestring, shortest)), most, form="string")
    demands = list(map(_known_of_format, sorted(string.formats)))
    demands += map(known_of_pattern, sorted(string.patterns))
    refused = list(map(known_of_pattern, string.no_patterns))
    marks = map(attrgetter("marks"), (*demands, *refused))
    texts: list[str] = []
    if not refused and len(demands) < _SEVERAL:
        texts += demands[0].texts if demands else ("a" * string.shortest,)
        missing = string.shortest - len(texts[0])
        if missing > 0:
            for source in string.patterns:
                texts = _texts(searched(source), missing)
    allowed = [
        text
        for text in texts
        if len(text) >= string.shortest and text not in string.excluded
    ]
    most = _QUOTES + string.shortest + sum(map(attrgetter("most"), demands))
    quoted = tuple(map(encode_basestring, allowed))
    return Known(quoted, most, frozenset().union(*marks), "string")


def known_of(node: Node) -> Known:
    """Return what is known of the texts of an expression."""
    return Known(tuple(_texts(node)), _need(node)[1], frozenset(_marks(node)))


@remembered(lambda source, known: texts_bytes(source, *known.texts))
def known_of_pattern(source: str) -> Known:
    """Return what is known of the texts in which a pattern is found."""
    return known_of(searched(source))


@remembered(lambda name, known: texts_bytes(name, *known.texts))
def _known_of_format(name: str) -> Known:
    return known_of(parse(FORMATS[name]))


def _need(node: Node) -> tuple[int, int]:
    """Bytes of the shortest text, and those that may be missing from any place in
    one."""
    least = 0
    most = 0
    match node:
        case Characters():
            least = most = len(_character(node).encode(errors="replace"))
        case Sequence(parts):
            for part in reversed(parts):
                once, missing = _need(part)
                most = max(most, missing + least)
                least += once
        case Alternation(options) if options:
            needs = list(map(_need, options))
            least = min(once for once, _ in needs)
            most = max(missing for _, missing in needs)
        case Repeat(part, low, _):
            once, most = _need(part)
            most += max(low - 1, 0) * once
            least = low * once
        case Both(parts):
            for once, missing in map(_need, _taken(parts)):
                least = max(least, once)
                most += missing
    return least, most


def _taken(parts: Iterable[Node]) -> list[Node]:
    """The parts of an intersection that are not opposites."""
    return [part for part in parts if not isinstance(part, Not)]


def _texts(node: Node, missing: int = 0) -> list[str]:
    """Texts, the shortest first; of a choice one for each way to write it. `missing`:
    some have so many characters more, where a part may come again and again."""
    found = [""]
    match node:
        case Characters():
            found = [_character(node)]
        case Sequence(parts):
            known = [_texts(part, missing) for part in parts]
            found = list(islice(_texts_in_order(known), _WAYS))
        case Alternation(options):
            for option in options:
                found += _texts(option, missing)
            found = sorted(found[1:], key=len) or found
        case Repeat(part, low, high):
            found = _texts(part)
            once = found[0]
            size = max(len(once), 1)
            least = min(low, _LONGEST // size + 1)
            if low != 1:
                found = [once * least]
            if missing and high is None:
                more = -(-missing // size)
                found = [*found, once * (least + more)]
        case Both(parts):
            for part in _taken(parts)[:1]:
                found = _texts(part, missing)
    cut = [text[: _LONGEST + missing] for text in found]
    return list(dict.fromkeys(cut))[:_WAYS]


def _texts_in_order(known: list[list[str]]) -> Iterator[str]:
    """Texts of a sequence: the first of each part, or another one in one place."""
    usual = [texts[0] for texts in known]
    yield "".join(usual)
    for place, texts in enumerate(known):
        for other in texts[1:]:
            yield "".join([*usual[:place], other, *usual[place + 1 :]])


def _marks(node: Node) -> set[str]:
    """Return the characters left out by a class that holds all of a free text."""
    if not isinstance(node, Characters):
        return set().union(*map(_marks, children(node)))
    ranges = node.ranges
    if node == ANY or not all(_holds(ranges, code) for code in PROBES):
        return set()
    found = {chr(code) for code in range(32, _BEYOND) if not _holds(ranges, code)}
    left = [each for each in complement(ranges) if each not in _NO_TEXT]
    if any(high >= _BEYOND for _, high in left):
        found.add(chr(_BEYOND))
    return found.difference('"\\<')


def _character(node: Characters) -> str:
    """One character of a class, a usual one if that may be."""
    ranges = node.ranges
    for code in _USUAL:
        if _holds(ranges, code):
            return chr(code)
    if not ranges:
        return "a"
    low, _ = ranges[0]
    return chr(low)


def _holds(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)
