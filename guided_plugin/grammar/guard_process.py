"""A helper of the compile guard: one process, one compile at a time. Started by guard.py."""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import sys
import threading
from typing import Any

from guided_plugin.errors import GuidedError, PluginError
from guided_plugin.grammar.base import Prepared
from guided_plugin.grammar.chooser import Candidate, Chooser
from guided_plugin.grammar.frames import PeerGone, receive, send
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

__all__ = ["WARM", "WARMING", "main"]

WARMING, WARM = "warming", "warm"


def main() -> None:
    """Serve until the other end of standard input closes."""
    # What libraries print must not get between the frames.
    answers = os.dup(1)
    os.dup2(2, 1)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(messages,), daemon=True).start()
    vocabulary, config = messages.get()
    chooser = Chooser(vocabulary, config, Plugins(disabled=config.disabled_plugins))
    warm: set[str] = set()
    send(answers, (list(chooser.plugins.backends), list(chooser.plugins.lowerings)))
    while True:
        candidate, spec = messages.get()
        if candidate.backend not in warm:
            # Not part of the compile, and not under its limits.
            send(answers, WARMING)
            _warm(chooser, candidate.backend)
            warm.add(candidate.backend)
            _limit_memory(config.compile_bytes)
            send(answers, WARM)
        send(answers, _prepared(chooser, candidate, spec))


def _listen(messages: queue.SimpleQueue[Any]) -> None:
    """Hand on what arrives, and end with the parent, also in the middle of a compile."""
    while True:
        try:
            messages.put(receive(0))
        except PeerGone:
            os._exit(0)


def _warm(chooser: Chooser, backend: str) -> None:
    """A first compile makes what later ones share; importing xgrammar alone takes seconds."""
    with contextlib.suppress(GuidedError):
        chooser.compile(Candidate(backend, ""), OutputSpec.choice(["a"]))


def _limit_memory(allowed: int) -> None:
    """What may be written to, beyond what is in use now. Reserved addresses don't count."""
    used = 0
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmData:"):
                used = int(line.split()[1]) * 1024
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + allowed, hard))
    # A crash is an answer here; nobody wants its core.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _prepared(chooser: Chooser, candidate: Candidate, spec: OutputSpec) -> Prepared | GuidedError:
    try:
        return chooser.prepare(candidate, spec)
    except GuidedError as error:
        return error
    except (MemoryError, RecursionError):
        # Nothing sensible can be said any more: the parent tells it as a crash.
        os._exit(1)
    except Exception as error:
        return PluginError(f"failed: {error!r}", where=f"backend {candidate.backend!r}")


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, PeerGone):
        sys.exit(0)
