"""MaskBench files with one engine: right answers, dead ends, and times, in a process that may hang or crash.

A file that takes too long, or ends the process, counts as died; a new process goes on with the next file.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from engines import BEGIN, Engine, refusal
from stopping import is_json
from subjects import is_whole

from benchmarks.samples import TextTokens
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.vocabulary import Vocabulary

__all__ = ["Settings", "measured", "summary"]

_START_SECONDS = 300.0
_STEPS, _FINISH = 30, 70


class Settings(NamedTuple):
    """What one run measures."""

    vocabulary: Vocabulary
    engine: str
    tag: bool
    walks: int
    """Outputs at random, for each schema."""
    limit: float
    """Seconds that one file may take."""


def measured(files: list[Path], settings: Settings) -> Iterator[dict[str, Any]]:
    """One row a file, in their order."""
    context = multiprocessing.get_context("fork")
    process: Any = None
    try:
        for path in files:
            if process is None:
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, settings), daemon=True)
                process.start()
                theirs.close()
                _received(ours, _START_SECONDS)
            ours.send(path)
            row = _received(ours, settings.limit)
            if row is None:
                process.kill()
                process.join()
                code = process.exitcode
                ended = "killed: it took too long" if code == -signal.SIGKILL else f"ended with {code}"
                row, process = {"name": path.name, "status": "died", "reason": ended, "times": []}, None
            yield row
    finally:
        if process is not None:
            process.kill()
            process.join()


def _received(connection: Connection, seconds: float) -> Any:
    try:
        return connection.recv() if connection.poll(seconds) else None
    except EOFError:
        return None


def _serve(connection: Connection, settings: Settings) -> None:
    bench = _Bench(settings)
    bench.warm_up()
    # Collections would fall into some masks and not into others: they happen between files.
    gc.disable()
    gc.freeze()
    connection.send("ready")
    while True:
        row = bench.row(connection.recv())
        gc.collect()
        connection.send(row)


class _Bench:
    """Measures files."""

    def __init__(self, settings: Settings) -> None:
        vocabulary = settings.vocabulary
        self._settings = settings
        self._engine = Engine(settings.engine, vocabulary)
        self._tokens = TextTokens(vocabulary)
        self._names = vocabulary.tokens
        self._stops = vocabulary.stop_token_ids
        self._mask = np.zeros((1, vocabulary.words), np.int32)
        specials = set(vocabulary.special_ids) | set(range(vocabulary.size, 32 * vocabulary.words))
        self._stop_bits = self._bits(self._stops)
        self._never_bits = self._bits(sorted(specials - set(self._stops)))
        closing = [i for i, name in enumerate(self._names) if name and set(name) <= set(b'"]}')]
        self._closing_bits = self._bits(closing)

    def _bits(self, tokens: Any) -> Any:
        bits = np.zeros(self._mask.shape[1] * 32, np.uint8)
        bits[list(tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def warm_up(self) -> None:
        """Have the libraries build what they keep for a vocabulary."""
        for schema in ({"type": "boolean"}, {"type": "string", "maxLength": 3}):
            grammar, _ = refusal(self._engine, schema, tag=self._settings.tag, flexible=True)
            if grammar is not None:
                self._start(grammar)[1].fill(self._mask, [0])

    def row(self, path: Path) -> dict[str, Any]:
        """Everything about one file."""
        document = json.loads(path.read_bytes())
        row: dict[str, Any] = {"name": path.name, "status": "passing", "reason": "", "times": []}
        row |= {"wrong_accepts": [], "wrong_refusals": [], "early_stops": [], "dead_ends": [], "tests": 0}
        start = time.perf_counter()
        grammar, reason = refusal(self._engine, document["schema"], tag=self._settings.tag, flexible=True)
        if grammar is None:
            return row | {"status": "refused", "reason": reason}
        self._start(grammar)[1].fill(self._mask, [0])
        row["first_ms"] = (time.perf_counter() - start) * 1e3
        for index, test in enumerate(document["tests"]):
            text = json.dumps(test["data"], ensure_ascii=False)
            text = text.encode(errors="backslashreplace").decode()
            tokens = self._tokens(self._engine.text(text, tag=self._settings.tag))
            accepted = self._walk(grammar, iter(tokens), row, timed=True)
            row["tests"] += 1
            if accepted != test["valid"]:
                row["wrong_accepts" if accepted else "wrong_refusals"].append(index)
        chance = Random(path.name)
        for _ in range(self._settings.walks):
            self._wander(grammar, chance, row)
        kinds = {"wrong_accepts": "wrong accept", "dead_ends": "dead end", "early_stops": "early stop"}
        kinds["wrong_refusals"] = "wrong refusal"
        row["status"] = next((status for kind, status in kinds.items() if row[kind]), "passing")
        return row

    def _start(self, grammar: Grammar) -> tuple[Any, Any]:
        backend = self._engine.backend(grammar.backend)
        matcher = backend.start(grammar, self._stops)
        return matcher, backend.batch([matcher])

    def _walk(self, grammar: Grammar, tokens: Iterator[int], row: dict[str, Any], *, timed: bool) -> bool:
        matcher, batch = self._start(grammar)
        mask, clock, times = self._mask, time.perf_counter_ns, []
        before, accepted = b"", False
        while True:
            start = clock()
            batch.fill(mask, [0])
            times.append(clock() - start)
            self._check(matcher, before, row)
            token = next(tokens, None)
            if token is None:
                accepted = bool((mask[0] & self._stop_bits).any())
                break
            allowed = int(mask[0, token >> 5]) >> (token & 31) & 1
            if not allowed or not batch.accept([token])[0]:
                break
            before += self._names[token]
        if timed:
            row["times"] += times
        return accepted

    def _check(self, matcher: Any, before: bytes, row: dict[str, Any]) -> None:
        """What may be wrong with a mask by itself."""
        bits = self._mask[0]
        stops = bits & self._stop_bits
        if not bits.any():
            row["dead_ends"].append(before[-200:].decode(errors="replace"))
        if stops.any() and not matcher.complete:
            row["early_stops"].append(f"after {before[-200:]!r}")
        elif matcher.complete and (stops != self._stop_bits).any():
            row["early_stops"].append(f"no stop token after {before[-200:]!r}")
        elif stops.any() and not (is_whole if self._settings.tag else is_json)(before):
            row["early_stops"].append(f"no whole output: {before[-200:]!r}")
        if (bits & self._never_bits).any():
            row["early_stops"].append(f"a special token after {before[-200:]!r}")

    def _wander(self, grammar: Grammar, chance: Random, row: dict[str, Any]) -> None:
        self._walk(grammar, self._random_tokens(chance), row, timed=False)

    def _random_tokens(self, chance: Random) -> Iterator[int]:
        """Tokens that the mask allows now: first any, later those that close something."""
        yield from self._tokens(BEGIN) if self._settings.tag else ()
        for step in range(_STEPS + _FINISH):
            bits = self._mask[0]
            late = step >= _STEPS
            if late and (bits & self._stop_bits).any():
                return
            closing = bits & self._closing_bits
            if closing.any() and chance.random() < (0.9 if late else 0.3):
                bits = closing
            # A word of the mask, and one of its tokens: to look at all of them takes longer than the mask.
            words = np.flatnonzero(bits & ~self._stop_bits)
            if not len(words):
                return
            word = int(words[chance.randrange(len(words))])
            value = int(bits[word] & ~self._stop_bits[word]) & 0xFFFFFFFF
            yield 32 * word + chance.choice([bit for bit in range(32) if value >> bit & 1])


def summary(rows: list[dict[str, Any]], settings: Settings) -> dict[str, Any]:
    """The sums of one run."""
    times = np.array([time for row in rows for time in row["times"]], np.int64)
    firsts = np.array([row["first_ms"] for row in rows if "first_ms" in row])
    counted = [row["status"] for row in rows]
    named = {
        kind: [[row["name"], *map(str, row[kind])][:4] for row in rows if row.get(kind)]
        for kind in ("wrong_accepts", "wrong_refusals", "early_stops", "dead_ends")
    }
    named["refused"] = [[row["name"], row["reason"]] for row in rows if row["status"] == "refused"]
    named["died"] = [[row["name"], row["reason"]] for row in rows if row["status"] == "died"]
    return {
        "engine": settings.engine,
        "tag": settings.tag,
        "files": len(rows),
        "tests": sum(row.get("tests", 0) for row in rows),
        "passing": counted.count("passing"),
        **{kind: len(found) for kind, found in named.items()},
        "masks": _statistics(times / 1e3, (0.5, 0.99, 0.999), "us"),
        "first_mask": _statistics(firsts, (0.5, 0.99), "ms"),
        "named": named,
    }


def _statistics(values: Any, shares: tuple[float, ...], unit: str) -> dict[str, float]:
    if not len(values):
        return {"count": 0}
    quantiles = {
        f"p{share * 100:g}_{unit}": round(float(np.quantile(values, share)), 4 if unit == "ms" else 2)
        for share in shares
    }
    return {"count": len(values), f"avg_{unit}": round(float(values.mean()), 3), **quantiles}
