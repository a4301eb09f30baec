"""A vocabulary as llguidance takes it. Depends on the vocabulary and llguidance."""

from __future__ import annotations

import re
import threading
from collections import Counter
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.forced import ids_of
from guided_plugin.grammar.llguidance.lark.reach import PROBES
from guided_plugin.grammar.vocabulary import Vocabulary

# Tokens whose masks are precomputed: a state that allows all of a slice adds it as one
# piece. These are llguidance's but for dots and ends. Fine ones save a third of a
# bounded string's mask; new states cost more.
_BLANKS = r"[\x20\x0A\x0D\x09]+"
_STRING = r'[^"\\\x00-\x1F\x7F\x{2028}\x{2029}]'
_PLAIN_SLICES, _FINE_SLICES = (
    [_BLANKS, *(rf"{_STRING}{{1,{most}}}" for most in ends), f"{_STRING}+"]
    for ends in ((10, 30), (1, 2, 3, 5, 7, 10, 14, 30, 128))
)

# llguidance writes this in front of the name of a control token. No text contains it.
_MARKER = b"\xff"

# A control token's name that a Lark grammar can write. Names with a space are those
# made here.
_NAME = re.compile(rb"<[^\s<>\xff]+>")

# Most masks show one of the tokens in these words.
_HEAD_WORDS = 64

_LONGEST = 24
"""Bytes of the longest token that a text is spelled with."""
_NEVER = 1 << 30
SIZES = (128, 16, 4, 1, 0)
"""Characters of tokens of plain text, at most. Chosen, not measured."""


class Tokenizers:
    """The tokenizers of one vocabulary, each built once: that takes long, and stops all
    other threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        # Reentrant: the fine one is made from the plain one.
        self._lock = threading.RLock()
        self._plain: Any = None
        self._fine: Any = None

    @property
    def plain(self) -> Any:
        """With few slices."""
        import llguidance

        with self._lock:
            if self._plain is None:
                wrapper = llguidance.TokenizerWrapper(_Tokens(self._vocabulary))
                stops = list(self._vocabulary.stop_token_ids)
                self._plain = llguidance.LLTokenizer(
                    wrapper, eos_token=stops, slices=_PLAIN_SLICES
                )
            return self._plain

    @property
    def fine(self) -> Any:
        """With finer slices."""
        with self._lock:
            if self._fine is None:
                self._fine = self.plain.with_slices(_FINE_SLICES)
            return self._fine

    @cached_property
    def spelling(self) -> Spelling:
        """How texts are spelled."""
        return Spelling(self._vocabulary)

    @cached_property
    def first_texts(self) -> MaskArray:
        """Bits of the first tokens, without those that end an output."""
        bits = np.ones(32 * min(_HEAD_WORDS, self._vocabulary.words), np.uint8)
        bits[[token for token in self._vocabulary.special_ids if token < len(bits)]] = 0
        return np.packbits(bits, bitorder="little").view(np.int32)

    @cached_property
    def controls(self) -> dict[int, str]:
        """The control tokens that a structural tag may name, with their names; none
        ends an output."""
        vocabulary = self._vocabulary
        ids = sorted(vocabulary.special_ids.difference(vocabulary.stop_token_ids))
        return {
            token: vocabulary.tokens[token].decode(errors="replace") for token in ids
        }

    @property
    def stops(self) -> frozenset[int]:
        """The tokens that end an output."""
        return frozenset(self._vocabulary.stop_token_ids)

    def ids(self, token: str) -> frozenset[int]:
        """What llguidance takes for a token as a grammar writes it; nothing where there
        is no such token."""
        import llguidance

        matcher = llguidance.LLMatcher(self.plain, f"start: {token}", log_level=0)
        if matcher.is_error():
            return frozenset()
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        return frozenset(
            np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        )

    @cached_property
    def impossible_token(self) -> int | None:
        """A token that no mask may show: padding, else a special token that doesn't
        stop."""
        if 32 * self._vocabulary.words > self._vocabulary.size:
            return self._vocabulary.size
        spare = self._vocabulary.special_ids - set(self._vocabulary.stop_token_ids)
        return max(spare, default=None)


class Spelling:
    """The tokens of one vocabulary: which spell a text, and which a mask allows."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.text_tokens
        self.stops = vocabulary.stop_token_ids
        self.ids = ids_of(vocabulary)
        # [256]: of the tokens that begin with a byte.
        self._longest = [0] * 256
        for text in self.ids:
            self._longest[text[0]] = min(
                max(self._longest[text[0]], len(text)), _LONGEST
            )
        self.single = {
            text[0]: token for text, token in self.ids.items() if len(text) == 1
        }
        self._bytes = np.array(sorted(self.single), np.int64)
        self._single = np.array(
            [self.single[byte] for byte in self._bytes.tolist()], np.int64
        )
        self._controls = np.array(
            sorted(vocabulary.special_ids.difference(self.stops)), np.int64
        )
        both = np.concatenate([self._single, self._controls])
        self._words, self._shifts = both >> 5, (both & 31).astype(np.int32)
        self._sizes = np.zeros(32 * vocabulary.words, np.int32)
        self._sizes[: len(self.tokens)] = [_plain_size(text) for text in self.tokens]
        self.probes = [self.single[byte] for byte in PROBES if byte in self.single]
        self._plain = _by_size(self._sizes)

    @cached_property
    def brackets(self) -> int:
        """How many arrays one token may open inside of each other."""
        runs = re.findall(rb"\[+", b" ".join(self.ids))
        return max(map(len, runs), default=1)

    def spelled(self, text: bytes) -> tuple[int, ...] | None:
        """A text in as few tokens as possible; None where the vocabulary can't spell
        it."""
        ids = self.ids
        size = len(text)
        fewest = [0] + [_NEVER] * size
        steps = [0] * size
        for start in range(size):
            after = fewest[start] + 1
            for end in range(
                start + 1, min(size, start + self._longest[text[start]]) + 1
            ):
                if after < fewest[end] and text[start:end] in ids:
                    fewest[end], steps[end - 1] = after, start
        if fewest[size] == _NEVER:
            return None
        tokens = []
        while size:
            tokens.append(ids[text[steps[size - 1] : size]])
            size = steps[size - 1]
        return tuple(reversed(tokens))

    def most_tokens(self, text: bytes) -> int:
        """The fewest tokens of a text, or of that one of its ends that needs the
        most."""
        size = len(text)
        fewest = [0] * (size + 1)
        for start in reversed(range(size)):
            longest = min(size, start + self._longest[text[start]])
            sizes = (
                fewest[end]
                for end in range(start + 1, longest + 1)
                if text[start:end] in self.ids
            )
            fewest[start] = 1 + min(sizes, default=_NEVER)
        return min(max(fewest), size)

    def bytes_in(self, row: MaskArray) -> list[int]:
        """The bytes that a mask allows next, of those that have a token of their
        own."""
        found: list[int] = self._bytes[bits(row, self._single)].tolist()
        return found

    def controls_in(self, row: MaskArray) -> list[int]:
        """The control tokens that a mask allows."""
        found: list[int] = self._controls[bits(row, self._controls)].tolist()
        return found

    def singles_in(self, row: MaskArray, plain: MaskArray) -> list[int]:
        """The same as tokens; in a free text without those that are plain."""
        found = [self.single[byte] for byte in self.bytes_in(row)]
        if self.is_free(row):
            return [
                token for token in found if not plain[token >> 5] >> (token & 31) & 1
            ]
        return found

    def plain(self, marks: str) -> dict[int, MaskArray]:
        """Tokens of so many whole characters at most that end no text, as `marks` do,
        and begin no escape."""
        if not marks:
            return self._plain
        classes = (
            re.escape(one.encode()) if one.isascii() else rb"\x80-\xff" for one in marks
        )
        ended = re.compile(rb"[%s]" % b"".join(classes))
        sizes = self._sizes.copy()
        sizes[[i for i, text in enumerate(self.tokens) if ended.search(text)]] = 0
        return _by_size(sizes)

    def signature(self, row: MaskArray) -> bytes:
        """Which bytes a mask allows next, and which control tokens."""
        return np.packbits(
            (row[self._words] >> self._shifts & 1).astype(np.uint8)
        ).tobytes()

    def is_free(self, row: MaskArray) -> bool:
        """Whether a mask is that of a free text."""
        return all(row[token >> 5] >> (token & 31) & 1 for token in self.probes)


_SPECIAL = re.compile(rb'["\\<\x00-\x1f]')


def _plain_size(text: bytes) -> int:
    try:
        return 0 if _SPECIAL.search(text) else len(text.decode())
    except UnicodeDecodeError:
        return 0


def _by_size(sizes: NDArray[np.int32]) -> dict[int, MaskArray]:
    kept = {most: (sizes > 0) & (sizes <= most) for most in SIZES}
    return {
        most: np.packbits(bits, bitorder="little").view(np.int32)
        for most, bits in kept.items()
    }


def bits(row: MaskArray, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.flatnonzero(row[tokens >> 5] >> (tokens & 31) & 1)


class _Tokens:
    """A vocabulary as llguidance's TokenizerWrapper reads it: padded to whole mask
    words."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        padding = [b""] * (32 * vocabulary.words - vocabulary.size)
        tokens = [
            b"" if _MARKER in token else token for token in vocabulary.text_tokens
        ] + padding
        for token, name in _control_names(vocabulary).items():
            tokens[token] = name
        self.tokens = tokens
        self.eos_token_id = vocabulary.stop_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._by_bytes = {
            token: i
            for i, token in enumerate(tokens)
            if token and i not in vocabulary.special_ids
        }

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [
            self._by_bytes[bytes([byte])]
            for byte in data
            if bytes([byte]) in self._by_bytes
        ]


def _control_names(vocabulary: Vocabulary) -> dict[int, bytes]:
    """A name for each control token: its own where a grammar can write it, `<...>`,
    else one made of its id.

    llguidance matches names by their bytes and allows each token whose bytes begin the
    expected name. An empty name begins all others, and `[1` begins the spelling of a
    token by its id.
    """
    own = {token: vocabulary.tokens[token] for token in vocabulary.special_ids}
    times = Counter(own.values())
    return {
        token: name
        if _NAME.fullmatch(name) and times[name] == 1
        else b"<|control %d|>" % token
        for token, name in own.items()
    }
