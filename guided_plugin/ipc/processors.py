"""The processors that this process may use, as they were when the package was imported. Depends on nothing.

Hosts bind their threads to processors later, and a child process inherits that: with vLLM's CPU build a
grammar worker would share one processor with a thread that never rests.
"""

from __future__ import annotations

import contextlib
import os
import threading

_AT_IMPORT = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None

_NICE = 5
"""Compiles give way to engines and their workers; but on a busy machine they must end within their time."""


def give_way() -> None:
    """Lower the priority of the calling thread, and of those that it starts from now on."""
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE)


def count() -> int:
    """How many there are."""
    return len(_AT_IMPORT) if _AT_IMPORT is not None else os.cpu_count() or 1


def release(pid: int) -> None:
    """Let a child process that has just started use all of them."""
    if _AT_IMPORT is not None:
        with contextlib.suppress(OSError):  # it has ended, or the machine took processors away
            os.sched_setaffinity(pid, _AT_IMPORT)
