"""A decode loop without a model, to test with and to write hosts after. Depends on the
pipeline.

`FakeHost.step` drives a `StepPipeline` as docs/extending.md tells host authors to.
Requests join and leave between steps, rows change places, and every step and every
output is checked. What a request gets depends on its id and the seed alone: not on the
other rows, nor on where its grammar runs.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import ConfigError, GuidedError, PipelineError, RequestError
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.spec import OutputSpec, check_is_spec
from guided_plugin.step import UNGUIDED, DecodeStep

__all__ = ["FakeHost", "FakeRequest", "small_vocabulary"]

_WANTED = 2.0
"""Random logits are below 1."""


def small_vocabulary() -> Vocabulary:
    """Token i is byte i for i < 256; then a few tokens of several bytes, and the stop
    token."""
    several = (
        b'{"',
        b'":',
        b'",',
        b'"}',
        b"true",
        b"false",
        b"null",
        b" the",
        "é".encode(),
        b"12",
    )
    tokens = [*(bytes([byte]) for byte in range(256)), *several, b"</s>"]
    return Vocabulary.from_tokens(tokens, [len(tokens) - 1])


@dataclass(slots=True, eq=False)
class FakeRequest:
    """A request of a `FakeHost`, waiting, running or ended."""

    request_id: str
    spec: OutputSpec | None
    limit: int
    script: tuple[int, ...]
    random: torch.Generator
    slot: int = UNGUIDED
    tokens: list[int] = field(default_factory=list)
    """What it has generated, its stop token included."""
    stopped: bool = False
    """Whether a stop token ended it; otherwise it reached its limit, or is not over."""
    error: GuidedError | None = None

    @property
    def ended(self) -> bool:
        """Whether it needs no more tokens."""
        return self.stopped or len(self.tokens) >= self.limit


class FakeHost:
    """Decodes requests over random or scripted logits. `run` raises if the pipeline
    breaks a promise."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        *,
        max_rows: int = 8,
        device: torch.device | str = "cpu",
        mode: Mode = "auto",
        seed: int = 0,
        preempt: float = 0.0,
    ) -> None:
        """`preempt`: how likely it is in each step that a row has to leave and come
        back later."""
        self.pipeline = StepPipeline(
            compiler, max_slots=max_rows, device=device, mode=mode
        )
        self.requests: dict[str, FakeRequest] = {}
        self._compiler = compiler
        self._max_rows = max_rows
        self._seed = seed
        self._preempt = preempt
        self._random = random.Random(seed)
        self._waiting: deque[FakeRequest] = deque()
        self._rows: list[FakeRequest] = []
        self._steps = 0

    def add_request(
        self,
        request_id: str,
        spec: OutputSpec | None = None,
        *,
        max_new_tokens: int = 64,
        script: Sequence[int] = (),
    ) -> FakeRequest:
        """Queue a request; without a spec its row is unguided. Its token at a place is
        the one that `script` has there, where the grammar allows it, and a random one
        after the end of the script."""
        if spec is not None:
            check_is_spec(spec)
        if request_id in self.requests:
            raise ConfigError(
                "is queued already",
                where=f"request {request_id}",
                hint="use another id",
            )
        generator = torch.Generator().manual_seed(
            self._seed + zlib.crc32(request_id.encode())
        )
        request = FakeRequest(
            request_id, spec, max_new_tokens, tuple(script), generator
        )
        self.requests[request_id] = request
        self._waiting.append(request)
        return request

    def run(self) -> dict[str, FakeRequest]:
        """Decode until every request has ended."""
        while self.step():
            pass
        return self.requests

    def step(self) -> bool:
        """One decode step of the rows that run now; False if there are none."""
        self._schedule()
        if not self._rows:
            return False
        pipeline = self.pipeline
        plugins = self._compiler.plugins
        step = DecodeStep(self._steps, [row.slot for row in self._rows])
        pipeline.plan(step.slots)
        logits = self._forward()
        before = logits.clone()
        pipeline.fill_mask()
        pipeline.apply_mask(logits)
        step.tokens = logits.argmax(-1)
        pipeline.schedule_update(step.tokens)
        if plugins.listens_to_steps:
            plugins.post_sampling(step)
        self._append(step.tokens)
        pipeline.finish_update()
        if plugins.listens_to_steps:
            plugins.after_stop_criteria(step)
        self._check_masked(before, logits)
        self._steps += 1
        return True

    def close(self) -> None:
        """End the pipeline."""
        self.pipeline.close()

    def __enter__(self) -> FakeHost:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Inside

    def _schedule(self) -> None:
        """Remove rows that have ended, preempt some, add waiting ones, and shuffle them
        all."""
        rows = self._rows
        self._rows = []
        for row in rows:
            if row.ended:
                self._leave(row)
                self._check_output(row)
            elif self._random.random() < self._preempt / len(rows):
                self._leave(row)
                self._waiting.append(row)
            else:
                self._rows.append(row)
        while self._waiting and len(self._rows) < self._max_rows:
            row = self._waiting.popleft()
            if row.spec is not None:
                try:
                    row.slot = self.pipeline.add_request(
                        row.request_id, row.spec.within(row.limit), tokens=row.tokens
                    )
                except GuidedError as error:
                    row.error = error
                    continue
            self._rows.append(row)
        self._random.shuffle(self._rows)

    def _leave(self, row: FakeRequest) -> None:
        if row.slot == UNGUIDED:
            return
        row.error = self.pipeline.request(row.request_id).error
        seen = self.pipeline.tokens(row.request_id)
        self.pipeline.remove_request(row.request_id)
        row.slot = UNGUIDED
        if row.error is None and seen != tuple(row.tokens):
            raise PipelineError(
                f"its grammar saw {seen}, not {row.tokens}", request_id=row.request_id
            )

    def _forward(self) -> Tensor:
        """In place of a model: [rows, vocabulary] logits."""
        size = self._compiler.vocabulary.size
        logits = torch.stack(
            [torch.rand(size, generator=row.random) for row in self._rows]
        )
        for row, request in zip(logits, self._rows, strict=True):
            if len(request.tokens) < len(request.script):
                row[request.script[len(request.tokens)]] = _WANTED
        return logits.to(self.pipeline.device)

    def _append(self, tokens: Tensor) -> None:
        """Append the tokens, and find the rows that a stop token ends."""
        default = self._compiler.vocabulary.stop_token_ids
        for row, token in zip(self._rows, tokens.tolist(), strict=True):
            row.tokens.append(token)
            row.stopped = token in ((row.spec and row.spec.stop_token_ids) or default)

    # Promises of the pipeline

    def _check_masked(self, before: Tensor, after: Tensor) -> None:
        """Guided rows lose tokens and change in no other way; unguided rows don't
        change at all."""
        same = before == after
        if not bool((same | (after == -torch.inf)).all()):
            raise PipelineError(
                "a mask changed logits that it allows", where=f"step {self._steps}"
            )
        for row, untouched in zip(self._rows, same.all(1).tolist(), strict=True):
            if row.slot == UNGUIDED and not untouched:
                raise PipelineError(
                    "an unguided row was masked", where=f"step {self._steps}"
                )

    def _check_output(self, row: FakeRequest) -> None:
        """A fresh matcher must accept every token, and be done where a stop token ended
        the row."""
        if row.spec is None or row.error is not None:
            return
        grammar = self._compiler.compile(row.spec)
        fresh = GrammarTable(self._compiler.vocabulary)
        backend = self._compiler.backend(grammar.backend)
        fresh.add(0, row.request_id, row.spec, grammar, backend, row.tokens)
        reason = (
            str(fresh.failures[0][1])
            if fresh.failures
            else f"it is {fresh.phase(0).name}"
        )
        if fresh.failures or (fresh.phase(0) is Phase.DONE) != row.stopped:
            raise RequestError(
                f"a fresh matcher refuses its output: {reason}",
                request_id=row.request_id,
            )
