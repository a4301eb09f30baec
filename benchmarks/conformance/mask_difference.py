"""Where the masks of this package's two backends differ at the same position, and which of them is right.

A token that one mask allows and the other doesn't is tried: the backend that allows it writes an output to
its end, and the oracle judges it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from engines import Engine, refusal
from oracle import OracleError, oracle, read_exactly

from benchmarks.samples import TextTokens
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.vocabulary import Vocabulary

__all__ = ["differences"]

_INSTANCES, _POSITIONS, _TOKENS, _STEPS, _TRIES = 2, 8, 3, 150, 2
_SLOW_BYTES = 4_000
"""Longer schemas are left out: xgrammar would take too long to compile them."""


def differences(files: list[Path], vocabulary: Vocabulary) -> dict[str, Any]:
    """Counts of positions and tokens; of the tokens, who is right, by cause."""
    engines = [Engine(name, vocabulary) for name in ("llguidance", "xgrammar")]
    look = _Look(engines, vocabulary)
    for path in files:
        document = json.loads(path.read_bytes())
        if len(json.dumps(document["schema"])) <= _SLOW_BYTES:
            look.at(path.name, document)
    causes = [
        {"only": only, "cause": cause, "verdict": verdict, "tokens": count}
        for (only, cause, verdict), count in sorted(look.verdicts.items())
    ]
    return {**look.counts, "causes": causes, "examples": look.examples[:40]}


class _Look:
    """Compares masks along instances."""

    def __init__(self, engines: list[Engine], vocabulary: Vocabulary) -> None:
        self._engines = engines
        self._names = vocabulary.tokens
        self._stops = vocabulary.stop_token_ids
        self._tokens = TextTokens(vocabulary)
        self._mask = np.zeros((1, vocabulary.words), np.int32)
        bits = np.zeros(32 * vocabulary.words, np.uint8)
        bits[[i for i, name in enumerate(self._names) if name and set(name) <= set(b'"]}0')]] = 1
        self._closing = np.packbits(bits, bitorder="little").view(np.int32)
        self._chance = Random(0)
        names = ("schemas", "schemas of both", "positions", "equal positions", "tokens tried")
        self.counts: dict[str, int] = dict.fromkeys(names, 0)
        self.verdicts: Counter[tuple[str, str, str]] = Counter()
        self.examples: list[list[str]] = []

    def at(self, name: str, document: Any) -> None:
        """One file."""
        self.counts["schemas"] += 1
        made = [refusal(engine, document["schema"], tag=False, flexible=True)[0] for engine in self._engines]
        grammars = [grammar for grammar in made if grammar is not None]
        try:
            valid = oracle(document["schema"])
        except OracleError:
            return
        if len(grammars) < 2:
            return
        self.counts["schemas of both"] += 1
        texts = [json.dumps(test["data"], ensure_ascii=False) for test in document["tests"] if test["valid"]]
        for text in texts[:_INSTANCES]:
            self._along(name, grammars, valid, self._tokens(text))

    def _along(self, name: str, grammars: list[Grammar], valid: Any, tokens: list[int]) -> None:
        chosen = set(self._chance.sample(range(len(tokens) + 1), min(_POSITIONS, len(tokens) + 1)))
        states = [self._start(side, grammar) for side, grammar in enumerate(grammars)]
        for position in range(len(tokens) + 1):
            if position in chosen:
                masks = [self._filled(batch) for _, batch in states]
                self.counts["positions"] += 1
                self.counts["equal positions"] += bool((masks[0] == masks[1]).all())
                for side in (0, 1):
                    self._try_some(name, grammars, valid, tokens[:position], side, masks)
            following = tokens[position : position + 1]
            if not following or not all(batch.accept(following)[0] for _, batch in states):
                return

    def _start(self, side: int, grammar: Grammar) -> tuple[Any, Any]:
        backend = self._engines[side].backend(grammar.backend)
        matcher = backend.start(grammar, self._stops)
        return matcher, backend.batch([matcher])

    def _filled(self, batch: Any) -> Any:
        batch.fill(self._mask, [0])
        return self._mask[0].copy()

    def _try_some(
        self, name: str, grammars: list[Grammar], valid: Any, before: list[int], side: int, masks: list[Any]
    ) -> None:
        """Judge some of the tokens that one side alone allows."""
        alone = np.flatnonzero(
            np.unpackbits((masks[side] & ~masks[1 - side]).view(np.uint8), bitorder="little")
        )
        only = ("llguidance", "xgrammar")[side]
        for token in self._chance.sample(alone.tolist(), min(_TOKENS, len(alone))):
            outputs = [self._completed(side, grammars[side], [*before, token]) for _ in range(_TRIES)]
            verdict = _verdict(valid, [text for text in outputs if text is not None])
            cause = self._cause(before, token)
            self.counts["tokens tried"] += 1
            self.verdicts[only, cause, verdict] += 1
            if verdict == "the other is right" or (verdict == "undecided" and not before):
                shown = next((text for text in outputs if text), "")
                self.examples.append([name, only, cause, verdict, shown[-200:]])

    def _completed(self, side: int, grammar: Grammar, tokens: list[int]) -> str | None:
        """An output that begins with these tokens."""
        matcher, batch = self._start(side, grammar)
        written = []
        for token in tokens:
            if not batch.accept([token])[0]:
                return None
            written.append(token)
        while not matcher.complete and len(written) < len(tokens) + _STEPS:
            token = self._next(self._filled(batch))
            if token is None or not batch.accept([token])[0]:
                return None
            written.append(token)
        stop = [token for token in written if token in self._stops]
        text = b"".join(self._names[token] for token in written if token not in stop)
        return text.decode(errors="replace") if matcher.complete or stop else None

    def _next(self, bits: Any) -> int | None:
        closing = bits & self._closing
        bits = closing if closing.any() and self._chance.random() < 0.97 else bits
        words = np.flatnonzero(bits)
        if not len(words):
            return None
        word = int(words[self._chance.randrange(len(words))])
        value = int(bits[word]) & 0xFFFFFFFF
        return 32 * word + self._chance.choice([bit for bit in range(32) if value >> bit & 1])

    def _cause(self, before: list[int], token: int) -> str:
        """What kind of token it is."""
        if token in self._stops:
            return "end of the output"
        name = self._names[token]
        text = b"".join(self._names[i] for i in before)
        inside = len(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')) % 2 == 0
        try:
            name.decode()
        except UnicodeDecodeError:
            return "part of a character"
        if b"\\" in name:
            return "escapes"
        if inside:
            return "in a string"
        if not name.strip() or name != name.strip() or any(space in name for space in (b" ", b"\n", b"\t")):
            return "whitespace"
        if set(name) <= set(b"0123456789+-.eE"):
            return "numbers"
        return "a value, a name or punctuation"


def _verdict(valid: Any, outputs: list[str]) -> str:
    """Whether outputs with the token are valid; then who allows it is right."""
    verdicts = set(_judged(valid, outputs))
    if len(verdicts) != 1:
        return "right, and wrong in other outputs" if verdicts else "undecided"
    return "right" if verdicts.pop() else "the other is right"


def _judged(valid: Any, outputs: list[str]) -> Iterator[bool]:
    for text in outputs:
        try:
            yield bool(valid(read_exactly(text)))
        except ValueError:
            yield False
        except OracleError:
            continue
