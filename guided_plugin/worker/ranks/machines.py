"""Several machines, each with grammars of its own: whether they sample the same.

The same tokens give the same masks, so no masks are sent. But a row may be closed on
one machine alone, by a limit of time or by the end of its worker. What the host takes
is sampled at rank 0, with rank 0's masks; the other machine would go on with another
text, and spoil what the model says next. So the first rank of each machine tells rank 0
the tokens of each step, and where they differ the request fails. No step waits for
that: rank 0 hears of it when the next steps are on their way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from guided_plugin.errors import GuidedError, PipelineError, RequestError
from guided_plugin.step import RequestInfo
from guided_plugin.worker.layout import TOKEN_DEPTH, Region
from guided_plugin.worker.ranks.group import RankGroup, different_steps
from guided_plugin.worker.words import Counter

_CLOSE_SECONDS = 2.0
"""For which a pipeline that closes waits for its last messages."""


Message: TypeAlias = NDArray[Any]
"""[1 + positions, 1 + max_slots]: the number of a step and its slots, then a row of
their tokens for each position; the rest is -1. Or where two of them differ."""

_Step: TypeAlias = tuple[int, list[RequestInfo]]
"""A number, and those in it."""


class Machines:
    """The other machines: at rank 0 all, else that of rank 0. Each has a thread."""

    def __init__(self, group: RankGroup, tag: int, region: Region) -> None:
        self._group = group
        self._tag = tag
        self._region = region
        self._found: SimpleQueue[tuple[RequestInfo, GuidedError]] = SimpleQueue()
        self._lost: GuidedError | None = None
        self._links = []
        for rank in [0] if group.rank else sorted({*group.leaders} - {0}):
            steps: SimpleQueue[_Step | None] = SimpleQueue()
            thread = threading.Thread(
                target=self._run,
                args=(rank, steps),
                name="guided-machines",
                daemon=True,
            )
            thread.start()
            self._links.append((thread, steps))

    def stepped(
        self, number: int, requests: list[RequestInfo]
    ) -> Iterator[tuple[RequestInfo, GuidedError]]:
        """A step has been sampled, for `requests` in the order of the plan. At rank 0:
        those for which another machine was found to have sampled other tokens. Raises
        PipelineError if one can't be reached, or makes other steps."""
        for _, steps in self._links:
            steps.put((number, requests))
        if self._lost is not None:
            raise self._lost
        while not self._found.empty():
            yield self._found.get()

    def close(self) -> None:
        """No more steps come."""
        for thread, steps in self._links:
            steps.put(None)
            thread.join(_CLOSE_SECONDS)

    def _run(self, rank: int, steps: SimpleQueue[_Step | None]) -> None:
        move = self._group.send if self._group.rank else self._group.receive
        try:
            while (step := steps.get()) is not None:
                own = self._message(*step)
                told = own.copy()
                move(torch.from_numpy(told), rank, self._tag)
                self._compare(rank, own != told, *step)
        except Exception as error:  # of the group's backend, too
            self._lost = PipelineError(
                f"rank {rank}, on another machine, does not go along: {error}",
                where="tensor parallelism",
                hint="start the engine again",
            )

    def _compare(
        self, rank: int, differs: Message, number: int, requests: list[RequestInfo]
    ) -> None:
        """At rank 0, with what was told. Elsewhere nothing differs."""
        slots, *tokens = differs
        if slots.any():
            raise different_steps(rank)
        for place in np.flatnonzero(np.any(tokens, axis=0)):
            what = f"rank {rank}, on another machine, sampled another token in step {number}"
            hint = "its log says what failed there; send the request again"
            self._found.put((requests[place - 1], RequestError(what, hint=hint)))

    def _message(self, number: int, requests: list[RequestInfo]) -> Message:
        while not self._region.reached(Counter.SAMPLED, number):
            time.sleep(1e-3)  # a step takes longer
        shape = self._region.shape
        count = len(requests)
        message = np.full((1 + shape.positions, 1 + shape.max_slots), -1)
        message[0, : 1 + count] = number, *(request.slot for request in requests)
        message[1:, 1 : 1 + count] = self._region.tokens[
            number % TOKEN_DEPTH, : count * shape.positions
        ].reshape(-1, count)
        return message
