"""Threads that nobody waits for, and the end of the interpreter. Touches nothing.

A daemon thread that comes back from native code when the interpreter has begun to end is ended right there,
in the middle of that code's frames, and the process dies by a signal. So native work of such threads is
counted, and the end waits for it: most of it takes milliseconds.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["native"]

_LONGEST = 10.0
"""Seconds that the end waits at most."""

_changed = threading.Condition()
_inside = 0
_ending = False


@contextmanager
def native() -> Iterator[None]:
    """Around native work of a thread that may still run when the interpreter ends."""
    global _inside
    with _changed:
        while _ending and threading.current_thread() is not threading.main_thread():
            _changed.wait()  # too late to begin anything: here the interpreter takes the thread away
        _inside += 1
    try:
        yield
    finally:
        with _changed:
            _inside -= 1
            _changed.notify_all()


@atexit.register
def _wait() -> None:
    global _ending
    with _changed:
        _ending = True
        _changed.wait_for(lambda: not _inside, _LONGEST)


def _after_fork() -> None:
    global _changed, _inside
    _changed, _inside = threading.Condition(), 0


os.register_at_fork(after_in_child=_after_fork)
