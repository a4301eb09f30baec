"""Pipelines that are lent to one decode loop at a time and kept for the next. Depends on the pipeline.

Two loops that run at the same time need a pipeline each, and a worker process is worth keeping. A host that
knows when a loop ends gives its pipeline back. Otherwise a finalizer puts it on a list, since finalizers may
run anywhere and must take no lock; the next loan cleans it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass, field

import torch

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import Mode
from guided_plugin.errors import PipelineError
from guided_plugin.pipeline.pipeline import StepPipeline

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
        self.compiler = compiler
        self._mode: Mode = mode
        self._lock = threading.Lock()
        self._idle: list[Loan] = []
        self._left: deque[Loan] = deque()
        self._closed = False
        self._process = os.getpid()

    def borrow(self, device: torch.device, slots: int) -> Loan:
        """An idle pipeline with that many slots at least, or a new one."""
        self._tidy()
        with self._lock:
            if self._closed:
                raise PipelineError("the guide is closed", hint="make another one")
            if self._process != os.getpid():
                raise PipelineError("the guide belongs to another process", hint="make one after the fork")
            fitting = [loan for loan in self._idle if loan.pipeline.device == device and loan.slots >= slots]
            if fitting:
                chosen = min(fitting, key=lambda loan: loan.slots)
                self._idle.remove(chosen)
                return chosen
        most = max(_LEAST_SLOTS, 1 << (slots - 1).bit_length())
        pipeline = StepPipeline(self.compiler, max_slots=most, device=device, mode=self._mode)
        return Loan(pipeline, most)

    def give_back(self, loan: Loan) -> None:
        """End the requests of a loan, and keep its pipeline for the next."""
        loan.end_requests()
        with self._lock:
            keep = not self._closed and len(self._idle) < _MOST_IDLE
            if keep:
                self._idle.append(loan)
        if not keep:
            loan.pipeline.close()

    def leave(self, loans: list[Loan]) -> None:
        """For finalizers: the next loan gives them back."""
        self._left.extend(loans)

    def close(self) -> None:
        """End idle pipelines now, and lent ones when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        self._tidy()
        for loan in idle:
            loan.pipeline.close()

    def _tidy(self) -> None:
        while self._left:
            try:
                loan = self._left.popleft()
            except IndexError:
                return  # another thread took it
            self.give_back(loan)
