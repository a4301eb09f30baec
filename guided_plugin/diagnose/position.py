"""A place in an output: a matcher, what it allows next, and why a text does not fit."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import BOUNDS
from guided_plugin.errors import shown
from guided_plugin.grammar.base import Backend, Grammar, MaskArray, Matcher
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec


@dataclass(frozen=True, slots=True)
class Refusal:
    """A text that does not fit."""

    position: int
    """The first character of it that does not; its length where only the end is
    missing."""
    before: str
    """The end of what stands before it."""
    found: str
    """The text that stands there."""
    expected: str
    """The characters that may stand there."""
    may_stop: bool
    """True if the output may end there."""

    @property
    def reason(self) -> str:
        """One line for people."""
        expected = f"expected: {self.expected}" + " or the end" * self.may_stop
        if not self.found:
            return f"refused at the end (character {self.position}): more is needed; {expected}"
        if self.expected == "none":
            expected = "only the end may follow"
        what = f"{self.before!r} can't be followed by {self.found!r}"
        return f"refused at character {self.position}: {what}; {expected}"


class Names:
    """The texts of a vocabulary's tokens. Made once for many places."""

    def __init__(self, vocabulary: Vocabulary, stop_token_ids: tuple[int, ...]) -> None:
        self.tokens = vocabulary.tokens
        self.stops = stop_token_ids
        named = {
            self.tokens[i].decode(errors="replace"): i
            for i in vocabulary.special_ids.difference(stop_token_ids)
            if self.tokens[i]
        }
        self.by_name = named
        longest = sorted(map(re.escape, named), key=len, reverse=True)
        self._controls = re.compile(f"({'|'.join(longest) or '(?!)'})")
        special = vocabulary.special_ids
        heads = (
            256 if i in special or not token else token[0]
            for i, token in enumerate(self.tokens)
        )
        self.heads = np.fromiter(heads, np.int16, len(self.tokens))
        """The first byte of each token of text; 256 for others."""

    def pieces(self, text: str) -> list[str]:
        """A text, cut at what may be the names of control tokens."""
        return [piece for piece in self._controls.split(text) if piece]


def bounds_of(grammar: Grammar | None) -> dict[str, int]:
    """The options that bound JSON of a grammar where its schemas do not, as far as its
    backend holds them."""
    if not grammar or not (
        grammar.spec.is_json or grammar.spec.kind == "structural_tag"
    ):
        return {}
    held = BOUNDS if grammar.backend == "llguidance" else BOUNDS[:1]
    held = held if grammar.spec.whitespace == "flexible" else held[1:]
    return {name: most for name in held if (most := getattr(grammar.spec, name))}


@dataclass
class Position:
    """A matcher somewhere in an output."""

    matcher: Matcher
    backend: Backend
    names: Names

    @classmethod
    def start(cls, compiler: GrammarCompiler, spec: OutputSpec) -> Position:
        """At the beginning of a spec."""
        grammar = compiler.compile(spec)
        backend = compiler.backend(grammar.backend)
        stops = compiler.vocabulary.usable_stops(spec.stop_token_ids)
        return cls(
            backend.start(grammar, stops), backend, Names(compiler.vocabulary, stops)
        )

    def fork(self) -> Position:
        """The same place again, to go on from by itself."""
        return Position(self.matcher.fork(), self.backend, self.names)

    def move(self, text: str) -> int:
        """Go on as far as a text fits; how many of its characters do. The name of a
        control token stands for the token where the grammar allows that here."""
        count = 0
        for piece in self.names.pieces(text):
            token = self.names.by_name.get(piece)
            if (
                token is not None
                and self.allowed()[token]
                and self.matcher.accept(token)
            ):
                count += len(piece)
                continue
            taken = self._take(piece)
            count += taken
            if taken < len(piece):
                break
        return count

    def _take(self, text: str) -> int:
        """Return how many characters of a text the matcher accepts; it ends up after
        the last of them."""
        for taken, character in enumerate(text):
            if not self.matcher.accept_text(character.encode(errors="surrogatepass")):
                return taken
        return len(text)

    def refusal(self, text: str, count: int) -> Refusal:
        """Why a text, of which so many characters fit, goes no further here."""
        before = text[:count][-30:]
        found = text[count : count + 10]
        return Refusal(count, before, found, ranges(self.characters()), self.may_stop)

    def allowed(self) -> NDArray[np.bool_]:
        """Return the tokens that may come next."""
        count = len(self.names.tokens)
        mask: MaskArray = np.zeros((1, (count + 31) // 32), np.int32)
        self.backend.batch([self.matcher]).fill(mask, [0])
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=count)
        return bits.view(np.bool_)

    @property
    def may_stop(self) -> bool:
        """True if the output may end here."""
        return bool(self.allowed()[list(self.names.stops)].any())

    def characters(self) -> list[str]:
        """The characters that text may go on with, in order. Bytes that begin or
        continue characters beyond ASCII stand for these, as `\\xc3`."""
        first = np.unique(self.names.heads[self.allowed()]).tolist()
        return [
            chr(byte) if byte < 128 else f"\\x{byte:02x}"
            for byte in first
            if byte < 256
        ]


def ranges(characters: list[str]) -> str:
    """Characters as people read them: runs of letters and digits as `a-z`, bytes beyond
    ASCII as one word."""
    runs: list[str] = []
    for each in filter(lambda each: len(each) == 1, characters):
        last = runs[-1][-1] if runs else ""
        if last and each.isalnum() and last.isalnum() and ord(each) == ord(last) + 1:
            runs[-1] += each
        else:
            runs.append(each)
    found = [
        f"{run[0]}-{run[-1]}" if len(run) > 2 else " ".join(map(_readable, run))
        for run in runs
    ]
    if len("".join(runs)) < len(characters):
        found.append("beyond ASCII")
    return " ".join(found) or "none"


def _readable(character: str) -> str:
    return (
        character if character.isprintable() and character != " " else shown(character)
    )
