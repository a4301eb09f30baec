"""Regular expressions of JSON Schema (ECMA 262) as trees. Touches errors only.

Parses what describes a regular language, lookahead at the start included, and names what doesn't:
backreferences, word boundaries, lookbehind. Greed is dropped, since it doesn't change a language.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import NoReturn

from guided_plugin.errors import UnsupportedSpecError

__all__ = ["Alternation", "Anchor", "Characters", "Look", "Node", "Repeat", "Sequence", "nullable", "parse"]

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
_CONTROLS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0, "a": 7}


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
    """The tree of a pattern. Raises an UnsupportedSpecError that names what stands in the way."""
    parser = _Parser(pattern)
    node = parser.alternation(0)
    if parser.at < len(pattern):
        parser.refuse("has a ) without its (")
    return node


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0

    def refuse(self, what: str) -> NoReturn:
        raise UnsupportedSpecError(
            f"{what} at position {self.at} of {self.text[:80]!r}",
            where="pattern",
            hint="write it without; a grammar can hold what regular expressions of the textbook can",
        )

    def peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        if self.peek(text):
            self.at += len(text)
            return True
        return False

    def alternation(self, depth: int) -> Node:
        if depth > 100:
            self.refuse("groups nested over 100 deep")
        options = [self.sequence(depth)]
        while self.take("|"):
            options.append(self.sequence(depth))
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self.quantified(self.atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def quantified(self, node: Node) -> Node:
        while (bounds := self.quantifier()) is not None:
            if isinstance(node, Anchor | Look) and bounds != (1, 1):
                # Once or not at all: an assertion repeated is the same assertion.
                node = node if bounds[0] > 0 else Sequence()
                continue
            node = Repeat(node, *bounds)
        return node

    def quantifier(self) -> tuple[int, int | None] | None:
        if self.take("*"):
            bounds: tuple[int, int | None] = (0, None)
        elif self.take("+"):
            bounds = (1, None)
        elif self.take("?"):
            bounds = (0, 1)
        elif (braces := self.braces()) is not None:
            bounds = braces
        else:
            return None
        if self.take("?"):
            return bounds
        if self.peek("+"):
            self.refuse("a possessive quantifier")
        return bounds

    def braces(self) -> tuple[int, int | None] | None:
        end = self.text.find("}", self.at)
        if not self.peek("{") or end < 0:
            return None
        low, comma, high = self.text[self.at + 1 : end].partition(",")
        digits = low.isascii() and low.isdecimal() and (not high or (high.isascii() and high.isdecimal()))
        if not digits:
            return None
        if high and int(high) < int(low):
            self.refuse("a repetition whose bounds are the wrong way round")
        self.at = end + 1
        return int(low), (int(high) if high else None) if comma else int(low)

    def atom(self, depth: int) -> Node:
        if self.take("("):
            return self.group(depth)
        if self.take("["):
            return self.bracket()
        if self.take("^"):
            return Anchor(start=True)
        if self.take("$"):
            return Anchor(start=False)
        if self.take("."):
            return Characters(LINE_ENDS, negated=True)
        if self.take("\\"):
            return self.escape()
        if self.text[self.at] in "*+?":
            self.refuse("a quantifier with nothing before it")
        code = ord(self.text[self.at])
        self.at += 1
        return Characters(((code, code),))

    def group(self, depth: int) -> Node:
        look: bool | None = None
        if self.take("?"):
            if self.take("=") or self.take("!"):
                look = self.text[self.at - 1] == "!"
            elif self.peek("<=") or self.peek("<!"):
                self.refuse("a lookbehind")
            elif self.take("P<") or self.take("<"):
                end = self.text.find(">", self.at)
                if end < 0:
                    self.refuse("a group name without its end")
                self.at = end + 1
            elif not self.take(":"):
                self.refuse("flags or another extension of a group")
        node = self.alternation(depth + 1)
        if not self.take(")"):
            self.refuse("has a ( without its )")
        return node if look is None else Look(node, look)

    def escape(self) -> Node:
        if self.at >= len(self.text):
            self.refuse("a backslash at the end")
        char = self.text[self.at]
        if char in "bB":
            self.refuse("a word boundary")
        if char in "123456789k":
            self.refuse("a backreference")
        if char in "AZz":
            self.at += 1
            return Anchor(start=char == "A")
        return self.class_escape()

    def class_escape(self) -> Characters:
        """After a backslash, inside [ ] or out."""
        char = self.text[self.at]
        self.at += 1
        if char.lower() in _CLASSES:
            ranges = _CLASSES[char.lower()]
            return Characters(ranges if char.islower() else complement(ranges))
        if char in "pP" and self.peek("{"):
            end = self.text.find("}", self.at)
            if end < 0:
                self.refuse("a property without its end")
            name = self.text[self.at + 1 : end]
            self.at = end + 1
            if not name.replace("=", "").replace("_", "").isalnum():
                self.refuse("an unknown property")
            return Characters(properties=(f"{char}{{{_PROPERTIES.get(name, name)}}}",))
        code = self.code(char)
        return Characters(((code, code),))

    def code(self, char: str) -> int:
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            return self.hexadecimal(2)
        if char == "u" and self.take("{"):
            end = self.text.find("}", self.at)
            return self.hexadecimal(max(end - self.at, 0), closing=1)
        if char == "u":
            high = self.hexadecimal(4)
            if 0xD800 <= high < 0xDC00 and self.take("\\u"):
                return 0x10000 + ((high - 0xD800) << 10) + (self.hexadecimal(4) - 0xDC00)
            return high
        if char == "c" and self.at < len(self.text) and self.text[self.at].isascii():
            self.at += 1
            return ord(self.text[self.at - 1]) % 32
        return ord(char)

    def hexadecimal(self, digits: int, closing: int = 0) -> int:
        text = self.text[self.at : self.at + digits]
        if len(text) != digits or not digits or any(c not in "0123456789abcdefABCDEF" for c in text):
            self.refuse("a broken hexadecimal escape")
        value = int(text, 16)
        if value > MAX_CODE:
            self.refuse("an escape beyond Unicode")
        self.at += digits + closing
        return value

    def bracket(self) -> Characters:
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        properties: list[str] = []
        while not self.take("]"):
            if self.at >= len(self.text):
                self.refuse("has a [ without its ]")
            first = self.bracket_atom()
            if isinstance(first, Characters):
                ranges += first.ranges
                properties += first.properties
                continue
            last = first
            # A hyphen before the end of the class, or before a class, stands for itself.
            if self.peek("-") and not self.peek("-]"):
                mark = self.at
                self.at += 1
                second = self.bracket_atom()
                if isinstance(second, Characters):
                    self.at = mark
                elif second < first:
                    self.refuse("a range whose ends are the wrong way round")
                else:
                    last = second
            ranges.append((first, last))
        return Characters(tuple(ranges), tuple(properties), negated)

    def bracket_atom(self) -> int | Characters:
        if self.at >= len(self.text):
            self.refuse("has a [ without its ]")
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return ord(char)
        if self.at >= len(self.text):
            self.refuse("a backslash at the end")
        if self.take("b"):
            return 8
        found = self.class_escape()
        (low, high) = found.ranges[0] if len(found.ranges) == 1 else (0, 1)
        return low if low == high and not found.properties else found


_PROPERTIES = {"Letter": "L", "Number": "N", "Punctuation": "P", "Symbol": "S", "Separator": "Z"}
