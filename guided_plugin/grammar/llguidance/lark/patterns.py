"""The expression for a pattern, a format or a regular expression, and what an
expression takes.

A JSON string writes some characters as escapes, so a pattern is rewritten for the text
with its quotes, one spelling for each character: as itself, or where JSON forbids that,
as its short escape. Depends on writer, spec/languages and spec/formats; what an
expression takes is asked of llguidance.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from functools import cache
from json.encoder import encode_basestring
from typing import Any

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.expressions import (
    AND,
    OR,
    THEN,
    Expression,
    Group,
    Opposite,
    Regex,
)
from guided_plugin.grammar.llguidance.lark.writer import expression_text, times
from guided_plugin.spec.ecma import (
    ANY,
    DOT,
    MAX_CODE,
    Alternation,
    Both,
    Characters,
    Node,
    Not,
    Ranges,
    Repeat,
    Sequence,
    children,
    meet,
)
from guided_plugin.spec.formats import FORMATS, LENGTHS
from guided_plugin.spec.languages import (
    flat,
    searched,
    whole,
)
from guided_plugin.spec.memo import remembered, texts_bytes

_ESCAPES = {code: json.dumps(chr(code))[1:-1] for code in (*range(32), 34, 92)}
"""The escapes of the characters that JSON does not write as themselves."""
_TEXT: Ranges = ((0, 0xD7FF), (0xE000, MAX_CODE))
"""All but surrogates, which are not characters."""
_RAW: Ranges = ((32, 33), (35, 91), (93, 0xD7FF), (0xE000, MAX_CODE))
"""The characters that JSON writes as themselves."""
_RAW_CLASS = r'[^"\\\x00-\x1F]'
NOTHING = r"[^\x00-\U0010FFFF]"
"""The expression that matches no character."""
ANY_CHARACTER = rf'(?:{_RAW_CLASS}|\\["\\bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f]))'
"""One character of a JSON string, in one spelling."""

_HEX = "[0-9a-fA-F]"
_HIGH_HALF = rf"[dD](?:[0-7]|[89abAB]{_HEX}{{2}}\\u[dD][c-fC-F])"
ANY_SPELLING = rf'(?:{_RAW_CLASS}|\\["\\/bfnrt]|\\u(?:[0-9a-cA-CeEfF]{_HEX}|{_HIGH_HALF}){_HEX}{{2}})'
"""One character of a JSON string, in all its spellings: raw, as a short escape or as
code units."""

# Patterns that meet length bounds need fuel: requests that end with llguidance's own
# limits work with these. A mask that needs all of a step's takes 60 ms; the next ones
# in the same state take none.
FUEL = {"initial_lexer_fuel": 4_000_000, "step_lexer_fuel": 4_000_000}
"""The work that a lexer may do when it is made, and for one mask."""

_MATCHER_BYTES = 200_000
"""A guess at what a matcher and what its lexer learns take."""
_QUOTE = ord('"')
_BACKSLASH = ord("\\")
_LONGEST_TEXT = 100
"""Bytes of the shortest text of an expression, at most; chosen, not measured, as are the
next two."""
_WIDTH = 8
"""Texts of one length that are kept while the shortest is looked for."""
_FEW = 12
"""So many bytes are all tried."""
Leaf = Callable[[Characters], str]


def _bytes(source: object, found: object) -> int:
    """About what a pattern or an expression takes, and what was found for it."""
    return texts_bytes(repr(source), repr(found))


@remembered(_bytes)
def pattern(source: str) -> Expression:
    """The string literals in whose text a pattern is found."""
    return _quoted_term(searched(source))


@remembered(_bytes)
def whole_text(source: str) -> Expression:
    """The texts that a regular expression matches from the first to the last
    character."""
    return _term(whole(source), _unquoted)


@remembered(texts_bytes)
def lead(source: str) -> str | None:
    """Characters of which any number may come first in a string: whatever they are, the
    pattern can be met.

    None where those are not nearly all there are.
    """
    found = pattern(source)
    if not isinstance(found, Regex) or found.may_be_empty:
        return None
    endless: set[Node] = set()
    tree = searched(source)
    for option in tree.options if isinstance(tree, Alternation) else (tree,):
        match flat(option)[:1]:
            case [Repeat(part, _, None)]:
                endless.add(part)
    for characters in (ANY, DOT):
        if characters in endless:
            return _quoted(characters)
    return None


def matches(source: str, text: str) -> bool:
    """True if a pattern is found in a text."""
    return _takes(pattern(source), text, f"pattern {source[:80]!r}")


def matches_format(name: str, text: str) -> bool:
    """True if a text has a format."""
    return _takes(quoted_format(name), text, f"format {name!r}")


def _takes(expression: Expression, text: str, what: str) -> bool:
    """True if an expression takes the string literal of a text, in time linear in its
    length.

    Python's `re` would take exponential time for some patterns, and clients write them.
    """
    matcher = _start(expression).deep_copy()
    tokens = list(encode_basestring(text).encode(errors="surrogatepass"))
    fits = not matcher.is_error() and matcher.validate_tokens(tokens) == len(tokens)
    if matcher.is_error():
        raise UnsupportedSpecError(
            f"{what} needs too much work to be compared with {text[:80]!r}",
            where="#",
            hint="write shorter counted repetitions, or no lookahead",
        )
    if fits:
        matcher.consume_tokens(tokens)
    return fits and bool(matcher.is_accepting())


def quoted_format(name: str) -> Expression:
    """The string literals of a format. Formats hold no character that JSON escapes."""
    bodies = [FORMATS[name]]
    if name in LENGTHS:
        bodies.append(LENGTHS[name])
    return Group(AND, tuple(Regex(f'"(?:{body})"') for body in bodies))


def _quoted_term(node: Node) -> Expression:
    if _is_plain(node):
        return _plain(node, _quoted, '"')
    return Group(THEN, (Regex('"'), _term(node, _quoted), Regex('"')))


def _term(node: Node, leaf: Leaf) -> Expression:
    """A tree as an expression. Regular expressions have no intersections, expressions
    have."""
    if _is_plain(node):
        return _plain(node, leaf)
    match node:
        case Both(parts):
            operator = AND
        case Alternation(parts):
            operator = OR
        case Not(part):
            return Opposite(_term(part, leaf))
        case _:
            operator = THEN
            parts = tuple(flat(node))
    return Group(operator, tuple(_term(part, leaf) for part in parts))


def _plain(node: Node, leaf: Leaf, quote: str = "") -> Regex:
    """A plain tree as a regular expression."""
    source = f"{quote}(?:{_text(node, leaf)}){quote}"
    return Regex(source, _has_nothing(node, leaf))


def _is_plain(node: Node) -> bool:
    return not isinstance(node, Both | Not) and all(map(_is_plain, children(node)))


def _has_nothing(node: Node, leaf: Leaf) -> bool:
    """True if some character of a tree can't be any."""
    if isinstance(node, Characters):
        return leaf(node) == NOTHING
    return any(_has_nothing(child, leaf) for child in children(node))


def _text(node: Node, leaf: Leaf) -> str:
    """A regular expression for a plain tree; `leaf` writes its characters."""
    match node:
        case Sequence(parts):
            return "".join(_text(part, leaf) for part in parts)
        case Alternation(options):
            return "(?:" + "|".join(_text(option, leaf) for option in options) + ")"
        case Repeat(part, low, high):
            return f"(?:{_text(part, leaf)})" + times(low, high)
        case Characters():
            return leaf(node)
    raise TypeError(node)


@remembered(_bytes)
def _quoted(node: Characters) -> str:
    """One character of a JSON string: raw where JSON allows that, else its escapes."""
    if node == ANY:
        return ANY_CHARACTER
    raw = _class(node, _RAW)
    last: dict[str, str] = {}
    for code, escape in _ESCAPES.items():
        if _holds(node, code):
            last[escape[:-1]] = last.get(escape[:-1], "") + re.escape(escape[-1])
    options = [re.escape(start) + f"[{ends}]" for start, ends in last.items()]
    if raw != NOTHING or not options:
        options.insert(0, raw)
    if len(options) == 1:
        return options[0]
    return f"(?:{'|'.join(options)})"


def _unquoted(node: Characters) -> str:
    return _class(node, _TEXT)


def _class(node: Characters, within: Ranges) -> str:
    """One character of those within some ranges."""
    ranges = meet(node.ranges, within)
    if not ranges:
        return NOTHING
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _code(ranges[0][0])
    return "[" + "".join(_range(low, high) for low, high in ranges) + "]"


def _holds(node: Characters, code: int) -> bool:
    return any(low <= code <= high for low, high in node.ranges)


def _range(low: int, high: int) -> str:
    return _code(low) if low == high else f"{_code(low)}-{_code(high)}"


def _code(code: int) -> str:
    char = chr(code)
    return char if char.isalnum() and code < 128 else f"\\x{{{code:X}}}"


@cache
def _tokenizer() -> Any:
    import llguidance

    return llguidance.LLTokenizer("byte")


def _matcher_of(expression: Expression) -> Any:
    import llguidance

    body = expression_text(expression)
    text = f'%llguidance {{"no_forcing": true}}\nstart: T\nT: {body}\n'
    limits = llguidance.LLParserLimits(**FUEL, verbose_errors=False)
    return llguidance.LLMatcher(_tokenizer(), text, log_level=0, limits=limits)


@remembered(_bytes)
def takes_nothing(expression: Expression) -> bool:
    """True if an expression takes no text. False where llguidance can't tell."""
    matcher = _matcher_of(expression)
    return not matcher.get_error() and not _next_bytes(matcher)


@remembered(lambda expression, _: _MATCHER_BYTES + _bytes(expression, None))
def _start(expression: Expression) -> Any:
    return _matcher_of(expression)


def _next_bytes(matcher: Any) -> list[int]:
    """Return the bytes that may come next; quotes last, where they are taken first."""
    bits = int.from_bytes(matcher.compute_bitmask()[:32], "little")
    found = [byte for byte in range(256) if bits >> byte & 1]
    return sorted(found, key=lambda byte: byte == _QUOTE)


@remembered(_bytes)
def shortest_text(expression: Expression) -> bytes | None:
    """A shortest text that an expression takes, of few kinds of characters; None where
    none is found soon."""
    level: dict[bytes, Any] = {b"": _matcher_of(expression)}
    for _ in range(_LONGEST_TEXT):
        states: dict[bytes, tuple[bytes, Any]] = {}
        for text, matcher in level.items():
            if matcher.is_error():
                return None
            if text and matcher.is_accepting():
                return text
            found = one_of_each(_next_bytes(matcher), _FEW)
            for byte in sorted(found, key=lambda byte: byte != _QUOTE):
                ahead = matcher.deep_copy()
                ahead.consume_token(byte)
                # What may come next tells most states apart.
                states.setdefault(
                    ahead.compute_bitmask(), (text + bytes([byte]), ahead)
                )
        level = dict(itertools.islice(states.values(), _WIDTH))
    return None


def ends_in(expression: Expression, text: bytes, start: int) -> tuple[list[int], bool]:
    """Return the places where a text may end that an expression takes and that begins
    at a place, and whether it may go on behind the whole text."""
    matcher = _start(expression).deep_copy()
    ends: list[int] = []
    for place in range(start, len(text)):
        if not matcher.consume_token(text[place]):
            return ends, False
        if matcher.is_accepting():
            ends.append(place + 1)
    return ends, True


def one_of_each(allowed: list[int], few: int) -> list[int]:
    """One byte of each kind of character, without escapes: what differs by letters
    alone is tried once; of so few bytes all are."""
    allowed = [byte for byte in allowed if byte != _BACKSLASH] or allowed
    if len(allowed) <= few:
        return allowed
    kinds: dict[object, int] = {}
    for byte in sorted(allowed, key=lambda byte: (byte != 32, not chr(byte).isalnum())):
        letter = chr(byte)
        kind: object = byte
        if letter.isdigit():
            kind = "digit"
        elif letter.isalpha():
            kind = letter.isupper()
        kinds.setdefault("beyond" if byte >= 128 else kind, byte)
    return list(kinds.values())
