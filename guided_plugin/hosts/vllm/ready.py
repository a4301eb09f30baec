"""vLLM's start waits until no guided request has to. Imports vLLM lazily.

    AsyncLLM.__init__, LLMEngine.__init__   at the end: the frontend's backends and helper processes
    compile_or_warm_up_model                of vLLM's workers, at the end: the grammar worker, or the backends

Both began before the model was loaded, so they are mostly there by then. The waits are bounded, and a line in
the log says how long they took. An engine that is not ready refuses guided requests (`Engine.health`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from guided_plugin.hosts.vllm.wrapping import wrap

_log = logging.getLogger(__name__)

_SECONDS = 60.0
"""How long the start of a server waits at most, in each of its processes."""

_WARM_UP = "compile_or_warm_up_model"
"""The last method of a worker that vLLM calls before an engine says that it is ready."""


def wait_for(ready: threading.Event, what: str, late: str) -> bool:
    """Wait until something is ready, for a bounded time; whether it is. `late`: what follows if not."""
    start = time.monotonic()
    if ready.wait(_SECONDS):
        _log.info("%s is ready, after a wait of %.2f s", what, time.monotonic() - start)
        return True
    _log.warning("%s is not ready after %g s: %s", what, _SECONDS, late)
    return False


def in_background(work: Callable[[], object], name: str) -> threading.Event:
    """Do some work in a thread; the event says that it is over."""
    over = threading.Event()

    def run() -> None:
        try:
            work()
        except Exception:
            _log.exception("%s failed; the first request that needs it will tell", name)
        finally:
            over.set()

    threading.Thread(target=run, name=name, daemon=True).start()
    return over


def wrap_frontend(owner: type, wait: Callable[[Any], None]) -> None:
    """Have a class of vLLM's call `wait(self)` at the end of its constructor."""

    def make(original: Any) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            wait(self)

        return init

    wrap(owner, "__init__", make)


def wrap_workers(base: type, wait: Callable[[Any], None]) -> None:
    """Have every class of vLLM's workers that is loaded call `wait(worker)` when its model is ready."""

    def make(original: Any) -> Any:
        def compile_or_warm_up_model(self: Any) -> Any:
            times = original(self)
            wait(self)
            return times

        return compile_or_warm_up_model

    for kind in _below(base):
        if _WARM_UP in vars(kind):
            wrap(kind, _WARM_UP, make)


def _below(kind: type) -> Iterator[type]:
    subclasses: list[type] = kind.__subclasses__()
    for below in subclasses:
        yield below
        yield from _below(below)
