"""Regular expressions as trees: one dialect, ECMA 262 with its `u` flag. Depends on
errors.

Every construct means what the dialect says or is refused, with its place. Refused are
those that describe no regular language (backreferences, word boundaries, lookbehind)
and those that only other dialects have. Accepted beyond the standard is what all
dialects read the same: escaped punctuation, lone `{`, `}` and `]`, a hyphen next to a
class. Laziness is dropped: it doesn't change a language.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import NoReturn
from unicodedata import category

from guided_plugin.errors import UnsupportedSpecError, shown

MAX_CODE = sys.maxunicode

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Characters:
    """One character out of ranges; out of nothing, it matches no text."""

    ranges: Ranges = ()


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternation:
    """Any of them."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Between `low` and `high` times; `high` None: without end."""

    part: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The beginning or the end of the text."""

    start: bool


@dataclass(frozen=True, slots=True)
class Look:
    """A lookahead."""

    part: Node
    negated: bool


@dataclass(frozen=True, slots=True)
class Both:
    """The texts that all parts match. Parsing makes none: lookahead becomes one."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Every text but those that this matches. Parsing makes none."""

    part: Node


Node = Characters | Sequence | Alternation | Repeat | Anchor | Look | Both | Not

DIGITS: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACES: Ranges = (
    (9, 13),
    (32, 32),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))

_CLASSES = {"d": DIGITS, "w": WORD, "s": SPACES}


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Every other code point."""
    result = []
    next_code = 0
    for low, high in sorted(ranges):
        if low > next_code:
            result.append((next_code, low - 1))
        next_code = max(next_code, high + 1)
    if next_code <= MAX_CODE:
        result.append((next_code, MAX_CODE))
    return tuple(result)


ANY = Characters(complement(()))
DOT = Characters(complement(_LINE_ENDS))


@cache
def _outside(name: str) -> Ranges:
    """The characters outside a general category of Unicode; takes 0.2 s once."""
    every = enumerate(map(category, map(chr, range(MAX_CODE + 1))))
    return complement((code, code) for code, found in every if name in found)


def meet(ranges: Ranges, others: Ranges) -> Ranges:
    """The code points that lie in both."""
    both = ((max(a, low), min(b, high)) for a, b in ranges for low, high in others)
    return tuple(sorted((low, high) for low, high in both if low <= high))


def children(node: Node) -> tuple[Node, ...]:
    """The parts of a node."""
    match node:
        case Sequence(parts) | Alternation(parts) | Both(parts):
            return parts
        case Repeat(part, _, _) | Look(part, _) | Not(part):
            return (part,)
        case _:
            return ()


def parse(pattern: str) -> Node:
    """The tree of a pattern. Raises an UnsupportedSpecError with what is refused, and
    its position."""
    parser = _Parser(pattern)
    node = parser.alternation(0)
    if parser.at < len(pattern):
        parser.refuse("a ) without its (", _ESCAPE_IT)
    return node


_ESCAPE_IT = "put a backslash before it if it is meant literally"
_NOT_REGULAR = "write the pattern without it: grammars express regular languages only"
_OTHER_DIALECT = (
    "patterns are regular expressions of ECMA 262: write it in its syntax, "
    r"for example ^ for \A, $ for \Z, [aA] for (?i:a), \x07 for \a"
)

_QUANTIFIER = re.compile(r"[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\}")
_NEARLY = re.compile(r"\{\s*(?:[0-9]+\s*(?:,\s*[0-9]*\s*)?|,\s*[0-9]*\s*)\}")
"""The texts that other dialects read as a quantifier."""
_GROUP = re.compile(r"\((?:\?(?::|=|!|P?<[A-Za-z_$][A-Za-z0-9_$]*>)|(?!\?))")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]+)\}")
_CATEGORY = re.compile(
    r"{(L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|C[cfnos]?)}"
)
_NAMED = "\\p", "\\P"
"""The beginnings of categories. `Zl` and `Zp` have one character each, and are no ends
of ranges."""
_LOW_SURROGATE = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})")

_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}
_NOT_REGULAR_ESCAPES = {
    **dict.fromkeys("bB", "a word boundary"),
    **dict.fromkeys("k123456789", "a backreference"),
}


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.bracket_in_class = False
        """True if a class so far may end elsewhere in other dialects."""

    def refuse(self, what: str, hint: str) -> NoReturn:
        raise UnsupportedSpecError(
            f"{what} at position {self.at} of {shown(self.pattern)}",
            where="pattern",
            hint=hint,
        )

    def startswith(self, text: str | tuple[str, ...]) -> bool:
        return self.pattern.startswith(text, self.at)

    def take(self, text: str) -> bool:
        taken = self.startswith(text)
        self.at += len(text) if taken else 0
        return taken

    def alternation(self, depth: int) -> Node:
        if depth > 100:
            self.refuse("a group nested more than 100 deep", "flatten it")
        options = [self.sequence(depth)]
        while self.take("|"):
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            parts.append(self.quantified(self.atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def quantified(self, node: Node) -> Node:
        found = _QUANTIFIER.match(self.pattern, self.at)
        if found is None:
            return node
        low, high = self.bounds(found)
        self.at = found.end()
        # Lazy or not, a quantifier allows the same texts.
        self.take("?")
        if self.startswith("+") and self.pattern[self.at - 1] != "?":
            self.refuse("a possessive quantifier", _NOT_REGULAR)
        if _QUANTIFIER.match(self.pattern, self.at):
            self.refuse(
                "a quantifier after a quantifier", "put the first one into a group"
            )
        if not isinstance(node, Anchor | Look):
            return Repeat(node, low, high)
        # An assertion repeated is the same assertion; one that may be left out says
        # nothing.
        return node if low else Sequence()

    def bounds(self, found: re.Match[str]) -> tuple[int, int | None]:
        if found[1] is None:
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[found[0]]
        if max(len(found[1]), len(found[3] or "")) > 9:
            self.refuse("a repetition of more than a billion times", "lower its bounds")
        low = int(found[1])
        high = None if found[2] and not found[3] else int(found[3] or found[1])
        if high is not None and high < low:
            self.refuse(
                "a repetition whose bounds are the wrong way round", "swap them"
            )
        return low, high

    def atom(self, depth: int) -> Node:
        char = self.pattern[self.at]
        match char:
            case "(":
                return self.group(depth)
            case "[":
                return self.bracket()
            case "\\":
                return self.escape(in_class=False)
            case "*" | "+" | "?":
                self.refuse("a quantifier with nothing before it", _ESCAPE_IT)
            case "{" if _NEARLY.match(self.pattern, self.at):
                self.refuse(
                    "a misplaced or incomplete quantifier", "write {0,3} or \\{,3\\}"
                )
            case "]" if self.bracket_in_class:
                self.refuse(
                    "a ] that dialects read differently",
                    "escape the brackets inside [ ], and name the characters of POSIX classes",
                )
        self.at += 1
        if char in "^$":
            return Anchor(char == "^")
        return DOT if char == "." else _one(ord(char))

    def group(self, depth: int) -> Node:
        opening = _GROUP.match(self.pattern, self.at)
        if opening is None:
            if self.pattern.startswith(("(?<=", "(?<!"), self.at):
                self.refuse("a lookbehind", _NOT_REGULAR)
            self.refuse("flags or another extension of a group", _OTHER_DIALECT)
        self.at = opening.end()
        node = self.alternation(depth + 1)
        if not self.take(")"):
            self.refuse("a ( without its )", _ESCAPE_IT)
        return Look(node, opening[0] == "(?!") if opening[0] in ("(?=", "(?!") else node

    def escape(self, *, in_class: bool) -> Characters:
        """An escape that stands for characters."""
        start = self.at
        rest = self.pattern[start + 1 : start + 2]
        if not rest:
            self.refuse("a backslash at the end", "write two for a literal one")
        self.at += 2
        if rest.lower() in _CLASSES and rest.isascii():
            ranges = _CLASSES[rest.lower()]
            return Characters(ranges if rest.islower() else complement(ranges))
        if rest in _CONTROLS:
            return _one(_CONTROLS[rest])
        if rest == "b" and in_class:
            return _one(8)
        if rest == "0" and not self.pattern[start + 2 : start + 3].isdigit():
            return _one(0)
        if not rest.isalnum():
            return _one(ord(rest))
        self.at = start
        if rest in "pP":
            found = _CATEGORY.match(self.pattern, start + 2)
            if not found:
                self.refuse(
                    "a property other than a general category by its short name",
                    r"write \p{L} or \p{Lu}, or ranges, as in [A-Za-z\u00c0-\u024f]",
                )
            self.at = found.end()
            others = _outside(found[1])
            return Characters(others if rest == "P" else complement(others))
        if rest in "xu":
            return _one(self.code())
        if rest == "0" or (in_class and rest.isdigit()):
            self.refuse("an octal escape", r"write it as \x and two digits")
        if rest in _NOT_REGULAR_ESCAPES:
            self.refuse(_NOT_REGULAR_ESCAPES[rest], _NOT_REGULAR)
        return self.refuse(f"the unknown escape \\{rest}", _OTHER_DIALECT)

    def code(self) -> int:
        found = _HEX.match(self.pattern, self.at + 1)
        code = int(found[found.lastindex or 0], 16) if found else MAX_CODE + 1
        if found is None or code > MAX_CODE:
            self.refuse(
                "a broken escape",
                r"\x takes two digits, \u four, or more in { }",
            )
        self.at = found.end()
        low = _LOW_SURROGATE.match(self.pattern, self.at)
        if found[2] and 0xD800 <= code <= 0xDBFF and low:
            self.at = low.end()
            return 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00
        return code

    def bracket(self) -> Characters:
        opening = self.at
        self.at += 1
        negated = self.take("^")
        self.bracket_in_class |= self.startswith("]")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            named = self.startswith(_NAMED)
            first = self.member(opening)
            ranges += first.ranges
            # A hyphen at the end of the class, or next to a class, stands for itself.
            if (
                named
                or not _is_one(first)
                or not self.startswith("-")
                or self.startswith("-]")
            ):
                continue
            hyphen = self.at
            self.at += 1
            named = self.startswith(_NAMED)
            last = self.member(opening)
            if named or not _is_one(last):
                self.at = hyphen
            elif last.ranges < first.ranges:
                self.refuse("a range whose ends are the wrong way round", "swap them")
            else:
                ranges[-1] = (ranges[-1][0], last.ranges[0][1])
        return Characters(complement(ranges) if negated else tuple(ranges))

    def member(self, opening: int) -> Characters:
        if self.at >= len(self.pattern):
            self.at = opening
            self.refuse("a [ without its ]", _ESCAPE_IT)
        if self.startswith("\\"):
            return self.escape(in_class=True)
        if self.startswith("["):
            self.bracket_in_class = True
        self.at += 1
        return _one(ord(self.pattern[self.at - 1]))


def _one(code: int) -> Characters:
    return Characters(((code, code),))


def _is_one(found: Characters) -> bool:
    return len(found.ranges) == 1 and found.ranges[0][0] == found.ranges[0][1]
