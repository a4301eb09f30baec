"""What a pattern or format allows, as regular expressions over JSON string literals.

A JSON string writes some characters as escapes, so a pattern is rewritten for the text with its quotes, one
spelling for each character: as itself, or where JSON forbids that, as its short escape. Lookahead at the
start of a pattern becomes an intersection: `^(?!a)b` is b and not a. Depends on ecma and spec/formats.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import ecma
from guided_plugin.grammar.llguidance.lark.ecma import Alternation, Anchor, Characters, Look, Node, Repeat
from guided_plugin.spec.formats import FORMATS

_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_ESCAPED = [*range(32), 34, 92]
_RAW = r'[^"\\\x00-\x1F]'

ANY_CHARACTER = rf'(?:{_RAW}|\\["\\bfnrt]|\\u00(?:0[0-7bBeEfF]|1[0-9a-fA-F]))'
"""One character of a JSON string, in any spelling that is allowed."""


class _NotRegular(Exception):
    """A part of a pattern that has no place in a regular expression over whole texts."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Texts that match every one of `positive` and none of `negative`; both with their quotes."""

    positive: tuple[str, ...]
    negative: tuple[str, ...]
    lead: str | None
    """Characters of which any number may come first: whatever they are, the text can go on to match."""


@lru_cache(maxsize=4096)
def pattern(source: str) -> Pattern:
    """A pattern as it is searched for: anywhere in the text unless it is anchored."""
    try:
        return _pattern(_flat(ecma.parse(source)))
    except _NotRegular as error:
        raise UnsupportedSpecError(
            f"{error}: {source[:80]!r}", where="pattern", hint="write the pattern without it"
        ) from None


def _pattern(parts: list[Node]) -> Pattern:
    positive: list[str] = []
    negative: list[str] = []
    while parts[:1] == [Anchor(start=True)] and len(parts) > 1 and isinstance(look := parts[1], Look):
        parts.pop(1)
        ahead, _ = _searched([parts[0], *_flat(look.part)])
        (negative if look.negated else positive).append(ahead)
    searched, lead = _searched(parts)
    return Pattern((*positive, searched), tuple(negative), None if positive or negative else lead)


@lru_cache(maxsize=4096)
def _compiled(source: str) -> re.Pattern[str]:
    return re.compile(_text(ecma.parse(source), _python), re.DOTALL)


def matches(source: str, text: str) -> bool:
    """Whether a pattern is found in a text."""
    return _compiled(source).search(text) is not None


@lru_cache(maxsize=32)
def _compiled_format(name: str) -> re.Pattern[str]:
    return re.compile(FORMATS[name])


def matches_format(name: str, text: str) -> bool:
    """Whether a text has a format."""
    return _compiled_format(name).fullmatch(text) is not None


def quoted_format(name: str) -> str:
    """A format with its quotes. Formats hold no character that JSON escapes."""
    return f'"(?:{FORMATS[name]})"'


def literal(text: str) -> str:
    """A regular expression for one text without quotes, in the spelling that `pattern` uses."""
    return "".join(_characters(Characters(((ord(char), ord(char)),))) for char in text)


def _searched(parts: Sequence[Node]) -> tuple[str, str | None]:
    """The texts in which a pattern is found, and the characters that any of them may begin with."""
    options = []
    lead = None
    for anchored_start, opened in _split(list(parts), True):
        for anchored_end, core in _split(opened, False):
            # Next to what may be anything, a part that may be empty says nothing.
            while core and not anchored_start and ecma.nullable(core[0]):
                core = core[1:]
            while core and not anchored_end and ecma.nullable(core[-1]):
                core = core[:-1]
            before = "" if anchored_start else f"{ANY_CHARACTER}*"
            after = "" if anchored_end or (not core and before) else f"{ANY_CHARACTER}*"
            options.append(before + "".join(_text(part, _quoted) for part in core) + after)
            lead = ANY_CHARACTER if before else lead or _lead(core)
    # Nothing matches: a text that is never a JSON string.
    if not options:
        return '"\\x00"', None
    if f"{ANY_CHARACTER}*" in options:
        return f'"{ANY_CHARACTER}*"', None
    return f'"(?:{"|".join(dict.fromkeys(options))})"', lead


def _lead(core: Sequence[Node]) -> str | None:
    """The characters that an endless repetition at the start takes, where those are nearly all."""
    first = core[0] if core else None
    if not isinstance(first, Repeat) or first.high is not None or not isinstance(first.part, Characters):
        return None
    excluded = first.part.ranges if first.part.negated else ((0, ecma.MAX_CODE),)
    plain = not first.part.properties and all(high < 32 for _, high in excluded)
    return _characters(first.part) if plain else None


def _split(parts: list[Node], start: bool) -> list[tuple[bool, list[Node]]]:
    """The same language as alternatives without anchors of one kind, each with whether it had one.

    An anchor with something on its outer side matches only where that is empty.
    """
    positions = [i for i, part in enumerate(parts) if _has_anchor(part, start)]
    if not positions:
        return [(False, parts)]
    position = positions[0 if start else -1]
    part = parts[position]
    outer, inner = parts[:position], parts[position + 1 :]
    if not start:
        outer, inner = inner, outer

    def joined(middle: list[Node], *, keep_outer: bool) -> list[Node]:
        around = outer if keep_outer else []
        return [*around, *middle, *inner] if start else [*inner, *middle, *around]

    if isinstance(part, Anchor):
        # What is outside must be empty; more anchors of the kind inside must hold there too.
        if not all(ecma.nullable(other) for other in outer):
            return []
        if any(_has_anchor(other, not start) for other in outer):
            # Both ends meet here: only the empty text is left.
            return [(True, [Anchor(not start)])] if all(map(ecma.nullable, inner)) else []
        return [(True, core) for _, core in _split(joined([], keep_outer=False), start)]
    if isinstance(part, Alternation):
        options: list[list[Node]] = [_flat(option) for option in part.options]
    elif isinstance(part, ecma.Sequence):
        options = [list(part.parts)]
    elif isinstance(part, Repeat) and part.high == 1:
        options = [_flat(part.part), *([[]] if part.low == 0 else [])]
    else:
        raise _NotRegular("an anchor inside a repetition or a lookahead")
    return [found for option in options for found in _split(joined(option, keep_outer=True), start)]


def _flat(node: Node) -> list[Node]:
    if isinstance(node, ecma.Sequence):
        return [part for inner in node.parts for part in _flat(inner)]
    return [node]


def _has_anchor(node: Node, start: bool) -> bool:
    return node == Anchor(start) or any(_has_anchor(part, start) for part in ecma.children(node))


def _text(node: Node, leaf: Callable[[Characters | Anchor | Look], str]) -> str:
    """A regular expression for a tree, in the syntax that all dialects share; `leaf` writes the rest."""
    match node:
        case ecma.Sequence(parts):
            return "".join(_text(part, leaf) for part in parts)
        case Alternation(options):
            return "(?:" + "|".join(_text(option, leaf) for option in options) + ")"
        case Repeat(part, low, high):
            return f"(?:{_text(part, leaf)})" + _times(low, high)
        case _:
            return leaf(node)


def _quoted(node: Characters | Anchor | Look) -> str:
    match node:
        case Characters():
            return _characters(node)
        case Look():
            raise _NotRegular("a lookahead that is not at the start, after ^")
        case Anchor():
            raise _NotRegular("an anchor inside a repetition")


def _times(low: int, high: int | None) -> str:
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


@lru_cache(maxsize=4096)
def _characters(node: Characters) -> str:
    """One character: raw where JSON allows that, else its escapes."""
    listed = not node.negated and not node.properties
    printable = listed and all(low > 92 or (low > 34 and high < 92) for low, high in node.ranges)
    escapes = [] if printable else _escapes([code for code in _ESCAPED if _holds(node, code)])
    if listed:
        ranges = [(low, high) for first, last in node.ranges for low, high in _printable(first, last)]
        if not ranges:
            return f"(?:{'|'.join(escapes)})" if escapes else r"[^\x00-\U0010FFFF]"
        if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and not escapes:
            return _code(ranges[0][0])
        raw = "[" + "".join(_range(low, high) for low, high in ranges) + "]"
    else:
        body = "".join(_range(low, high) for low, high in node.ranges)
        body += "".join(f"\\{name}" for name in node.properties)
        raw = f"[[{'^' if node.negated else ''}{body}]&&{_RAW}]" if body else _RAW
    return f"(?:{'|'.join([raw, *escapes])})" if escapes else raw


def _printable(first: int, last: int) -> list[tuple[int, int]]:
    """A range without what JSON escapes, and without surrogates, which are not characters."""
    raw = ((32, 33), (35, 91), (93, 0xD7FF), (0xE000, ecma.MAX_CODE))
    parts = ((max(first, low), min(last, high)) for low, high in raw)
    return [(low, high) for low, high in parts if low <= high]


def _holds(node: Characters, code: int) -> bool:
    inside = any(low <= code <= high for low, high in node.ranges)
    return (inside or any(_in_property(name, code) for name in node.properties)) != node.negated


def _in_property(name: str, code: int) -> bool:
    """For ASCII alone: there scripts hold nothing but letters, and categories are in the tables."""
    wanted = name[2:-1]
    category = unicodedata.category(chr(code))
    known = category == wanted or category[0] == wanted or wanted == "Any" or wanted == "ASCII"
    return known != (name[0] == "P")


def _escapes(codes: list[int]) -> list[str]:
    short = "".join(_SHORT[code] for code in codes if code in _SHORT)
    result = ["\\\\[" + "".join("\\" + c if c in '"\\' else c for c in short) + "]"] if short else []
    for high in (0, 1):
        digits = [f"{code & 15:x}" for code in codes if code >> 4 == high and code not in _SHORT]
        if digits:
            both = "".join(digit + (digit.upper() if digit.isalpha() else "") for digit in digits)
            result.append(f"\\\\u00{high}[{both}]")
    return result


def _code(code: int) -> str:
    char = chr(code)
    return char if char.isalnum() and code < 128 else f"\\x{{{code:X}}}"


def _range(low: int, high: int) -> str:
    return _code(low) if low == high else f"{_code(low)}-{_code(high)}"


def _python(node: Characters | Anchor | Look) -> str:
    """For Python's `re`, with ECMA's meaning of every class."""
    match node:
        case Characters(ranges, properties, negated):
            if properties:
                what = "can't compare a Unicode property with a text"
                raise UnsupportedSpecError(what, where="pattern", hint="write out the ranges")
            body = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
            if not body:
                return "." if negated else "(?!)"
            return f"[{'^' if negated else ''}{body}]"
        case Anchor(start):
            return r"\A" if start else r"\Z"
        case Look(part, negated):
            return f"(?{'!' if negated else '='}{_text(part, _python)})"
