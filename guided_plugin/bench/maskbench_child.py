"""The process that measures MaskBench files, one at a time, and may hang or crash at it.

Started by `maskbench.py` as `python -m guided_plugin.bench.maskbench_child FD`; speaks pickles over that
socket. First its settings come in and a `Ready` goes out, then for each path that comes in: a line of text
at each stage, so that the parent can say where it died, and a `FileResult`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from guided_plugin.bench.maskbench_result import FileResult
from guided_plugin.bench.text_tokens import TextTokens
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GrammarError, GuidedError, SpecError
from guided_plugin.grammar.base import Backend, Grammar, Matcher, MatcherBatch
from guided_plugin.grammar.compiler import GrammarCompiler
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

__all__ = ["FileBench", "Ready", "Settings", "main"]

_ROW = [0]
_EMPTY_CALLS = 10_001
# The parent kills a child that is over its time; this is for the child whose parent is gone.
_GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Settings:
    """What a child needs to know."""

    tokenizer: Path
    backend: str
    limit: float


@dataclass(frozen=True, slots=True)
class Ready:
    """A child's first word."""

    vocabulary: int
    empty_call_us: float
    """What the clock shows for a call that does nothing; contained in every mask's time."""


class Unreadable(Exception):
    """A file that isn't of the format."""


class FileBench:
    """Measures files with one backend and one vocabulary."""

    def __init__(
        self, vocabulary: Vocabulary, backend: str, stage: Callable[[str], None] = lambda _: None
    ) -> None:
        # Nothing stays in the cache: of two files with one schema both compile it.
        config = GuidedConfig(backend=backend, threads=1, cache_bytes=0)
        self._compiler = GrammarCompiler(vocabulary, config=config)
        self._stops = vocabulary.stop_token_ids
        self._tokens = TextTokens(vocabulary)
        self._mask = np.zeros((1, vocabulary.words), np.int32)
        self._stage = stage
        self._warm_up(backend)

    def measure(self, path: Path) -> FileResult:
        """One file. Whatever a backend raises, other than a refusal, is raised."""
        start = time.perf_counter()
        result = FileResult(path.name)
        try:
            self._stage("reading")
            schema, tests = _read(path)
        except Unreadable as error:
            result.status, result.error = "unreadable", str(error)
        else:
            result.tests = len(tests)
            self._measure(schema, tests, result)
        result.seconds = time.perf_counter() - start
        return result

    def _measure(self, schema: Any, tests: list[tuple[bool, str]], result: FileResult) -> None:
        self._stage("compiling")
        try:
            spec = OutputSpec.json_schema(schema, strict=False, whitespace="flexible")
            start = time.perf_counter_ns()
            grammar, backend = self._first_mask(spec)
            result.first_mask_ms = (time.perf_counter_ns() - start) / 1e6
        except (GrammarError, SpecError) as error:
            result.status, result.error = "refused", str(error)
            return
        result.backend, result.reason = grammar.backend, grammar.reason
        times: list[int] = []
        for index, (valid, text) in enumerate(tests):
            self._stage(f"matching test {index}")
            matcher = backend.start(grammar, self._stops)
            tokens = self._tokens(text)
            accepted, fault = self._match(matcher, backend.batch([matcher]), tokens, times)
            if fault:
                result.faults.append(f"test {index}: {fault}")
            if accepted and not valid:
                result.wrong_accepts.append(index)
            if valid and not accepted:
                result.wrong_refusals.append(index)
        if result.wrong_accepts or result.wrong_refusals:
            result.status = "wrong"
        result.mask_ns = np.array(times, np.int64)

    def _first_mask(self, spec: OutputSpec) -> tuple[Grammar, Backend]:
        grammar = self._compiler.compile(spec)
        backend = self._compiler.backend(grammar.backend)
        backend.batch([backend.start(grammar, self._stops)]).fill(self._mask, _ROW)
        return grammar, backend

    def _match(
        self, matcher: Matcher, batch: MatcherBatch, tokens: list[int], times: list[int]
    ) -> tuple[bool, str]:
        """Whether the tokens are a whole output, and in what way the matcher contradicted itself."""
        mask, clock = self._mask, time.perf_counter_ns
        row = mask[0]
        for position, token in enumerate(tokens):
            start = clock()
            batch.fill(mask, _ROW)
            times.append(clock() - start)
            if not int(row[token >> 5]) >> (token & 31) & 1:
                return False, "" if row.any() else f"no token is allowed at token {position}"
            if not batch.accept([token])[0]:
                return False, f"the mask allows token {position}, and it is refused"
        start = clock()
        batch.fill(mask, _ROW)
        times.append(clock() - start)
        allowed = any(int(row[token >> 5]) >> (token & 31) & 1 for token in self._stops)
        if allowed != matcher.complete:
            return allowed, "at the end, the mask and the matcher disagree on whether it may stop"
        return allowed, "" if row.any() else "no token is allowed at the end"
