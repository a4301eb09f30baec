"""Calls into native code: bounded by a deadline, and waited for when the interpreter ends..

A call into native code can't be interrupted. One that does not bound its work runs in another thread, on data
that no other call uses. After the deadline the caller goes on without it, and the thread is abandoned until
the call returns. What counts is the processor time of the thread: on a busy machine it may get none for long,
and that is no fault of the call.

A daemon thread that returns from native code while the interpreter ends is ended in the middle of that code's
frames, and the process dies by a signal. So compiles and lexer builds of such threads are counted, and the
end waits for them; most take milliseconds.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

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


_POLL = 0.01
"""Seconds between two looks at the processor time of a call that is late by the clock."""


class Overdue(Exception):
    """A call was not done at its deadline. It goes on in an abandoned thread."""


class _CallThread(Generic[T]):
    """A thread that makes one call after the other."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self.results: SimpleQueue[T | Exception] = SimpleQueue()
        """What a call returned or raised."""
        self.begun = self._cpu_begun = 0.0
        thread = threading.Thread(target=self._run, name="guided-deadline", daemon=True)
        thread.start()
        ident = thread.ident
        self._clock = time.pthread_getcpuclockid(ident) if ident is not None else None

    def begin(self, call: Callable[[], T]) -> None:
        """Make a call."""
        self.begun, self._cpu_begun = time.monotonic(), self._cpu()
        self._calls.put(call)

    def outcome(self, seconds: float, longest: float) -> T | Exception:
        """What the call returned or raised, or Overdue after `seconds` of processor time or `longest` by the
        clock."""
        while True:
            left = self.begun + min(seconds, longest) - time.monotonic()
            try:
                return self.results.get(timeout=max(left, _POLL))
            except Empty:
                if time.monotonic() - self.begun >= longest or self._cpu() - self._cpu_begun >= seconds:
                    return Overdue()

    def end(self) -> None:
        """End the thread after the call that it is in."""
        self._calls.put(None)

    def _cpu(self) -> float:
        return time.clock_gettime(self._clock) if self._clock is not None else time.monotonic()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                with native():
                    found: T | Exception = call()
            except BaseException as error:
                found = error if isinstance(error, Exception) else RuntimeError(repr(error))
            del call  # what it works on may be large, and the next call may be long in coming
            self.results.put(found)
            del found


class DeadlineCalls(Generic[T]):
    """Threads for calls with a deadline, kept for the next calls. Used by one thread at a time."""

    def __init__(self, seconds: float, longest: float) -> None:
        self.seconds = seconds
        """Processor time that one call may take."""
        self.longest = longest
        """Time by the clock that it may take: its thread may get no processor."""
        self._idle: list[_CallThread[T]] = []
        self._abandoned: list[_CallThread[T]] = []
        self._pid = os.getpid()

    def run(
        self, calls: Sequence[Callable[[], T]], *, times: float = 1.0, longest: float | None = None
    ) -> list[T | Exception]:
        """Make the calls together. For each its result, what it raised, or Overdue if it took more than
        `times` as much processor time as a call may, or `longest` by the clock."""
        if self._pid != os.getpid():  # a fork has none of these threads
            self._idle, self._abandoned, self._pid = [], [], os.getpid()
        threads = [self._idle.pop() if self._idle else _CallThread[T]() for _ in calls]
        for thread, call in zip(threads, calls, strict=True):
            thread.begin(call)
        most = self.longest if longest is None else longest
        outcomes = [thread.outcome(times * self.seconds, most) for thread in threads]
        for thread, outcome in zip(threads, outcomes, strict=True):
            if isinstance(outcome, Overdue):
                self._abandoned.append(thread)
                thread.end()
            else:
                self._idle.append(thread)
        return outcomes

    def overdue(self) -> float:
        """For how many seconds the longest of the abandoned calls has run; 0.0 if none runs."""
        self._abandoned = [thread for thread in self._abandoned if thread.results.empty()]
        now = time.monotonic()
        return max((now - thread.begun for thread in self._abandoned), default=0.0)

    def __del__(self) -> None:
        # Its threads hold no reference to it: they would wait for calls until the process ends.
        while self._idle:
            self._idle.pop().end()
