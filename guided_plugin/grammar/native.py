"""Delays the end of the interpreter while threads of this package are in native code. Depends on nothing.

A daemon thread that returns from native code while the interpreter ends is ended in the middle of that code's
frames, and the process dies by a signal. So compiles and lexer builds of such threads are counted, and the
end waits for them; most take milliseconds.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST = 10.0
"""Seconds that the end waits at most."""

_LATE = 1.0
"""Seconds that a thread which begins after the end is held back. Meanwhile the interpreter ends it, unless
another thread joins it."""

_changed = threading.Condition()
_inside = 0
_ending = False
_own = threading.local()
"""`inside`: whether this thread is counted."""


@contextmanager
def native() -> Iterator[None]:
    """Around native work of a thread that may still run when the interpreter ends."""
    global _inside
    if _counted():
        yield
        return
    with _changed:
        if _ending and threading.current_thread() is not threading.main_thread():
            _changed.wait_for(lambda: False, _LATE)
        _inside += 1
    _own.inside = True
    try:
        yield
    finally:
        _own.inside = False
        with _changed:
            _inside -= 1
            _changed.notify_all()


def _counted() -> bool:
    return getattr(_own, "inside", False)


@atexit.register
def _wait() -> None:
    global _ending
    with _changed:
        _ending = True
        _changed.wait_for(lambda: not _inside, _LONGEST)


def _after_fork() -> None:
    global _changed, _inside, _ending
    _changed, _inside, _ending = threading.Condition(), int(_counted()), False


os.register_at_fork(after_in_child=_after_fork)
