"""Regular expressions of JSON Schema (ECMA 262) as trees. Depends on the scanner in spec/regexes.

Parses what describes a regular language, lookahead included, and names what doesn't: backreferences, word
boundaries, lookbehind. Drops laziness, which doesn't change a language.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import NoReturn

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.spec.regexes import Piece, character, scan

MAX_CODE = sys.maxunicode


@dataclass(frozen=True, slots=True)
class Characters:
    """One character out of ranges and Unicode properties."""

    ranges: tuple[tuple[int, int], ...] = ()
    properties: tuple[str, ...] = ()
    """As written, without the backslash: `p{L}`, `P{Lu}`."""
    negated: bool = False


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


Node = Characters | Sequence | Alternation | Repeat | Anchor | Look

DIGITS = ((48, 57),)
WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACES = (
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
LINE_ENDS = ((10, 10), (13, 13))
"""What a dot leaves out. ECMA also leaves out U+2028 and U+2029, other dialects don't."""

_CLASSES = {"d": DIGITS, "w": WORD, "s": SPACES}


def complement(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Every other code point."""
    result, next_code = [], 0
    for low, high in sorted(ranges):
        if low > next_code:
            result.append((next_code, low - 1))
        next_code = max(next_code, high + 1)
    if next_code <= MAX_CODE:
        result.append((next_code, MAX_CODE))
    return tuple(result)


def children(node: Node) -> tuple[Node, ...]:
    """The parts of a node."""
    match node:
        case Sequence(parts) | Alternation(parts):
            return parts
        case Repeat(part, _, _) | Look(part, _):
            return (part,)
        case _:
            return ()


def nullable(node: Node) -> bool:
    """Whether a part can match the empty text."""
    match node:
        case Characters():
            return False
        case Sequence(parts):
            return all(nullable(part) for part in parts)
        case Alternation(options):
            return any(nullable(option) for option in options)
        case Repeat(part, low, _):
            return low == 0 or nullable(part)
        case Anchor() | Look():
            return True


def parse(pattern: str) -> Node:
    """The tree of a pattern. Raises an UnsupportedSpecError that names what is not regular."""
    parser = _Parser(pattern)
    node = parser.alternation(0)
    if parser.next.kind:
        parser.refuse("a ) without its (")
    return node


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.pieces = [*scan(pattern), Piece("", "", len(pattern))]
        self.at = 0

    @property
    def next(self) -> Piece:
        return self.pieces[self.at]

    def take(self, kind: str, text: str | None = None) -> bool:
        taken = self.next.kind == kind and text in (None, self.next.text)
        self.at += taken
        return taken

    def refuse(self, what: str) -> NoReturn:
        raise UnsupportedSpecError(
            f"{what} at position {self.next.position} of {self.pattern[:80]!r}",
            where="pattern",
            hint="write the pattern without it: grammars express regular languages only",
        )

    def alternation(self, depth: int) -> Node:
        if depth > 100:
            self.refuse("groups nested over 100 deep")
        options = [self.sequence(depth)]
        while self.take("branch"):
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.next.kind not in ("branch", "close", ""):
            parts.append(self.quantified(self.atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def quantified(self, node: Node) -> Node:
        while self.next.kind == "quantifier":
            low, high = self.bounds(self.next.text)
            self.at += 1
            # A second one makes it lazy, which doesn't change the language, or possessive, which does.
            if not self.take("quantifier", "?") and self.next.text == "+":
                self.refuse("a possessive quantifier")
            if not isinstance(node, Anchor | Look):
                node = Repeat(node, low, high)
            elif low == 0:
                # Once or not at all: an assertion repeated is the same assertion.
                node = Sequence()
        return node

    def bounds(self, text: str) -> tuple[int, int | None]:
        if text in _QUANTIFIERS:
            return _QUANTIFIERS[text]
        low, comma, high = text[1:-1].partition(",")
        if high and int(high) < int(low):
            self.refuse("a repetition whose bounds are the wrong way round")
        return int(low), int(high or low) if high or not comma else None

    def atom(self, depth: int) -> Node:
        kind, text, _, _ = self.next
        match kind:
            case "flags":
                self.refuse("flags or another extension of a group")
            case "quantifier":
                self.refuse("a quantifier with nothing before it")
            case "escape" if text[1] in "bB":
                self.refuse("a word boundary")
            case "escape" if text[1] in "123456789k":
                self.refuse("a backreference")
        if kind == "escape" and text[1] not in "AZz":
            return self.escape()
        self.at += 1
        match kind:
            case "open":
                return self.group(text, depth)
            case "class":
                return self.bracket()
            case "anchor" | "escape":
                return Anchor(start=text in ("^", "\\A"))
        if text == ".":
            return Characters(LINE_ENDS, negated=True)
        if text == "\\":
            self.refuse("a backslash at the end")
        return _one(text)

    def group(self, opening: str, depth: int) -> Node:
        if opening in ("(?<=", "(?<!"):
            self.refuse("a lookbehind")
        if (opening.endswith(":") and opening != "(?:") or (opening == "(" and self.next.text == "?"):
            self.refuse("flags or another extension of a group")
        node = self.alternation(depth + 1)
        if not self.take("close"):
            self.refuse("a ( without its )")
        return Look(node, negated=opening == "(?!") if opening in ("(?=", "(?!") else node

    def escape(self) -> Characters:
        """An escape that stands for characters, inside [ ] or out."""
        text = self.next.text
        letter = text[1]
        if letter.lower() in _CLASSES:
            ranges = _CLASSES[letter.lower()]
            found = Characters(ranges if letter.islower() else complement(ranges))
        elif letter in "pP" and len(text) > 2:
            name = text[3:-1]
            if text[-1] != "}" or not name.replace("=", "").replace("_", "").isalnum():
                self.refuse("an unknown property")
            found = Characters(properties=(f"{letter}{{{_PROPERTIES.get(name, name)}}}",))
        else:
            # Inside [ ] it is a backspace, elsewhere a word boundary.
            literal = "\b" if letter == "b" else character(text)
            if literal is None:
                self.refuse("a broken escape")
            found = _one(literal)
        self.at += 1
        return found

    def bracket(self) -> Characters:
        negated = self.take("atom", "^")
        ranges: list[tuple[int, int]] = []
        properties: list[str] = []
        while not self.take("end"):
            first = self.member()
            ranges += first.ranges
            properties += first.properties
            # A hyphen at the end of the class, or next to a class, stands for itself.
            if not _is_one(first) or self.next.text != "-" or self.pieces[self.at + 1].kind == "end":
                continue
            mark = self.at
            self.at += 1
            last = self.member()
            if not _is_one(last):
                self.at = mark
            elif last.ranges < first.ranges:
                self.refuse("a range whose ends are the wrong way round")
            else:
                ranges[-1] = (ranges[-1][0], last.ranges[0][1])
        return Characters(tuple(ranges), tuple(properties), negated)

    def member(self) -> Characters:
        kind, text, _, in_class = self.next
        if not in_class:
            self.refuse("a [ without its ]")
        if kind == "escape":
            return self.escape()
        self.at += 1
        return _one(text)


def _one(char: str) -> Characters:
    return Characters(((ord(char), ord(char)),))


def _is_one(found: Characters) -> bool:
    return not found.properties and len(found.ranges) == 1 and found.ranges[0][0] == found.ranges[0][1]


_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_PROPERTIES = {"Letter": "L", "Number": "N", "Punctuation": "P", "Symbol": "S", "Separator": "Z"}
