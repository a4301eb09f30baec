"""A vocabulary as llguidance takes it. Depends on the vocabulary and llguidance."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.forced import ids_of
from guided_plugin.grammar.llguidance.lark.ends import control_text
from guided_plugin.grammar.llguidance.lark.strings import PROBES
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec.memo import remembered

_STRING = r'[^"\\\x00-\x1F\x7F\x{2028}\x{2029}]'
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    *(rf"{_STRING}{{1,{most}}}" for most in (1, 2, 3, 5, 7, 10, 14, 30, 128)),
    rf"{_STRING}+",
]
"""Tokens whose masks are precomputed: a state that allows all of a slice adds it as one
piece. With llguidance's own two of bounded strings, masks of these take a third longer
at the 99th percentile, and 256 rows an eighth of a step."""

_MARKER = b"\xff"
"""llguidance writes this in front of the name of a control token. No text contains
it."""

_NAME = re.compile(rb"<[^\s<>\xff]+>")
"""A control token's name that a Lark grammar can write. Names with a space are those
made here."""

_LONGEST = 24
"""Bytes of the longest token that a text is spelled with."""
_BEGIN = 4
"""Bytes by which the longest token that begins with them is looked up: an ending of 50
bytes is spelled in 20 us, with two bytes in 40, with none in 134."""
NEVER = 1 << 30
"""Tokens of what the vocabulary can't spell."""
_PLACE_BYTES = 80
"""Memory that a byte of a spelled text takes: itself and two numbers."""
SIZES = (128, 16, 4, 1, 0)
"""Characters of tokens of plain text, at most. Chosen, not measured."""


class Tokenizers:
    """The parts of one vocabulary that llguidance and the search for endings read. Each
    part is made when it is first needed: the tokenizer takes a second."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        stops = frozenset(vocabulary.stop_token_ids)
        self._vocabulary = vocabulary
        self.stops = stops
        """The tokens that end an output."""
        self.controls = {
            token: vocabulary.tokens[token].decode(errors="replace")
            for token in sorted(vocabulary.special_ids - stops)
        }
        """The control tokens that a structural tag may name, with their names; none
        ends an output."""

    @cached_property
    def plain(self) -> Any:
        """The tokenizer of llguidance."""
        import llguidance

        wrapper = llguidance.TokenizerWrapper(_Tokens(self._vocabulary))
        stops = list(self._vocabulary.stop_token_ids)
        return llguidance.LLTokenizer(wrapper, eos_token=stops, slices=_SLICES)

    @cached_property
    def spelling(self) -> Spelling:
        """The spelling of texts."""
        return Spelling(self._vocabulary)

    def ids(self, token: str) -> frozenset[int]:
        """Return the ids that llguidance takes for a token as a grammar writes it; none
        where there is no such token."""
        import llguidance

        grammar = f"start: {token}"
        matcher = llguidance.LLMatcher(self.plain, grammar, log_level=0)
        if matcher.is_error():
            return frozenset()
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        shown = np.unpackbits(mask, bitorder="little")
        return frozenset(np.flatnonzero(shown).tolist())


@dataclass(frozen=True)
class Spelled:
    """A text in as few tokens as possible, from a place in it on."""

    ids: Mapping[bytes, int]
    """The token of each text."""
    text: bytes
    counts: list[int]
    """The number of tokens of its end, from each place on."""
    sizes: list[int]
    """Bytes of the first of these."""
    start: int = 0

    def __len__(self) -> int:
        return self.counts[self.start]

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """All of them."""
        found = []
        start = self.start
        while start < len(self.text):
            end = start + self.sizes[start]
            found.append(self.ids[self.text[start:end]])
            start = end
        return tuple(found)

    @cached_property
    def begins(self) -> dict[int, int]:
        """The tokens that may come first, with how many the rest takes."""
        found = {}
        longest = min(len(self.text), self.start + _LONGEST)
        for end in range(self.start + 1, longest + 1):
            token = self.ids.get(self.text[self.start : end])
            if token is not None:
                found[token] = self.counts[end]
        return found

    def behind(self, text: bytes) -> Spelled | None:
        """Return the part behind a text, if that comes first."""
        if not self.text.startswith(text, self.start):
            return None
        return self.at(self.start + len(text)) if text else self

    @cached_property
    def behind_first(self) -> Spelled:
        """Return the part behind the first token, if there is one."""
        size = self.sizes[self.start] if self.start < len(self.text) else 0
        return self.at(self.start + size)

    def at(self, start: int) -> Spelled:
        """Return the same text from another place in it on."""
        return Spelled(
            self.ids,
            self.text,
            self.counts,
            self.sizes,
            start,
        )


class Spelling:
    """The tokens of one vocabulary: which spell a text, and which a mask allows."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.text_tokens
        self.ids = ids_of(vocabulary)
        every_byte = {byte: self.ids.get(bytes([byte])) for byte in range(256)}
        self.single = {
            byte: token for byte, token in every_byte.items() if token is not None
        }
        self.probes = [self.single[byte] for byte in PROBES if byte in self.single]
        controls = vocabulary.special_ids.difference(vocabulary.stop_token_ids)
        self.ids |= {control_text(token): token for token in controls}
        self._single = _ids(self.single.values())
        self._controls = _ids(sorted(controls))
        ascii_ones = (one for byte, one in self.single.items() if byte < 128)
        self._short = _ids((*sorted(controls), *ascii_ones))
        self.remembered = remembered(_spelled_bytes)(self.spelled)
        """`spelled`, remembered: many outputs end with one text, each from another place
        in it on."""
        self._plain = self._plain_masks(b"")

    @cached_property
    def brackets(self) -> int:
        """The most arrays that one token may open inside of each other."""
        runs = re.findall(rb"\[+", b" ".join(self.ids))
        return max(map(len, runs), default=1)

    @cached_property
    def _longest(self) -> dict[bytes, int]:
        """Bytes of the longest token, by its first ones."""
        longest: dict[bytes, int] = {}
        for text in self.ids:
            if _BEGIN <= len(text) <= _LONGEST:
                begin = text[:_BEGIN]
                longest[begin] = max(longest.get(begin, 0), len(text))
        return longest

    def text(self, *tokens: int) -> bytes:
        """The text of tokens, as `spelled` reads it."""
        known = self.tokens
        return b"".join([known[one] or control_text(one) for one in tokens])

    def spelled(self, text: bytes, behind: Spelled | None = None) -> Spelled:
        """A text and what comes behind it in as few tokens as possible, and each end of
        it; `NEVER` where the vocabulary can't spell it."""
        ids, longest = self.ids, self._longest
        begun = len(text)
        counts = [0] * (begun + 1)
        sizes = [0] * begun
        if behind is not None:
            text += behind.text
            counts[begun:] = behind.counts
            sizes += behind.sizes
        size = len(text)
        for start in reversed(range(begun)):
            fewest = NEVER
            most = longest.get(text[start : start + _BEGIN], _BEGIN - 1)
            for end in range(start + 1, min(size, start + most) + 1):
                if counts[end] < fewest and text[start:end] in ids:
                    fewest = counts[end]
                    sizes[start] = end - start
            counts[start] = 1 + fewest
        return Spelled(ids, text, counts, sizes)

    def most_tokens(self, text: bytes) -> int:
        """The fewest tokens of a text, or of that one of its ends that needs the
        most."""
        return min(max(self.spelled(text).counts), len(text))

    def controls_in(self, row: MaskArray) -> list[int]:
        """The control tokens that a mask allows."""
        return _allowed(row, self._controls)

    def bytes_in(self, row: MaskArray) -> list[int]:
        """The tokens of single bytes that a mask allows."""
        return _allowed(row, self._single)

    def short_in(self, row: MaskArray) -> list[int]:
        """The control tokens and those of ASCII characters."""
        return _allowed(row, self._short)

    def is_free(self, row: MaskArray) -> bool:
        """True if a mask is that of a free text."""
        return all(row[token >> 5] >> (token & 31) & 1 for token in self.probes)

    def plain(self, marks: str) -> dict[int, MaskArray]:
        """Tokens of so many whole characters at most that end no text, as `marks` do,
        and begin no escape."""
        if not marks:
            return self._plain
        escaped = [
            re.escape(one.encode()) if one.isascii() else rb"\x80-\xff" for one in marks
        ]
        return self._plain_masks(b"".join(escaped))

    def _plain_masks(self, marks: bytes) -> dict[int, MaskArray]:
        ends = re.compile(rb'["\\<\x00-\x1f%s]' % marks)
        sizes = np.zeros(-len(self.tokens) // 32 * -32, np.int32)
        for token, text in enumerate(self.tokens):
            if not ends.search(text):
                sizes[token] = _characters(text)
        masks = {}
        for most in SIZES:
            shown = sizes * (sizes <= most)
            masks[int(shown.max())] = _mask(shown > 0)
        return masks


def _spelled_bytes(text: bytes, _: Spelled) -> int:
    return _PLACE_BYTES * len(text)


def _characters(text: bytes) -> int:
    """Return the number of characters of a text; 0 where it has a part of one."""
    try:
        return len(text.decode())
    except UnicodeDecodeError:
        return 0


def _ids(tokens: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(tokens, np.int64)


def _mask(shown: NDArray[np.bool_]) -> MaskArray:
    return np.packbits(shown, bitorder="little").view(np.int32)


def _allowed(row: MaskArray, tokens: NDArray[np.int64]) -> list[int]:
    """Return the tokens that a mask allows, from a few."""
    shown = row[tokens >> 5] >> (tokens & 31) & 1
    found: list[int] = tokens[shown.astype(np.bool_)].tolist()
    return found


class _Tokens:
    """A vocabulary as llguidance's TokenizerWrapper reads it: padded to whole mask
    words."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = [b"" if _MARKER in text else text for text in vocabulary.text_tokens]
        self._single = {
            text[0]: token for token, text in enumerate(tokens) if len(text) == 1
        }
        tokens += [b""] * (32 * vocabulary.words - vocabulary.size)
        for token, name in _control_names(vocabulary).items():
            tokens[token] = name
        self.tokens = tokens
        self.eos_token_id = vocabulary.stop_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(vocabulary.special_ids)

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [self._single[byte] for byte in data if byte in self._single]


def _control_names(vocabulary: Vocabulary) -> dict[int, bytes]:
    """A name for each control token: its own where a grammar can write it, `<...>`,
    else one made of its id.

    llguidance matches names by their bytes and allows each token whose bytes begin the
    expected name. An empty name begins all others, and `[1` begins the spelling of a
    token by its id.
    """
    names = {token: vocabulary.tokens[token] for token in vocabulary.special_ids}
    times = Counter(names.values())
    for token, name in names.items():
        if not _NAME.fullmatch(name) or times[name] > 1:
            names[token] = b"<|control %d|>" % token
    return names
