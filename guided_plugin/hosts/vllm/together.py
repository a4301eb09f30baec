"""Offline, the specs of one call compile at the same time. Imports vLLM lazily.

`LLM` adds its prompts one after the other, and `LLMEngine.add_request` waits for each spec. So the parameters
that `LLM._render_and_add_requests` goes through are replaced by a sequence that looks ahead: while the first
prompts are added, the gate admits the specs of the next ones. `add_request` waits for what is under way, asks
the engine to get ready all that was admitted meanwhile, and raises what is wrong with its own spec.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from guided_plugin.errors import BusyError, GuidedError
from guided_plugin.hosts.vllm.admission import Gate, gate_of
from guided_plugin.hosts.vllm.asked import LEFT, Admitted, Asked
from guided_plugin.hosts.vllm.patches import Call

_AHEAD = 128
"""How many prompts are looked at before the first of them is added. The engine runs those that were added."""


def render_and_add_requests(original: Any) -> Any:
    """`LLM._render_and_add_requests`, where `LLM` adds its prompts."""
    call = Call(original)

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = call.get("params", args, kwargs)
        if len(params) < 2:  # nothing to look ahead to
            return original(self, *args, **kwargs)
        args, kwargs = call.having(Ahead(gate_of(self.llm_engine), params), args, kwargs)
        return original(self, *args, **kwargs)

    return replaced


class Ahead(Sequence[Any]):
    """The parameters of each prompt. To read those of one begins the specs of the next."""

    def __init__(self, gate: Gate, params: Sequence[Any]) -> None:
        self._gate = gate
        self._params = params
        self._seen = 0
        """The parameters before this one were looked at."""
        self._waiting: list[Asked] = []
        """Specs that nothing was done for yet, the largest last."""

    def __len__(self) -> int:
        return len(self._params)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int):
            self._look(range(len(self))[index] + _AHEAD)
            self._begin()
        return self._params[index]

    def _look(self, end: int) -> None:
        """See which specs the next prompts have. What is wrong with one is raised by `add_request`."""
        new: dict[bytes | None, Asked] = {}
        for params in self._params[self._seen : end]:
            try:
                asked = self._gate.asked(params, math.inf) if self._gate.concerns(params) else None
                if isinstance(asked, Asked) and self._gate.look_up(asked) is None and asked.key is not None:
                    new[asked.key] = asked
            except GuidedError:
                continue
        self._seen = max(self._seen, end)
        if new:
            self._waiting = sorted([*self._waiting, *new.values()], key=lambda asked: len(str(asked.form)))

    def _begin(self) -> None:
        """Have specs admitted, as many as there is room for."""
        while self._waiting:
            try:
                self._gate.admit_in_background(self._waiting[-1]).add_done_callback(self._admitted)
            except BusyError:  # the next prompt tries again
                return
            self._waiting.pop()

    def _admitted(self, done: Future[Admitted]) -> None:
        """Small ones are made ready too: in a call's first step they would compile one after the other."""
        if done.exception() is None and done.result() is not LEFT:
            done.result().prepared = False
            self._gate.expected.append(done.result())
