"""The tokens of a vocabulary by what they spell in a JSON text: inside a string, or
outside.

Outside strings texts are compared without whitespace; a space stays at the end of a
token that may have ended a number. Depends on the vocabulary.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.vocabulary import Vocabulary

Ids = NDArray[np.int64]

SCALAR = frozenset(b"0123456789+-.eEtrufalsn")

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_SPACES = re.compile(_STRING.pattern + rb"|[ \t\n\r]+", re.DOTALL)
_FLAT = re.compile(rb'[ \t\n\r]*([^"\\,:\[\]{} \t\n\r]+)')
_FLAT_PAIR = re.compile(rb"[^\[\]{}:,]*,[^\[\]{}:,]*")
_OPENED = re.compile(rb'\[[ \t\n\r]*["0-9tfn-][^,]*,')


class Mode(IntEnum):
    """The kind of text that the next byte continues."""

    BETWEEN = 0
    SCALAR = 1
    """A number or a literal."""
    STRING = 2
    ESCAPED = 3
    """A backslash in a string."""


def spelling(token: bytes, mode: Mode) -> tuple[bytes, bytes]:
    """Return a token as it reads, and with letters in place of what strings contain."""
    inside = 1 if token and mode is Mode.ESCAPED else 0
    if mode >= Mode.STRING:
        found = _REST_OF_STRING.match(token, inside)
        if found is not None:
            inside = found.end()
    outside = _SPACES.sub(_without_spaces, token[inside:])
    bare = _STRING.sub(_without_letters, outside)
    text = token[:inside] + outside
    return text, b"x" * inside + bare


def _without_letters(found: re.Match[bytes]) -> bytes:
    """A string, or the beginning of one, with a letter for each byte behind its
    quote."""
    rest = len(found[0]) - 1
    return b'"' + b"x" * rest


def _without_spaces(found: re.Match[bytes]) -> bytes:
    """A string as it is; of whitespace, nothing but the space that may end a number at
    the end of a token."""
    if found[0][:1] == b'"':
        return found[0]
    token = found.string
    start, end = found.span()
    if end < len(token):
        return b""
    ends_number = start == 0 or token[start - 1] in SCALAR
    return b" " if ends_number else b""


class Spelled:
    """The tokens of a vocabulary as they read in one mode."""

    def __init__(self, tokens: tuple[bytes, ...], mode: Mode) -> None:
        self.texts: dict[int, bytes] = {}
        """Tokens with a comma between values, as they read."""
        self.halves: dict[int, tuple[bytes, bytes]] = {}
        """The bytes before it and after it, where it is the only mark between
        values."""
        pairs: list[tuple[bytes, int]] = []
        for number, token in enumerate(tokens):
            if mode >= Mode.STRING and b'"' not in token and b"\\" not in token:
                pairs.append((token, number))
                continue
            flat = _FLAT.fullmatch(token) if mode is Mode.BETWEEN else None
            if flat is not None:
                pairs.append((flat[1], number))
                continue
            text, bare = spelling(token, mode)
            pairs.append((text, number))
            comma = bare.find(b",")
            if comma < 0:
                continue
            self.texts[number] = text
            if _FLAT_PAIR.fullmatch(bare):
                self.halves[number] = (text[:comma], text[comma + 1 :])
        self.between = _ids(self.texts)
        """Tokens with a comma between values."""
        self._texts: list[bytes] = []
        """The texts of all tokens, sorted; `_ids` are their tokens."""
        self._ids = _ids(self._sorted(pairs))

    def _sorted(self, pairs: Iterable[tuple[bytes, int]]) -> Iterator[int]:
        """Sort the texts; their tokens in the same order.

        By first bytes: one call for all would stop the other threads of the process for
        too long.
        """
        by_first: dict[bytes, list[tuple[bytes, int]]] = {}
        for text, number in pairs:
            first = text[:2]
            by_first.setdefault(first, []).append((text, number))
        by_first.pop(b"", None)
        for first in sorted(by_first):
            same = sorted(by_first[first])
            for text, number in same:
                self._texts.append(text)
                yield number

    def beginning(self, text: bytes) -> Ids:
        """The tokens that begin with a text."""
        low = bisect_left(self._texts, text)
        if low == len(self._texts) or not self._texts[low].startswith(text):
            return self._ids[:0]
        # No text has bytes above these: they are not UTF-8.
        high = bisect_left(self._texts, text + b"\xff" * 8, low)
        return self._ids[low:high]


class Spellings:
    """The tokens of one vocabulary. Made once, when a first grammar needs it: that
    takes a second."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.text_tokens

    @cached_property
    def opening(self) -> Ids:
        """The tokens that may open an array and have a comma in it."""
        texts = enumerate(self.tokens)
        return _ids(number for number, text in texts if _OPENED.search(text))

    @cached_property
    def _tables(self) -> list[Spelled]:
        modes = (Mode.BETWEEN, Mode.STRING, Mode.ESCAPED)
        return [Spelled(self.tokens, mode) for mode in modes]

    def table(self, mode: Mode) -> Spelled:
        """The tokens as they read in a mode."""
        # Scalars read as what is between values does.
        index = max(0, mode - 1)
        return self._tables[index]


def _ids(numbers: Iterable[int]) -> Ids:
    return np.fromiter(numbers, np.int64)


def forbid(mask: MaskArray, *several: Ids) -> None:
    """Take tokens out of a mask."""
    for ids in several:
        bits = np.left_shift(1, ids & 31).astype(np.uint32)
        kept = ~bits
        np.bitwise_and.at(mask, ids >> 5, kept.view(np.int32))
