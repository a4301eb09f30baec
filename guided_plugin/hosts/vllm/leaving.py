"""`refused: "vllm"`: requests whose spec the plugin refuses go on to vLLM's own manager in the same engine.

A spec that is malformed, or that no backend of the plugin enforces, is left. One over a limit is not: the
limits protect the server. `guided` never is: vLLM can't serve it. Each spec has a line in the log, at most
`_LINES` a minute, and each request counts in the engine's metrics. Depends on errors.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

from guided_plugin.errors import CompileLimitError, GrammarError, GuidedError, SpecError

_log = logging.getLogger(__name__)

MARK = "guided_left"
"""Set by the gate in `extra_args` of each request that is left to vLLM, so that its engine counts it."""

_LINES = 20


class Leaving:
    """What one frontend leaves to vLLM. Thread-safe."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._logged: deque[float] = deque(maxlen=_LINES)
        """When the newest lines were written."""
        self._silent = 0
        """Specs since then that had none."""

    def takes(self, error: GuidedError) -> bool:
        """Whether a spec that was refused is left to vLLM; the log says why."""
        if not self._wanted or isinstance(error, CompileLimitError):
            return False
        if not isinstance(error, GrammarError | SpecError):
            return False
        with self._lock:
            self._say(error)
        return True

    def _say(self, error: GuidedError) -> None:
        now = time.monotonic()
        if len(self._logged) == _LINES and now - self._logged[0] < 60:
            self._silent += 1
            return
        self._logged.append(now)
        more = f" ({self._silent} more specs since the last line)" if self._silent else ""
        self._silent = 0
        _log.warning("left to vLLM's own structured output: %s%s", error.reason, more)


class Counter:
    """The requests of the schedulers of this process that were left to vLLM."""

    requests = 0


def count(extra: dict[str, Any]) -> None:
    """A request has come to a scheduler."""
    if extra.get(MARK) is True:
        Counter.requests += 1
