"""Walks a text through a matcher and tells at which positions the special tokens are
wrong.

Stop tokens must be allowed exactly where the output is complete, all other special
tokens only where the grammar names them, and ids behind the vocabulary never.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from vocabularies import MULTI_BYTE_TOKENS

from benchmarks.samples import TextTokens
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

__all__ = ["AWKWARD_SPECIALS", "Walk", "Walker", "is_json", "special_vocabulary"]

AWKWARD_SPECIALS = (
    *(
        b"</s>",
        b"<|im_end|>",
        b"<s>",
        b"[INST]",
        b"[/INST]",
        b"[1",
        b"[",
        b"<|im",
        b'"',
        b"{}",
        b"1",
        b"",
    ),
    *(b"<tool_call>", b"</tool_call>"),
)
"""Names that begin like JSON, like another's name, like an id in brackets, or are
missing."""

Whole = Callable[[bytes], bool]

_STOPS = (b"</s>", b"<|im_end|>")


def special_vocabulary(
    *, padded: bool, specials_first: bool = False, more: Iterable[bytes] = ()
) -> Vocabulary:
    """Bytes, a few tokens of several bytes, and special tokens of awkward names; two of
    them stop.

    `padded`: the size is no multiple of 32, so that the last word of a mask has bits
    that no token owns. `more`: further texts.
    """
    texts = [
        *(bytes([byte]) for byte in range(256)),
        *MULTI_BYTE_TOKENS,
        b'":"',
        b'","',
        b"]}",
        b"123",
    ]
    texts += [text for text in more if text not in texts]
    parts = (
        [list(AWKWARD_SPECIALS), texts]
        if specials_first
        else [texts, list(AWKWARD_SPECIALS)]
    )
    tokens = parts[0] + parts[1]
    start = 0 if specials_first else len(texts)
    # Words without a meaning fill it up: they are text that no test needs.
    wanted = 5 if padded else 0
    tokens += [b"~filler%d" % i for i in range((wanted - len(tokens)) % 32)]
    specials = range(start, start + len(AWKWARD_SPECIALS))
    return Vocabulary.from_tokens(
        tokens, [tokens.index(name, start) for name in _STOPS], specials
    )


def is_json(text: bytes) -> bool:
    """Whether a text is a whole JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass
class Walk:
    """What happened to one text."""

    accepted: bool
    """Whether every token was allowed and the output may stop after the last one."""
    early: list[str] = field(default_factory=list)
    """Positions where stop tokens and completeness disagree."""
    leaks: list[str] = field(default_factory=list)
    """Positions where other special tokens, or ids that no token owns, are allowed."""
    text: bytes = b""
    """What was accepted."""
    stuck: bool = False
    """Whether it ended where no token is allowed."""
    faults: list[str] = field(default_factory=list)
    """Tokens that a mask allowed and the matcher refused."""
    limited: bool = False
    """Whether it ended at a limit of the backend, which its error says."""


class Walker:
    """Walks texts through grammars of one compiler."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        vocabulary = compiler.vocabulary
        self._stops = vocabulary.stop_token_ids
        self._tokens = TextTokens(vocabulary)
        self._names = vocabulary.tokens
        self._row = np.zeros((1, vocabulary.words), np.int32)
        self._specials = set(vocabulary.special_ids)
        padding = range(vocabulary.size, 32 * vocabulary.words)
        self._unnamed = {*self._specials, *padding} - set(self._stops)

    def walk(
        self,
        grammar: Grammar,
        text: str | list[int],
        whole: Whole = is_json,
        named: Collection[int] = (),
    ) -> Walk:
        """One text, or its tokens, checked before each token and after the last.

        `whole`: whether a text may be a whole output. `named`: special tokens that the
        grammar names.
        """
        tokens = self._tokens(text) if isinstance(text, str) else text
        return self.walk_all(grammar, [tokens], whole, named)[0]

    def walk_all(
        self,
        grammar: Grammar,
        ways: Sequence[list[int]],
        whole: Whole = is_json,
        named: Collection[int] = (),
    ) -> list[Walk]:
        """Several rows of tokens next to each other, each checked as `walk` checks
        one."""
        table = GrammarTable(self._compiler.vocabulary)
        backend = self._compiler.backend(grammar.backend)
        for slot in range(len(ways)):
            table.add(slot, f"walk {slot}", grammar.spec, grammar, backend)
        found = [Walk(False) for _ in ways]
        bits = np.zeros(32 * self._compiler.vocabulary.words, np.uint8)
        bits[list(self._unnamed - set(named))] = 1
        unnamed = np.packbits(bits, bitorder="little").view(np.int32)
        masks = np.zeros((len(ways), self._compiler.vocabulary.words), np.int32)
        going = list(range(len(ways)))
        step = 0
        while going:
            masks[:] = 0
            table.fill(tuple(going), masks)
            stuck = dict(table.failures)
            table.failures.clear()
            leaks = (masks[: len(going)] & unnamed).any(axis=1)
            tokens = {}
            for row, slot in enumerate(going):
                walk = found[slot]
                mask = masks[row]
                if slot in stuck:
                    self._failed(walk, str(stuck[slot]), "allows no token")
                    continue
                stops = [token for token in self._stops if _allows(mask, token)]
                complete = table.requests[slot].matcher.complete
                where = f"after {walk.text!r}"
                if bool(stops) != complete or len(stops) not in (0, len(self._stops)):
                    walk.early.append(f"{where}: stops {stops}, complete {complete}")
                elif stops and not whole(walk.text):
                    walk.early.append(f"{where}: complete, and no whole output")
                if leaks[row]:
                    walk.leaks.append(where)
                if step == len(ways[slot]):
                    walk.accepted = bool(stops)
                elif _allows(mask, ways[slot][step]):
                    tokens[slot] = ways[slot][step]
            table.accept(tuple(tokens), list(tokens.values()))
            for slot, error in table.failures:
                found[slot].faults.append(
                    f"after {found[slot].text!r} allowed {tokens.pop(slot)}: {error}"
                )
            table.failures.clear()
            for slot, token in tokens.items():
                found[slot].text += self._names[token]
            going = list(tokens)
            step += 1
        return found

    def wander(
        self,
        grammar: Grammar,
        chance: Random,
        steps: int,
        whole: Whole = is_json,
        named: Collection[int] = (),
        *,
        begin: str = "",
        finish: int = 0,
        likely: bytes = b"",
        merged: float = 0,
    ) -> Walk:
        """Tokens at random, of those that the masks allow; those that may end something
        come more often.

        `begin`: a text to start with. `finish`: so many steps more to end the output,
        if it may end. `likely`: tokens of these bytes alone come before others.
        `merged`: how often several bytes do.
        """
        left = iter(range(steps))
        more = iter(range(finish))
        first = iter(self._tokens(begin))
        ending, plain = (
            {i for i, name in enumerate(self._names) if name and set(name) <= set(some)}
            for some in (b'"]}', likely)
        )
        long = {
            i
            for i, name in enumerate(self._names)
            if len(name) > 1 and i not in self._specials
        }

        def choose(allowed: set[int]) -> int | None:
            token = next(first, None)
            candidates = sorted(allowed - self._specials)
            if token is not None or not candidates:
                return token
            late = next(left, None) is None
            if late and (
                not allowed.isdisjoint(self._stops) or next(more, None) is None
            ):
                return None
            for some, share in (
                (long, merged),
                (ending, 0.9 if late else 0.4),
                (plain, 0.95),
            ):
                if chance.random() < share and (found := sorted(allowed & some)):
                    return chance.choice(found)
            return chance.choice(candidates)

        return self._walk(grammar, choose, whole, named)

    def output(self, spec: OutputSpec, chance: Random) -> str:
        """A random output of a spec that comes to its end."""
        walk = self.wander(self._compiler.compile(spec), chance, 25, finish=4_000)
        assert walk.accepted, walk
        return walk.text.decode()

    def _walk(
        self,
        grammar: Grammar,
        choose: Callable[[set[int]], int | None],
        whole: Whole,
        named: Collection[int],
    ) -> Walk:
        table = GrammarTable(self._compiler.vocabulary)
        table.add(
            0, "walk", grammar.spec, grammar, self._compiler.backend(grammar.backend)
        )
        found = Walk(False)
        unnamed = self._unnamed - set(named)
        while True:
            table.fill((0,), self._row)
            if table.failures:
                return self._failed(found, str(table.failures[0][1]), "allows no token")
            allowed = self._allowed()
            before = found.text
            stops = allowed & set(self._stops)
            others = allowed & unnamed
            where = f"after {before!r}"
            matcher = table.requests[0].matcher
            if bool(stops) != matcher.complete or (stops and stops != set(self._stops)):
                found.early.append(
                    f"{where}: stops {self._shown(stops)}, complete {matcher.complete}"
                )
            elif stops and not whole(before):
                found.early.append(f"{where}: complete, and no whole output")
            if others:
                found.leaks.append(f"{where}: {self._shown(others)}")
            token = choose(allowed)
            if token is None:
                found.accepted = bool(stops)
                return found
            table.accept((0,), [token])
            if token not in allowed:
                return found
            if table.failures:
                return self._failed(
                    found, str(table.failures[0][1]), "breaks the grammar"
                )
            found.text += self._names[token]

    def _failed(self, found: Walk, error: str, stuck: str) -> Walk:
        found.stuck = stuck in error
        # time, on a busy machine
        found.limited = "exceeded a limit" in error or "row_ms" in error
        return found

    def _allowed(self) -> set[int]:
        return set(
            np.flatnonzero(
                np.unpackbits(self._row.view(np.uint8), bitorder="little")
            ).tolist()
        )

    def _shown(self, ids: set[int]) -> list[str]:
        return [
            f"{i} {self._names[i]!r}" if i < len(self._names) else f"{i} (padding)"
            for i in sorted(ids)
        ]


def _allows(mask: np.ndarray, token: int) -> bool:
    return bool(mask[token >> 5] >> (token & 31) & 1)
