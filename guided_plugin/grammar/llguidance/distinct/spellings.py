"""The tokens of a vocabulary by what they spell in a JSON text: inside a string, or outside.

Outside strings texts are compared without whitespace; a space stays at the end of a token that may have ended
a number. Depends on the vocabulary.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.vocabulary import Vocabulary

Ids = NDArray[np.int64]

SPACES = b" \t\n\r"
SCALAR = frozenset(b"0123456789+-.eEtrufalsn")
ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)", re.DOTALL)

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_REST_OF_STRING = re.compile(rb'(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)
_SPACES = re.compile(_STRING.pattern + rb"|[ \t\n\r]+", re.DOTALL)
_FLAT = re.compile(rb'[ \t\n\r]*([^"\\,:\[\]{} \t\n\r]+)')
_ZERO = re.compile(rb"(?:^0|\.0)[,\]} ]")
_OPENING = re.compile(rb'[\[{]*["-]?')
_NESTED = re.compile(rb"[\[\]{}:]")
_OPENED = re.compile(rb'[\[{][ \t\n\r]*["\[{}\]0-9tfn-][^,]*,')


class Mode(IntEnum):
    """What the next byte continues."""

    BETWEEN = 0
    SCALAR = 1
    """A number or a literal."""
    STRING = 2
    ESCAPED = 3
    """A backslash in a string."""


def only_opens(text: bytes) -> bool:
    """Whether a value has only just begun, so that nearly all may come of it."""
    return _OPENING.fullmatch(text) is not None


def lowered(text: bytes) -> bytes:
    """A text with the hexadecimal digits of its escapes in one spelling."""
    return ESCAPE.sub(lambda found: found[0].lower() if found[0][1:2] == b"u" else found[0], text)


def other_cases(text: bytes, rest: bytes) -> Iterator[bytes]:
    """The rest of a text, also with capitals in an escape that stands across the place."""
    yield rest
    begun = len(text) - max(text.rfind(b"\\u"), len(text) - (rest[:1] == b"u") * text.endswith(b"\\"))
    if 0 < begun < 6 and text:
        escape = rest[: 6 - begun]
        yield escape[: begun < 2] + escape[begun < 2 :].upper() + rest[6 - begun :]


def spelling(token: bytes, mode: Mode) -> tuple[bytes, bytes]:
    """How a token reads, and the same with letters in place of what strings contain."""
    inside = len(token[: mode is Mode.ESCAPED])
    if mode >= Mode.STRING and (found := _REST_OF_STRING.match(token, inside)):
        inside = found.end()
    outside = _SPACES.sub(lambda found: _kept(found, token), token[inside:])
    bare = _STRING.sub(lambda found: b'"' + b"x" * (len(found[0]) - 1), outside)
    return lowered(token[:inside]) + outside, b"x" * inside + bare


def _kept(found: re.Match[bytes], token: bytes) -> bytes:
    if found[0][:1] == b'"':
        return lowered(found[0])
    start, end = found.span()
    before = found.string[start - 1 : start]
    ends_number = end == len(found.string) and (before == token[:0] or before[0] in SCALAR)
    return b" " if ends_number else b""


class Spelled:
    """The tokens of a vocabulary as they read in one mode."""

    def __init__(self, tokens: tuple[bytes, ...], mode: Mode) -> None:
        self._words = (len(tokens) + 31) // 32
        self.zeros: list[int] = []
        """Tokens in which a number may end as 1.0 does."""
        self.texts: dict[int, tuple[bytes, bytes]] = {}
        """Tokens with a comma between values, as they read; up to it, if only brackets and quotes follow."""
        self.crossing: set[int] = set()
        """Those that begin a value after it with more than brackets and quotes."""
        self.closes: dict[int, tuple[bytes, ...]] = {}
        """Of tokens that end containers opened before: their text up to the first end, the second, ..."""
        self.parts: dict[int, list[bytes]] = {}
        """What stands between the commas of tokens without brackets and colons."""
        pairs = []
        for number, token in enumerate(tokens):
            if mode >= Mode.STRING and b'"' not in token and b"\\" not in token:
                pairs.append((token, number))
                continue
            if mode is Mode.BETWEEN and (flat := _FLAT.fullmatch(token)):
                pairs.append((flat[1], number))
                continue
            text, bare = spelling(token, mode)
            pairs.append((text, number))
            if _ZERO.search(bare):
                self.zeros.append(number)
            comma = bare.find(b",")
            if comma >= 0:
                opens = only_opens(text[comma + 1 :])
                if not opens:
                    self.crossing.add(number)
                self.texts[number] = text, text[: comma + 1] if opens else b""
                if not _NESTED.search(bare) and not _ZERO.search(bare):
                    cuts = [-1, *(at for at, byte in enumerate(bare) if byte == 44), len(bare)]
                    self.parts[number] = [text[low + 1 : high] for low, high in pairwise(cuts)]
            if b"]" in bare or b"}" in bare:
                self.closes[number] = tuple(_closes(text, bare))
        self.between = self._bits([*self.texts, *self.closes])
        """Tokens with a comma between values, or the end of a container that was open before."""
        # By first bytes: one call for all would stop the other threads of the process for too long.
        by_first: dict[bytes, list[tuple[bytes, int]]] = {}
        for pair in pairs:
            by_first.setdefault(pair[0][:2], []).append(pair)
        by_first.pop(b"", None)
        ordered = [pair for first in sorted(by_first) for pair in sorted(by_first[first])]
        self._texts = [text for text, _ in ordered]
        self._ids = np.array([token for _, token in ordered], np.int64)

    def _bits(self, tokens: Iterable[int]) -> MaskArray:
        bits = np.zeros(32 * self._words, np.uint8)
        bits[list(tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def beginning(self, text: bytes) -> Ids:
        """The tokens that begin with a text."""
        low = bisect_left(self._texts, text)
        if low == len(self._texts) or not self._texts[low].startswith(text):
            return self._ids[:0]
        # No text has bytes above these: they are not UTF-8.
        return self._ids[low : bisect_left(self._texts, text + b"\xff" * 8, low)]


def _closes(text: bytes, bare: bytes) -> Iterable[bytes]:
    depth = least = 0
    for at, byte in enumerate(bare):
        depth += (byte in b"[{") - (byte in b"]}")
        if depth < least:
            least = depth
            yield text[: at + 1]


class Spellings:
    """The tokens of one vocabulary. Made once, when a first grammar needs it: that takes a second."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.text_tokens

    @cached_property
    def opening(self) -> list[int]:
        """The tokens that may open a container and have a comma in it."""
        return [number for number, token in enumerate(self.tokens) if _OPENED.search(token)]

    @cached_property
    def _tables(self) -> list[Spelled]:
        return [Spelled(self.tokens, mode) for mode in (Mode.BETWEEN, Mode.STRING, Mode.ESCAPED)]

    def table(self, mode: Mode) -> Spelled:
        """The tokens as they read in a mode."""
        return self._tables[max(0, mode - 1)]


def both(mask: MaskArray, bits: MaskArray) -> list[int]:
    """The tokens that a mask allows and that have a bit."""
    met = mask[: len(bits)] & bits
    words = np.flatnonzero(met)
    if not len(words):
        return []
    spread = np.unpackbits(met[words].view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    rows, places = np.nonzero(spread)
    return (32 * words[rows] + places).tolist()  # type: ignore[no-any-return]


def forbid(mask: MaskArray, ids: Ids) -> None:
    """Take tokens out of a mask."""
    np.bitwise_and.at(mask, ids >> 5, ~np.left_shift(1, ids & 31).astype(np.uint32).view(np.int32))
