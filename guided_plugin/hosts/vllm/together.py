"""Offline, the specs of one call compile at the same time. Imports vLLM lazily.

`LLM` adds its prompts one after the other, and `LLMEngine.add_request` waits for each spec. So the parameters
that `LLM._render_and_add_requests` goes through are replaced by a sequence that looks ahead: it has the gate
admit the next specs, the largest first, and the engine get them ready, while the first prompts are added.
What fails is left to `add_request`, which raises it for the request that it belongs to.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from guided_plugin.errors import GuidedError
from guided_plugin.hosts.vllm.admission import Gate, gate_of
from guided_plugin.hosts.vllm.asked import LEFT, Admitted, Asked
from guided_plugin.hosts.vllm.common import PREPARE
from guided_plugin.hosts.vllm.patches import Call

_log = logging.getLogger(__name__)

_AHEAD = 128
"""How many prompts are looked at before the first of them is added. The engine runs those that were added."""

_SPARE = 2
"""Specs that are read, or compile without a helper process, while all helpers are at work."""

_PAUSES = 0.001, 0.01
"""Seconds between the first two questions whether specs are ready in the engine, and at most."""


def render_and_add_requests(original: Any) -> Any:
    """`LLM._render_and_add_requests`, where `LLM` adds its prompts."""
    call = Call(original)

    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = call.get("params", args, kwargs)
        if len(params) < 2:  # nothing to look ahead to
            return original(self, *args, **kwargs)
        args, kwargs = call.having(Ahead(self.llm_engine, params), args, kwargs)
        return original(self, *args, **kwargs)

    return replaced


class Ahead(Sequence[Any]):
    """The parameters of each prompt. Each waits until its spec was admitted and is ready in the engine;
    meanwhile those of the next prompts are under way."""

    def __init__(self, engine: Any, params: Sequence[Any]) -> None:
        self._gate: Gate = gate_of(engine)
        self._rpc: Callable[..., list[Any]] = engine.collective_rpc
        self._params = params
        self._seen = 0
        """The parameters before this one were looked at."""
        self._carried: dict[int, Any] = {}
        """Those whose spec is known, by index."""
        self._keys: dict[int, bytes] = {}
        """The digest of the spec of each of the others."""
        self._open: set[bytes] = set()
        """Specs that are under way."""
        self._waiting: list[tuple[int, int, Asked]] = []
        """A heap: the size of each spec that nothing was done for yet."""
        self._running: dict[Future[Admitted], bytes] = {}
        self._asked: dict[bytes, tuple[Admitted, float]] = {}
        """Those that the engine gets ready, and until when that is waited for."""

    def __len__(self) -> int:
        return len(self._params)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, int):
            return self._params[index]
        index = range(len(self))[index]
        self._look(index + _AHEAD)
        key = self._keys.pop(index, None)
        pauses = _pauses()
        while key in self._open:
            if self._advance(next(pauses)):
                pauses = _pauses()
        return self._carried.pop(index, self._params[index])

    def _look(self, end: int) -> None:
        """See which specs the next prompts have."""
        for index in range(self._seen, min(end, len(self))):
            params = self._params[index]
            if not self._gate.concerns(params):
                continue
            try:
                asked = self._gate.asked(params)
                known = asked if isinstance(asked, Admitted) else self._gate.look_up(asked)
                if known is not None:
                    self._carried[index] = self._gate.carry(params, known)
            except GuidedError:  # `add_request` raises it
                continue
            if isinstance(asked, Asked) and asked.key is not None and known is None:
                self._keys[index] = asked.key
                if asked.key not in self._open:
                    self._open.add(asked.key)
                    heapq.heappush(self._waiting, (-_size(asked.form), index, asked))
        self._seen = max(self._seen, end)

    def _advance(self, pause: float) -> bool:
        """Go on with all that is under way, for as long as a pause; whether anything has changed."""
        self._begin()
        if self._running:
            done, _ = wait(self._running, pause, FIRST_COMPLETED)
        else:
            done = set()
            time.sleep(pause)
        questions = [question for one in done for question in self._admitted(one)]
        return self._ask(questions) or bool(done)

    def _begin(self) -> None:
        """Have specs admitted, no more at a time than can compile at a time."""
        most = self._gate.options.compile_processes + _SPARE
        while self._waiting and len(self._running) < most:
            _, _, asked = heapq.heappop(self._waiting)
            key = asked.key or b""
            asked.deadline = self._gate.deadline()  # it waited for nothing but those before it
            try:
                self._running[self._gate.admit_in_background(asked)] = key
            except GuidedError:  # there is no room
                self._open.discard(key)

    def _admitted(self, done: Future[Admitted]) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """What the engine is to be asked of a spec that was admitted. Small ones are ready there at once; in
        a call's first step they would compile one after the other."""
        key = self._running.pop(done)
        if done.exception() is not None or done.result() is LEFT:
            self._open.discard(key)
            return
        admitted = done.result()
        self._asked[key] = admitted, self._gate.deadline()
        yield self._gate.question(admitted)

    def _ask(self, questions: list[tuple[str, dict[str, Any] | None]]) -> bool:
        """Ask the engine for all at once; whether any is ready."""
        if not self._asked:
            return False
        if questions and not self._guides():
            self._asked.clear()
            self._open.clear()
            self._waiting.clear()
            return True
        new = {key for key, _ in questions}
        questions += [(one.key, None) for one, _ in self._asked.values() if one.key not in new]
        ready = [all(each) for each in zip(*self._rpc(PREPARE, args=(questions,)), strict=True)]
        known = {key for (key, _), is_ready in zip(questions, ready, strict=True) if is_ready}
        now, before = time.monotonic(), len(self._asked)
        for key, (admitted, until) in list(self._asked.items()):
            if admitted.key in known:
                self._gate.prepared(admitted)
            elif now < until:
                continue
            del self._asked[key]
            self._open.discard(key)
        return len(self._asked) < before

    def _guides(self) -> bool:
        """Whether the engine can be asked; if not, `add_request` tells why."""
        try:
            self._gate.health.check(self._rpc)
        except Exception as error:
            _log.debug("specs are left to their own requests: %s", error)
            return False
        return True


def _pauses() -> Iterator[float]:
    pause, longest = _PAUSES
    while True:
        yield pause
        pause = min(1.5 * pause, longest)


def _size(form: Any) -> int:
    """How large a spec is, roughly: what takes longest comes first."""
    return len(str(form))
