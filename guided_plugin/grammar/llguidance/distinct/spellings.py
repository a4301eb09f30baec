"""The tokens of a vocabulary by what they spell in a JSON text: inside a string, or outside.

Texts are compared in one spelling: outside strings without white space, in strings with the shortest escape.
A space stays where it may end a number. Depends on the vocabulary.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.vocabulary import Vocabulary

Ids = NDArray[np.int64]

BYTES = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])
"""Token i is byte i."""

SPACES = b" \t\n\r"
SCALAR = frozenset(b"0123456789+-.eEtrufalsn")
PLAIN = re.compile(rb'[^"\\]+')
ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|[^u])")

_NUMBER_END = re.compile(rb"[-+.0-9eE]+[,\]} ]")
_WHOLE = re.compile(rb"[\[{,]*[^\[{,\]}].*,|[,\[{]*[\[{][\]}]+,")
_OPENING = re.compile(rb'[\[{]*["-]?')

_SHORT = {8: b"b", 9: b"t", 10: b"n", 12: b"f", 13: b"r", 34: b'"', 92: b"\\"}

# Pieces that a token may begin, end or consist of outside a string.
_ENDS = rb"(?:rue|ue|alse|lse|se|ull|ll|l|e)?"
_MIDDLE = rb"(?:[\s\[\]{},:+.0-9-]|true|false|null|[eE](?=[-+0-9]))*"
_BEGINS = rb'(?:".*|t|tr|tru|f|fa|fal|fals|n|nu|nul|[eE])?'
# JSON may end inside of a token, and another text follow.
_AFTER = rb"(?:" + _ENDS + _MIDDLE + rb"[\]}].*)"
_PIECES = rb"(?:" + _AFTER + rb"|" + _ENDS + _MIDDLE + _BEGINS + rb"|r|ru|u|a|al|als|ls|s|ul)"
_OUTSIDE = re.compile(_PIECES, re.DOTALL)
_OPENED = re.compile(rb"[\[{].*?,(.*)", re.DOTALL)


def escape(text: bytes) -> bytes:
    """The spelling in which an escaped character is compared."""
    if text[1:2] != b"u":
        return b"/" if text == b"\\/" else text
    code = int(text[2:], 16)
    if code in _SHORT:
        return b"\\" + _SHORT[code]
    if code < 32 or 0xD800 <= code < 0xE000:
        return text.lower()
    return chr(code).encode()


@dataclass(slots=True)
class Spelling:
    """A token's text, and what happens in it."""

    text: bytes = b""
    quote: bool = False
    """A string ends in it;"""
    comma: bool = False
    """it has a comma between values;"""
    crossing: bool = False
    """after such a comma it begins a value, with more than brackets and quotes."""
    parts: tuple[bytes, ...] = ()
    """What stands between commas, if it crosses one and opens and closes no container."""
    closes: list[int] = field(default_factory=list)
    """Where in the text the first, second, ... container ends that was open before."""


def spelling(token: bytes, inside: bool) -> Spelling:
    """How a token reads inside a string, or outside."""
    found, out = Spelling(), bytearray()
    at, depth, space, tail = 0, 0, False, -1
    commas, flat = [-1], True
    while at < len(token):
        if inside:
            plain = PLAIN.match(token, at) or ESCAPE.match(token, at)
            if plain is None and token[at] != 34:
                out += token[at:].lower()
                break
            piece = plain[0] if plain else b'"'
            out += escape(piece) if piece[:1] == b"\\" else piece
            at += len(piece)
            if plain is None:
                inside, found.quote = False, True
            continue
        byte = token[at]
        at += 1
        if byte in SPACES:
            space = space or not out or out[-1] in SCALAR
            continue
        if space and out and byte not in b",:]}":
            out.append(32)
        space = False
        out.append(byte)
        if byte == 34:
            inside = True
        elif byte == 44:
            found.comma = True
            commas.append(len(out) - 1)
            tail = len(out) if tail < 0 else tail
        elif byte in b"[{":
            depth, flat = depth + 1, False
        elif byte in b"]}":
            depth, flat = depth - 1, False
            if -depth > len(found.closes):
                found.closes.append(len(out))
    if space:
        out.append(32)
    found.text = bytes(out)
    found.crossing = tail >= 0 and not only_opens(found.text[tail:])
    if found.crossing and flat and not space and b":" not in found.text:
        ends = [*commas[1:], len(out)]
        found.parts = tuple(found.text[low + 1 : high] for low, high in zip(commas, ends, strict=True))
    return found


class _Sorted:
    """Tokens in the order of their texts."""

    def __init__(self, pairs: Iterable[tuple[bytes, int]]) -> None:
        # By first bytes: one call for all would stop the other threads of the process for too long.
        by_first: dict[bytes, list[tuple[bytes, int]]] = {}
        for pair in pairs:
            by_first.setdefault(pair[0][:2], []).append(pair)
        by_first.pop(b"", None)
        ordered = [pair for first in sorted(by_first) for pair in sorted(by_first[first])]
        self._texts = [text for text, _ in ordered]
        self._ids = np.array([token for _, token in ordered], np.int64)
        self.longest = max(map(len, self._texts), default=0)

    def beginning(self, text: bytes) -> Ids:
        """The tokens that begin with a text."""
        low = bisect_left(self._texts, text)
        if low == len(self._texts) or not self._texts[low].startswith(text):
            return self._ids[:0]
        # No text has bytes above these: they are not UTF-8.
        return self._ids[low : bisect_left(self._texts, text + b"\xff" * 8, low)]


@dataclass(frozen=True, slots=True)
class Closers:
    """Tokens that end so many containers, by their text up to there."""

    ids: Ids
    group: NDArray[np.int64]
    """Of each token: which of the heads is its own."""
    heads: tuple[bytes, ...]


class Spelled:
    """The tokens of a vocabulary as they read inside a string, or outside."""

    def __init__(self, tokens: tuple[bytes, ...], inside: bool) -> None:
        self._words = (len(tokens) + 31) // 32
        found, plain = [], []
        for number, token in enumerate(tokens):
            if inside and b'"' not in token and b"\\" not in token:
                plain.append((token, number))
            elif token and (inside or _OUTSIDE.fullmatch(token)):
                found.append((number, spelling(token, inside)))
        self._all = _Sorted([*plain, *((each.text, number) for number, each in found)])
        self._ending = _Sorted([(each.text, number) for number, each in found if each.quote or not inside])
        self.crossing = self._bits(number for number, each in found if each.crossing)
        self.parts = {number: each.parts for number, each in found if each.parts}
        """What stands between the commas of tokens with nothing but scalars."""
        self.commas = self._bits(number for number, each in found if each.comma)
        self.wholes = self._bits(number for number, each in found if each.comma and _WHOLE.match(each.text))
        """Tokens with a comma behind a whole value."""
        self.number_ends = self._bits(number for number, each in found if _NUMBER_END.match(each.text))
        """Tokens that continue a number and end it."""
        self._closing = [(number, each) for number, each in found if each.closes]
        self._closers: dict[int, Closers] = {}

    def _bits(self, tokens: Iterable[int]) -> MaskArray:
        bits = np.zeros(32 * self._words, np.uint8)
        bits[list(tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def beginning(self, text: bytes, ends: bool) -> Ids:
        """The tokens that begin with a text. `ends`: the text ends a value, or stands outside a string."""
        return (self._ending if ends else self._all).beginning(text)

    def longest(self, ends: bool) -> int:
        """The length of the longest such text."""
        return (self._ending if ends else self._all).longest

    def closers(self, count: int) -> Closers:
        """The tokens that end at least so many containers."""
        found = self._closers.get(count)
        if found is None:
            heads: dict[bytes, int] = {}
            ids, group = [], []
            for number, each in self._closing:
                if len(each.closes) >= count:
                    head = each.text[: each.closes[count - 1]]
                    ids.append(number)
                    group.append(heads.setdefault(head, len(heads)))
            found = Closers(np.array(ids, np.int64), np.array(group, np.int64), tuple(heads))
            self._closers[count] = found
        return found


class Spellings:
    """The tokens of one vocabulary. Made once, when a first grammar needs it: that takes a second."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.text_tokens

    def prepare(self) -> None:
        """Make what the first check would wait for."""
        _ = self.inside, self.outside, self.quotes, self.opening

    @cached_property
    def inside(self) -> Spelled:
        """As they read inside a string."""
        return Spelled(self.tokens, True)

    @cached_property
    def outside(self) -> Spelled:
        """As they read outside."""
        return Spelled(self.tokens, False)

    @cached_property
    def quotes(self) -> MaskArray:
        """The tokens that have a quote."""
        return self._bits(lambda token: b'"' in token)

    @cached_property
    def opening(self) -> MaskArray:
        """The tokens that may open a container and begin a second value in it."""
        return self._bits(_opens_and_crosses)

    def _bits(self, having: Callable[[bytes], bool]) -> MaskArray:
        bits = np.zeros(32 * ((len(self.tokens) + 31) // 32), np.uint8)
        bits[[number for number, token in enumerate(self.tokens) if having(token)]] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)


def _opens_and_crosses(token: bytes) -> bool:
    found = _OPENED.search(token)
    return found is not None and not only_opens(found[1].translate(None, SPACES))


def only_opens(text: bytes) -> bool:
    """Whether a value has only just begun, so that nearly all may come of it."""
    return _OPENING.fullmatch(text) is not None


def both(mask: MaskArray, bits: MaskArray) -> list[int]:
    """The tokens that a mask allows and that have a bit."""
    return bits_of(mask[: len(bits)] & bits)


def bits_of(met: MaskArray) -> list[int]:
    """The tokens of a mask."""
    words = np.flatnonzero(met)
    if not len(words):
        return []
    spread = np.unpackbits(met[words].view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    rows, places = np.nonzero(spread)
    return (32 * words[rows] + places).tolist()  # type: ignore[no-any-return]


def forbid(mask: MaskArray, ids: Ids) -> None:
    """Take tokens out of a mask."""
    np.bitwise_and.at(mask, ids >> 5, ~np.left_shift(1, ids & 31).astype(np.uint32).view(np.int32))
