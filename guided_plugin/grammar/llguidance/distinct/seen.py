"""The values that one array has so far, and which tokens would lead to one of them again.

A text is *dead* when all that can become of it are values that are there already: the whole text of such a
value, and every beginning of it from which nothing else can come. Depends on spellings and values.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from guided_plugin.grammar.llguidance.distinct.spellings import ESCAPE, SCALAR, Ids, Spellings
from guided_plugin.grammar.llguidance.distinct.values import plain_text, value_key

_AFTER_SCALAR = (b",", b"]", b"}", b" ")
"""What ends a number."""

_BRACKETS = [bytes(each) for length in range(4) for each in itertools.product(b"[{", repeat=length)]
_OPENINGS = frozenset(each + end for each in _BRACKETS for end in (b"", b'"', b"-")) - {b""}
"""What values begin with, before anything else is said of them."""


@dataclass(slots=True)
class _Entry:
    """What one value added, to take it back."""

    text: bytes
    key: Hashable
    prefixes: list[bytes] = field(default_factory=list)
    dead: list[bytes] = field(default_factory=list)


class Seen:
    """The values of one array, or the names of one object, in their order."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        self._entries: list[_Entry] = []
        self._keys: set[Hashable] = set()
        self.banned: dict[bytes, list[Ids]] = {}
        """Tokens that lead to a dead text, by the text before them."""
        self.dead: set[bytes] = set()
        self._prints: dict[tuple[int, int], int] = {}
        """How many compound values have this length and this sum of bytes: the same in every order."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        """Whether no other value is left."""
        return b"" in self.dead

    @property
    def narrow(self) -> bool:
        """Whether no value is left that begins in some way, as all strings do."""
        return not _OPENINGS.isdisjoint(self.dead)

    @property
    def compound(self) -> bool:
        """Whether there are objects or arrays among the values."""
        return bool(self._prints)

    def texts(self) -> list[bytes]:
        """The values, as written."""
        return [entry.text for entry in self._entries]

    def has(self, text: bytes) -> bool:
        """Whether a value is there."""
        return value_key(text) in self._keys

    def has_compound(self, length: int, total: int, text: bytes, end: bytes) -> bool:
        """Whether an array or object is there; `length` and `total` of its bytes are known."""
        return (length, total) in self._prints and self.has(text + end)

    def add(self, count: int, text: bytes) -> bool:
        """Add a value behind the first `count`; False if it is among those."""
        self.cut(count)
        text = plain_text(text)
        key = value_key(text)
        if key in self._keys:
            return False
        self._keys.add(key)
        self._entries.append(_Entry(text, key))
        if is_scalar(text):
            for end in _AFTER_SCALAR:
                self.kill(text + end)
        else:
            self.kill(text)
            if text[:1] != b'"':
                mark = len(text), sum(text)
                self._prints[mark] = self._prints.get(mark, 0) + 1
        return True

    def cut(self, count: int) -> None:
        """Keep the first values only."""
        while len(self._entries) > count:
            entry = self._entries.pop()
            self._keys.discard(entry.key)
            self.dead.difference_update(entry.dead)
            for prefix in entry.prefixes:
                self.banned[prefix].pop()
                if not self.banned[prefix]:
                    del self.banned[prefix]
            if not is_scalar(entry.text) and entry.text[:1] != b'"':
                self._prints[len(entry.text), sum(entry.text)] -= 1
                if not self._prints[len(entry.text), sum(entry.text)]:
                    del self._prints[len(entry.text), sum(entry.text)]

    def kill(self, text: bytes) -> None:
        """A text is dead; the last value made it so."""
        entry = self._entries[-1]
        self.dead.add(text)
        entry.dead.append(text)
        inside, ends = insides(text)
        spelled = self._spellings.outside, self._spellings.inside
        longest = max(each.longest(ends) for each in spelled)
        for at in range(len(text) - 1, max(-1, len(text) - 1 - longest), -1):
            found = spelled[inside[at]].beginning(text[at:], ends)
            if len(found):
                prefix = text[:at]
                self.banned.setdefault(prefix, []).append(found)
                entry.prefixes.append(prefix)

    def copy(self, count: int | None = None, *, afresh: bool = False) -> Seen:
        """An independent one. `afresh`: knowing only that whole values are dead."""
        other = Seen(self._spellings)
        for entry in self._entries[:count]:
            other.add(len(other), entry.text)
            for text in [] if afresh else entry.dead:
                if text not in other.dead:
                    other.kill(text)
        return other


def is_scalar(text: bytes) -> bool:
    """Whether a value is a number or a literal, which end where something else begins."""
    return text[:1] not in (b'"', b"[", b"{")


def insides(text: bytes) -> tuple[list[bool], bool]:
    """For each byte whether it stands in a string, its opening quote excluded; whether the end is outside."""
    found: list[bool] = []
    inside = False
    at = 0
    while at < len(text):
        piece = ESCAPE.match(text, at) if inside else None
        size = len(piece[0]) if piece else 1
        found += [inside] * size
        if not piece and text[at] == 34:
            inside = not inside
        at += size
    return found, not inside


def continues_scalar(text: bytes) -> bool:
    """Whether a text outside strings ends within a number or literal."""
    return bool(text) and text[-1] in SCALAR


def living(seen: Seen, text: bytes, inside: bool, allowed: Iterable[int]) -> bool:
    """Whether one of the bytes that are allowed after a text leads to no dead one."""
    number = not inside and text[:1] in b"-0123456789" and text != b""
    ended = number and seen.has(text)
    for byte in allowed:
        if ended and (byte in b",]} \t\n\r" or (byte == 48 and b"." in text)):
            # It would end here, or be the same number with one more zero.
            continue
        if not inside and byte in b" \t\n\r" and not continues_scalar(text):
            continue
        way = b" " if not inside and byte in b"\t\n\r" else bytes([byte])
        if text + way not in seen.dead:
            return True
    return False
