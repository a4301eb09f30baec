"""Pipelines that are lent to one decode loop at a time and kept for the next. Depends
on the pipeline.

Two loops that run at the same time need a pipeline each, and a worker process is worth
keeping. A loan comes back when its loop is closed, or from a finalizer. Finalizers run
anywhere and must take no lock: the loans that nothing uses are in a deque, and what is
left to do with them is done by the next one that borrows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import PipelineError
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.pipeline.runtime import check_mode

_LEAST_SLOTS = 64
_MOST_IDLE = 4


@dataclass(slots=True)
class Loan:
    """A pipeline and the requests that its borrower has added to it."""

    pipeline: StepPipeline
    slots: int
    requests: list[str] = field(default_factory=list)

    def end_requests(self) -> None:
        """Remove them from the pipeline."""
        while self.requests:
            self.pipeline.remove_request(self.requests.pop())


class PipelinePool:
    """Pipelines of one compiler, on any devices."""

    def __init__(self, compiler: GrammarCompiler, mode: Mode) -> None:
        check_mode(mode)
        self.compiler = compiler
        self._mode: Mode = mode
        self._idle: deque[Loan] = deque()
        self._closed = False
        self._process = os.getpid()

    def borrow(self, device: torch.device, slots: int) -> Loan:
        """An idle pipeline with that many slots at least, or a new one."""
        if self._closed:
            raise PipelineError("the guide is closed", hint="make another one")
        if self._process != os.getpid():
            raise PipelineError(
                "the guide belongs to another process", hint="make one after the fork"
            )
        idle = self._taken()
        for place, loan in enumerate(idle):
            if loan.pipeline.device == device and loan.slots >= slots:
                self._idle.extend(idle[:place] + idle[place + 1 :])
                return loan
        self._idle.extend(idle)
        most = max(_LEAST_SLOTS, 1 << (slots - 1).bit_length())
        return Loan(
            StepPipeline(self.compiler, max_slots=most, device=device, mode=self._mode),
            most,
        )

    def give_back(self, loans: list[Loan]) -> None:
        """End the requests of loans, and keep their pipelines for the next."""
        kept = self._taken() + [loans.pop() for _ in range(len(loans))]
        for loan in kept:
            loan.end_requests()
        most = 0 if self._closed else _MOST_IDLE
        self._idle.extend(kept[:most])
        for loan in kept[most:]:
            loan.pipeline.close()

    def leave(self, loans: Iterable[Loan]) -> None:
        """For finalizers: the next one that borrows ends the requests."""
        self._idle.extend(loans)

    def close(self) -> None:
        """End idle pipelines now, and lent ones when they come back."""
        self._closed = True
        self.give_back([])

    def _taken(self) -> list[Loan]:
        """All that are idle, which no other thread sees any more; none has requests."""
        taken = []
        while self._idle:
            try:
                taken.append(self._idle.popleft())
            except IndexError:  # another thread took it
                break
            taken[-1].end_requests()
        return taken
