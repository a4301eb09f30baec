"""The process that measures MaskBench files, one at a time, and may hang or crash while
it does.

For each path it gets it sends a text at each stage, which tells the parent where it
died, and a `FileResult`. `Child` is the parent's side: it kills a process that takes
too long, and tells what became of one that crashed.
"""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.samples import TextTokens
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import UNBOUNDED, GuidedConfig
from guided_plugin.errors import GrammarError, GuidedError, SpecError
from guided_plugin.grammar.base import Grammar, Matcher, MatcherBatch
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.ipc.spawn import exit_reason
from guided_plugin.spec import OutputSpec

_ROW = [0]


@dataclass(slots=True)
class FileResult:
    """One file with one backend."""

    name: str
    status: str = "passing"
    """`passing`, `wrong` (it compiled, and an instance got the wrong answer), `early
    stop` (it has `early_stops`; this comes before `wrong`), `refused` or `died`."""
    error: str = ""
    """Why it was refused or died."""
    seconds: float = 0.0
    """Time of the whole file, with everything that isn't measured."""
    backend: str = ""
    """The backend that compiled the schema."""
    reason: str = ""
    """Why this backend, and how it takes the schema."""
    tests: int = 0
    wrong_accepts: list[int] = field(default_factory=list)
    """Invalid instances that were accepted, by their place in `tests`."""
    wrong_refusals: list[int] = field(default_factory=list)
    """Valid instances that were refused."""
    early_stops: list[str] = field(default_factory=list)
    """Instances where a stop token was allowed before the output was complete, or
    missing when it was, or another special token was allowed."""
    faults: list[str] = field(default_factory=list)
    """Where a matcher contradicted itself; `wrong_*` doesn't show these."""
    first_mask_ms: float | None = None
    mask_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Time of every mask of every instance, but for the first mask."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a child needs to know."""

    vocabulary: Vocabulary
    """Without an encoder: that one doesn't pickle."""
    encoder: Any
    """A `tokenizers.Tokenizer`, or None. Loading it again costs ten seconds a child,
    unpickling it one."""
    backend: str
    limit: float


class Child:
    """One process, for one file after the other until it dies."""

    def __init__(self, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        self._limit = settings.limit
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, settings), daemon=True
        )
        self._process.start()
        theirs.close()
        started = self._heard(None)
        if started is not None:
            self.stop()
            raise GuidedError(
                str(started),
                where=f"backend {settings.backend}",
                hint="nothing can be measured without such a process",
            )

    def measure(self, path: Path) -> FileResult:
        """Measure a file; one that kills the process has `died`."""
        stage = "reading"
        start = time.monotonic()
        self._pipe.send(path)
        while True:
            message = self._heard(start + self._limit)
            if isinstance(message, FileResult):
                return message
            if isinstance(message, EOFError):
                seconds = time.monotonic() - start
                error = f"{message}, {stage}"
                return FileResult(path.name, "died", error, seconds)
            stage = message

    def _heard(self, deadline: float | None) -> Any:
        """The next message; an EOFError that says how the process ended, if it did."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            if self._pipe.poll(left):
                return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return EOFError(exit_reason(self._process.exitcode or 0))
        self.stop()
        return EOFError(f"killed after {self._limit:.0f} s")

    def stop(self) -> None:
        """Kill it, whatever it does."""
        self._process.kill()
        self._process.join()


class FileBench:
    """Measures files with one backend and one vocabulary."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        backend: str,
        stage: Callable[[str], None] = lambda _: None,
    ) -> None:
        # Nothing stays in the cache: of two files with one schema both compile it.
        # Without bounds: instances are of the schema's own language.
        config = GuidedConfig(
            backend=backend, threads=1, cache_bytes=0, **vars(UNBOUNDED)
        )
        self._compiler = GrammarCompiler(vocabulary, config=config)
        self._stops = vocabulary.stop_token_ids
        padding = range(vocabulary.size, 32 * vocabulary.words)
        self._stop_bits = _bits(vocabulary, self._stops)
        self._never_bits = _bits(
            vocabulary, {*vocabulary.special_ids, *padding} - set(self._stops)
        )
        self._tokens = TextTokens(vocabulary)
        self._mask = np.zeros((1, vocabulary.words), np.int32)
        self._stage = stage
        self._warm_up(backend)

    def measure(self, path: Path) -> FileResult:
        """One file. Whatever a backend raises, other than a refusal, is raised."""
        start = time.perf_counter()
        self._stage("reading")
        document = json.loads(path.read_bytes())
        tokens = [
            (test["valid"], self._tokens(text_of(test["data"])))
            for test in document["tests"]
        ]
        result = FileResult(path.name, tests=len(tokens))
        self._measure(
            document["schema"],
            tokens,
            result,
        )
        result.seconds = time.perf_counter() - start
        return result

    def _measure(
        self, schema: Any, tests: list[tuple[bool, list[int]]], result: FileResult
    ) -> None:
        self._stage("before the first mask")
        try:
            spec = OutputSpec.json_schema(schema, strict=False, whitespace="flexible")
            start = time.perf_counter_ns()
            grammar = self._first_mask(spec)
            result.first_mask_ms = (time.perf_counter_ns() - start) / 1e6
        except (GrammarError, SpecError) as error:
            result.status, result.error = "refused", str(error)
            return
        result.backend = grammar.backend
        result.reason = grammar.reason
        times: list[int] = []
        for index, (valid, tokens) in enumerate(tests):
            self._stage(f"matching test {index}")
            accepted, fault = self._match(
                *self._start(grammar),
                tokens,
                times,
            )
            if fault:
                result.faults.append(f"test {index}: {fault}")
            if accepted and not valid:
                result.wrong_accepts.append(index)
            if valid and not accepted:
                result.wrong_refusals.append(index)
        result.mask_ns = np.array(times, np.int64)
        # With other matchers, after the last time was taken.
        for index, (_, tokens) in enumerate(tests):
            self._stage(f"checking the special tokens of test {index}")
            leak = self._leak(*self._start(grammar), tokens)
            if leak:
                result.early_stops.append(f"test {index}: {leak}")
        if result.early_stops:
            result.status = "early stop"
        elif result.wrong_accepts or result.wrong_refusals:
            result.status = "wrong"

    def _first_mask(self, spec: OutputSpec) -> Grammar:
        grammar = self._compiler.compile(spec)
        self._start(grammar)[1].fill(self._mask, _ROW)
        return grammar

    def _start(self, grammar: Grammar) -> tuple[Matcher, MatcherBatch]:
        backend = self._compiler.backend(grammar.backend)
        matcher = backend.start(grammar, self._stops)
        return matcher, backend.batch([matcher])

    def _timed_fill(self, batch: MatcherBatch) -> int:
        """Fill the mask; nanoseconds."""
        mask = self._mask
        clock = time.perf_counter_ns
        start = clock()
        batch.fill(mask, _ROW)
        return clock() - start

    def _match(
        self, matcher: Matcher, batch: MatcherBatch, tokens: list[int], times: list[int]
    ) -> tuple[bool, str]:
        """Whether the tokens are a whole output, and how the matcher contradicted
        itself."""
        row = self._mask[0]
        for position, token in enumerate(tokens):
            times.append(self._timed_fill(batch))
            if not _allows(row, token):
                return False, self._dead_end(matcher, position)
            if not batch.accept([token])[0]:
                return False, f"the mask allows token {position}, and it is refused"
        times.append(self._timed_fill(batch))
        accepted = bool((row & self._stop_bits).any())
        if accepted != matcher.complete:
            return (
                accepted,
                "at the end, mask and matcher disagree on whether it may stop",
            )
        return accepted, "" if accepted else self._dead_end(matcher, len(tokens))

    def _leak(self, matcher: Matcher, batch: MatcherBatch, tokens: list[int]) -> str:
        """The first position where a special token is allowed or missing against what
        the matcher says."""
        row = self._mask[0]
        for position in range(len(tokens) + 1):
            batch.fill(self._mask, _ROW)
            complete = matcher.complete
            stops = row & self._stop_bits
            if stops.any() and not complete:
                return f"a stop token is allowed at token {position}, and the output is not complete"
            if complete and (stops != self._stop_bits).any():
                return f"a stop token is missing at token {position}, and the output is complete"
            if (row & self._never_bits).any():
                return (
                    f"a special token that doesn't stop is allowed at token {position}"
                )
            following = tokens[position : position + 1]
            if (
                not following
                or not _allows(row, following[0])
                or not batch.accept(following)[0]
            ):
                break
        return ""

    def _dead_end(self, matcher: Matcher, position: int) -> str:
        """A fault if the mask allows no token, and the output isn't complete."""
        stuck = not matcher.complete and not (self._mask[0] & ~self._stop_bits).any()
        return f"no token is allowed at token {position}" if stuck else ""

    def _warm_up(self, backend: str) -> None:
        """Make backends build what they keep per vocabulary, as a server does at
        start."""
        names = [backend] if backend != "auto" else self._compiler.plugins.backends
        for name in names:
            # Not every backend takes every schema, and each may have a part of its own
            # for strings.
            for schema in ({"type": "boolean"}, {"type": "string", "maxLength": 3}):
                with contextlib.suppress(GrammarError):
                    self._first_mask(OutputSpec.json_schema(schema, backend=name))


def _bits(vocabulary: Vocabulary, tokens: Collection[int]) -> NDArray[np.int32]:
    """A mask row that allows these tokens."""
    bits = np.zeros(32 * vocabulary.words, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def _allows(row: NDArray[np.int32], token: int) -> bool:
    return bool(int(row[token >> 5]) >> (token & 31) & 1)


def text_of(data: Any) -> str:
    """An instance as JSON. A lone surrogate has no UTF-8; what Python writes for it is
    its escape."""
    return (
        json.dumps(data, ensure_ascii=False).encode(errors="backslashreplace").decode()
    )


def serve(pipe: Connection, settings: Settings) -> None:
    """Measure the files that the parent names, until it is gone."""
    vocabulary = settings.vocabulary
    encoder = settings.encoder
    if encoder is not None:
        vocabulary = replace(vocabulary, encode=lambda text: _encoded(encoder, text))
    try:
        bench = FileBench(vocabulary, settings.backend, pipe.send)
    except GuidedError as error:
        pipe.send(error)
        return
    # Collections would fall into some masks and not into others: they happen between
    # files.
    gc.disable()
    gc.collect()
    gc.freeze()
    pipe.send(None)
    with contextlib.suppress(EOFError):
        while True:
            path = pipe.recv()
            try:
                result = bench.measure(path)
            except Exception as error:  # a backend's own, which costs this file
                said = f"{type(error).__name__}: {error}"
                result = FileResult(path.name, "died", said)
            gc.collect()  # before the answer: what crashes here is this file's fault
            pipe.send(result)


def _encoded(encoder: Any, text: str) -> list[int]:
    return list(encoder.encode(text, add_special_tokens=False).ids)
