r"""Regular expressions of string values as xgrammar reads them exactly: of the JSON text between the quotes.

xgrammar 0.2.8 turns a `pattern` into an automaton, in which it joins states that one character leads to. That
is right where no text can be matched in two ways. Other patterns are handed over as an expression of EBNF,
which is matched rightly but more slowly: as a `pattern` that only `expression_of` understands.

Characters are written in one form each: as themselves, with the short escape, or as \u00XX. Classes hold no
surrogates and are split where UTF-8 gets longer: from one class across, the automaton takes overlong bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.xgrammar.regexes import ranges_of
from guided_plugin.spec.ecma import Alternation, Characters, Node, Ranges, Repeat, Sequence, complement
from guided_plugin.spec.languages import searched, whole

# Where UTF-8 takes another byte, and around the surrogates, which it has not.
_BORDERS = (0, 0x80, 0x800, 0xD800, 0xE000, 0x10000, 0x110000)
_SURROGATES, _LAST_SURROGATE = 0xD800, 0xDFFF
_SHORT = {0x22: '"', 0x5C: "\\", 8: "b", 9: "t", 10: "n", 12: "f", 13: "r"}
_RULE = re.compile(r'(?m)^(\w+ ::= )Regex\("((?:[^"\\]|\\.)*)", json_string=true\)')
_EXPRESSION = re.compile(r"\^ebnf-([0-9a-f]*)\$")
# Beyond this, whether a pattern is ambiguous is not looked into.
_MOST_POSITIONS = 2_000


def json_pattern(pattern: str) -> str:
    """The pattern to give to xgrammar for the strings in which a pattern is found.

    Where that would be ambiguous and the pattern itself is not, only strings that it matches as a whole:
    masks take a hundred milliseconds otherwise.
    """
    found = searched(pattern)
    for tree in (found, whole(pattern)):
        if _is_deterministic(tree):
            return f"^(?:{_Regex().written(tree)})$"
    return f"^ebnf-{_Ebnf().written(found).encode().hex()}$"


def with_expressions(grammar: str) -> str:
    """A printed grammar whose patterns are matched as they are written.

    Of its own, xgrammar leaves quotes and backslashes out of some of their classes, and takes them in others.
    """
    return _RULE.sub(_pattern_rule, grammar)


def _pattern_rule(found: re.Match[str]) -> str:
    expression = _EXPRESSION.fullmatch(found[2])
    if expression is None:
        return f'{found[1]}Regex("{found[2]}", json_string=false)'
    return f"{found[1]}({bytes.fromhex(expression[1]).decode()})"


_UNIT = r"(?:\\U[0-9a-f]{8}|\\u[0-9a-f]{4}|\\x[0-9a-f]{2}|\\.|[^\\])"
_QUOTED_OR_CLASS = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]')
_RANGE = re.compile(rf"({_UNIT})-({_UNIT})", re.DOTALL)


def without_surrogates(grammar: str) -> str:
    """A printed grammar whose classes hold no surrogates: xgrammar takes their bytes, which are not UTF-8."""
    return _QUOTED_OR_CLASS.sub(lambda found: _valid_class(found[0]), grammar)


def _valid_class(text: str) -> str:
    if text[0] == '"':
        return text
    if text.startswith("[^"):
        return text[:-1] + r"\ud800-\udfff]"
    return _RANGE.sub(lambda found: _valid_range(found[1], found[2]), text)


def _valid_range(low: str, high: str) -> str:
    if not (_code(low) < _SURROGATES and _code(high) > _LAST_SURROGATE):
        return f"{low}-{high}"
    return rf"{low}-\ud7ff\ue000-{high}"


def _code(unit: str) -> int:
    if len(unit) > 2:
        return int(unit[2:], 16)
    return ord(unit[-1]) if unit != r"\0" else 0


@dataclass(frozen=True, slots=True)
class _Written:
    """The characters of one class, by how they are written."""

    raw: tuple[Ranges, ...]
    """As themselves, by the length of their UTF-8."""
    short: str
    """Behind a backslash."""
    numbered: tuple[tuple[int, str], ...]
    """The digits behind `\\u00`: the first, and the possible second ones."""


def _written_forms(characters: Characters) -> _Written:
    ranges = complement(complement(ranges_of(characters)))
    special = [
        code for code in (*range(0x20), 0x22, 0x5C) if any(low <= code <= high for low, high in ranges)
    ]
    plain = _without(ranges, (*range(0x20), 0x22, 0x5C))
    raw = tuple(
        clipped
        for start, end in pairwise(_BORDERS)
        if start != _SURROGATES and (clipped := _clipped(plain, start, end - 1))
    )
    digits = dict.fromkeys((0, 1), "")
    for code in special:
        if code not in _SHORT:
            digits[code >> 4] += f"{code & 15:x}"
    short = "".join(_SHORT[code] for code in special if code in _SHORT)
    return _Written(raw, short, tuple((first, found) for first, found in digits.items() if found))


def _without(ranges: Ranges, codes: tuple[int, ...]) -> Ranges:
    kept = complement((*_single(codes), *complement(ranges)))
    return tuple((low, high) for low, high in kept if low <= high)


def _single(codes: tuple[int, ...]) -> Ranges:
    """Each code point as a range of its own."""
    return tuple((code, code) for code in codes)


def _clipped(ranges: Ranges, start: int, end: int) -> Ranges:
    return tuple((max(low, start), min(high, end)) for low, high in ranges if low <= end and high >= start)


class _Writer:
    """Writes a tree in one notation."""

    def written(self, node: Node) -> str:
        match node:
            case Characters():
                return self.characters(_written_forms(node))
            case Sequence(parts):
                return self.sequence([self.written(part) for part in parts])
            case Alternation(options):
                return self.group([self.written(option) for option in options])
            case Repeat(part, low, high):
                return self.repeated(self.group([self.written(part)]), low, high)
        raise UnsupportedSpecError(
            "lookahead is not enforced by xgrammar", where="pattern", hint="use the backend `llguidance`"
        )

    def characters(self, forms: _Written) -> str:
        options = [self.members(ranges) for ranges in forms.raw]
        escapes = [self.members(_ranges_of_text(forms.short))] if forms.short else []
        if forms.numbered:
            digits = [
                self.sequence([self.text(str(first)), self.members(_ranges_of_text(second))])
                for first, second in forms.numbered
            ]
            escapes.append(self.sequence([self.text("u00"), self.group(digits)]))
        if escapes:
            options.append(self.sequence([self.text("\\"), self.group(escapes)]))
        return self.group(options) if options else self.nothing()

    def members(self, ranges: Ranges) -> str:
        return "[" + "".join(f"{self.code(low)}-{self.code(high)}" for low, high in ranges) + "]"

    def sequence(self, parts: list[str]) -> str:
        raise NotImplementedError

    def group(self, options: list[str]) -> str:
        raise NotImplementedError

    def repeated(self, part: str, low: int, high: int | None) -> str:
        raise NotImplementedError

    def text(self, text: str) -> str:
        raise NotImplementedError

    def code(self, code: int) -> str:
        raise NotImplementedError

    def nothing(self) -> str:
        """What matches no text."""
        raise UnsupportedSpecError(
            "no text matches an empty class", where="pattern", hint="name the characters, as in [a-z]"
        )


class _Regex(_Writer):
    def sequence(self, parts: list[str]) -> str:
        return "".join(parts)

    def group(self, options: list[str]) -> str:
        return f"(?:{'|'.join(options)})"

    def repeated(self, part: str, low: int, high: int | None) -> str:
        # Not as x?, which lets a match enter a group in the middle.
        return f"{part}{{{low},{'' if high is None else high}}}"

    def text(self, text: str) -> str:
        return "".join(f"[{self.code(ord(character))}]" for character in text)

    def code(self, code: int) -> str:
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"


class _Ebnf(_Writer):
    def sequence(self, parts: list[str]) -> str:
        return " ".join(parts) if parts else '""'

    def group(self, options: list[str]) -> str:
        return f"({' | '.join(options)})"

    def repeated(self, part: str, low: int, high: int | None) -> str:
        if high is None and low <= 1:
            return part + "*+"[low]
        return f"{part}{{{low},{'' if high is None else high}}}"

    def text(self, text: str) -> str:
        return "".join(f"[{self.code(ord(character))}]" for character in text)

    def code(self, code: int) -> str:
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _ranges_of_text(text: str) -> Ranges:
    return _single(tuple(sorted(map(ord, text))))


class _TooLarge(Exception):
    pass


def _is_deterministic(tree: Node) -> bool:
    """Whether the first byte of what comes next always tells which part of the pattern it belongs to."""
    try:
        positions = _Positions()
        start = positions.of(tree)
    except (_TooLarge, RecursionError):
        return False
    return all(positions.apart(found) for found in (start.first, *positions.follow))


@dataclass(slots=True)
class _Part:
    """Where matches of a part may begin and end, as sets of positions."""

    empty: bool
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Positions:
    """The places of a pattern that match one character, and what may follow each: Glushkov's automaton."""

    starts: list[int] = field(default_factory=list)
    """The first bytes that a position may begin with, as bits."""
    follow: list[set[int]] = field(default_factory=list)

    def of(self, node: Node) -> _Part:
        match node:
            case Characters():
                if len(self.starts) >= _MOST_POSITIONS:
                    raise _TooLarge
                self.starts.append(_first_bytes(_written_forms(node)))
                self.follow.append(set())
                here = frozenset([len(self.starts) - 1])
                return _Part(False, here, here)
            case Sequence(parts):
                return self.joined(self.of(part) for part in parts)
            case Alternation(options):
                found = [self.of(option) for option in options]
                first = frozenset[int]().union(*(part.first for part in found))
                last = frozenset[int]().union(*(part.last for part in found))
                return _Part(any(part.empty for part in found), first, last)
            case Repeat(part, low, high):
                return self.repeated(part, low, high)
        return _Part(True)

    def joined(self, parts: Iterator[_Part]) -> _Part:
        whole = _Part(True)
        for part in parts:
            for position in whole.last:
                self.follow[position] |= part.first
            whole = _Part(
                whole.empty and part.empty,
                whole.first | part.first if whole.empty else whole.first,
                whole.last | part.last if part.empty else part.last,
            )
        return whole

    def repeated(self, part: Node, low: int, high: int | None) -> _Part:
        if high is None:
            copies = [self.of(part) for _ in range(max(low, 1))]
            again = copies[-1]
            for position in again.last:
                self.follow[position] |= again.first
            copies[-1] = _Part(again.empty or low == 0, again.first, again.last)
        else:
            copies = [self.of(part) for _ in range(low)]
            # Each further one only behind the one before: x(x(x)?)?
            further, tail = [self.of(part) for _ in range(high - low)], _Part(True)
            for copy in reversed(further):
                whole = self.joined(iter((copy, tail)))
                tail = _Part(True, whole.first, whole.last)
            copies.append(tail)
        return self.joined(iter(copies))

    def apart(self, positions: AbstractSet[int]) -> bool:
        seen = 0
        for position in positions:
            if seen & self.starts[position]:
                return False
            seen |= self.starts[position]
        return True


def _first_bytes(forms: _Written) -> int:
    found = 1 << 0x5C if forms.short or forms.numbered else 0
    for ranges in forms.raw:
        for low, high in ranges:
            for byte in range(chr(low).encode()[0], chr(high).encode()[0] + 1):
                found |= 1 << byte
    return found
