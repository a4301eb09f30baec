"""Calls into native code: bounded by a deadline, and waited for by forks and by the
interpreter's end.

A call into native code can't be interrupted. One that does not bound its work runs in
another thread, on data that no other call uses. After the deadline the caller goes on
without it, and the thread is abandoned until the call returns. What counts is the
processor time of the thread: on a busy machine it may get none for long, and that is no
fault of the call.

A daemon thread that returns from native code while the interpreter ends is ended in the
middle of that code's frames, and the process dies by a signal. The child of a fork has
the locks of such work, and of modules that it imports, without the thread that releases
them. So compiles and lexer builds are counted, and both wait for them; most take
milliseconds.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import guided_plugin.ipc.spawn  # noqa: F401 - first: what a fork waits for here may start a process

_LONGEST = 10.0
"""Seconds that the end waits at most."""
_FORK_SECONDS = 60.0
"""Seconds that a fork waits at most: modules that lie on a cold disk take long."""

_LATE = 1.0
"""Seconds that a thread which begins after the end is held back. Meanwhile the
interpreter ends it, unless another thread joins it."""

_changed = threading.Condition()
_ending = False
_inside: dict[int, bool] = {}
"""The threads that are counted, and whether a fork waits for each."""


@contextmanager
def native(*, held: bool = True) -> Iterator[None]:
    """Around work of a thread that may still run when the interpreter ends, or the
    process forks. `held`: whether a fork waits for it."""
    me = threading.get_ident()
    if me in _inside:
        yield
        return
    with _changed:
        if _ending and threading.current_thread() is not threading.main_thread():
            _changed.wait_for(lambda: False, _LATE)
        _inside[me] = held
    try:
        yield
    finally:
        with _changed:
            del _inside[me]
            _changed.notify_all()


@atexit.register
def _wait() -> None:
    global _ending
    with _changed:
        _ending = True
        _changed.wait_for(lambda: not _inside, _LONGEST)


def _before_fork() -> None:
    me = threading.get_ident()
    _changed.acquire()  # until it has forked: no work begins meanwhile
    _changed.wait_for(
        lambda: not any(held for one, held in _inside.items() if one != me),
        _FORK_SECONDS,
    )


def _after_fork() -> None:
    global _changed, _inside, _ending
    me = threading.get_ident()
    _changed = threading.Condition()
    _inside = {one: True for one in _inside if one == me}
    _ending = False


os.register_at_fork(
    before=_before_fork,
    after_in_child=_after_fork,
    after_in_parent=lambda: _changed.release(),
)


_POLL = 0.01
"""Seconds between two looks at the calls that run: which is late, and whether another
thread helps."""

_AT_ONCE = 8
"""Threads that make calls at the same time: more would wait for a processor, and look
late."""

_MANY = 16
"""Calls that are worth one more thread at once: that takes 0.1 ms to start, a mask of
SQL 0.2 ms."""


class Overdue(Exception):
    """A call was not done at its deadline. It goes on in an abandoned thread."""

    def __init__(self, *, starved: bool = False) -> None:
        """`starved`: by the clock alone, as its thread got too little processor
        time."""
        super().__init__()
        self.starved = starved


class _Work:
    """Calls that threads take one after the other, and what became of them."""

    def __init__(self, calls: Sequence[Callable[[], Any]]) -> None:
        self.lock = threading.Lock()
        self.done = threading.Event()  # set with the last outcome
        self.left = list(enumerate(calls))[::-1]
        self.outcomes: list[Any] = [RuntimeError("no thread is available")] * len(calls)
        self._missing = len(calls)

    def tell(self, index: int, outcome: Any) -> None:
        """An outcome. To be called with the lock."""
        self.outcomes[index] = outcome
        self._missing -= 1
        if not self._missing:
            self.done.set()


class _Caller:
    """A thread that makes calls of some work until none is left, or it is abandoned."""

    def __init__(self, work: _Work, seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._call: tuple[int, float, float] | None = None
        """Its index, and the time and the processor time at which it began."""
        self._clock = 0
        self.begun = 0.0
        self.abandoned = False
        self.thread = threading.Thread(
            target=self._run, name="guided-deadline", daemon=True
        )
        self.thread.start()

    def gives_up(self, longest: float) -> bool:
        """Abandon the thread if its call has taken too much processor time, or
        `longest` by the clock."""
        with self._work.lock:
            if self._call is None:
                return False
            index, self.begun, cpu_begun = self._call
            used = time.clock_gettime(self._clock) - cpu_begun
            starved = used < self._seconds
            if starved and time.monotonic() - self.begun < longest:
                return False
            self.abandoned = True
            self._work.tell(index, Overdue(starved=starved))
            return True

    def _run(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        with native(held=False):  # it may be abandoned, and no module is imported in it
            while self._next():
                pass

    def _next(self) -> bool:
        """Make the next call, if there is one."""
        work = self._work
        with work.lock:
            if self.abandoned or not work.left:
                return False
            index, call = work.left.pop()
            begun = time.thread_time()
            self._call = index, time.monotonic(), begun
        try:
            found: Any = call()
        except BaseException as error:
            found = error if isinstance(error, Exception) else RuntimeError(repr(error))
        # no other thread ran to see it: it held the GIL
        if time.thread_time() - begun >= self._seconds:
            found = Overdue()
        with work.lock:
            self._call = None
            if not self.abandoned:
                work.tell(index, found)
        return True


class DeadlineCalls:
    """Makes calls with a deadline, in threads of their own. Used by one thread at a
    time."""

    def __init__(
        self,
        seconds: float,
        longest: float,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`progress` is called while calls are waited for."""
        self.seconds = seconds
        """Processor time that one call may take."""
        self.longest = longest
        """Time by the clock that it may take: its thread may get no processor."""
        self._progress = progress
        self._abandoned: list[_Caller] = []

    def run(
        self, calls: Sequence[Callable[[], Any]], *, times: float = 1.0
    ) -> list[Any]:
        """Make the calls: one after the other, and a few at a time if they are many or
        take long. For each its result, what it raised, or Overdue if it took `times` as
        much processor time as a call may."""
        work = _Work(calls)
        at_once = len(calls) // _MANY
        callers: list[_Caller] = []
        while not work.done.is_set():
            at_once = min(at_once + 1, _AT_ONCE)
            try:
                while work.left and len(callers) < at_once:
                    callers.append(_Caller(work, times * self.seconds))
            except RuntimeError:  # the system has no more threads
                if not callers:
                    break
            work.done.wait(_POLL)
            self._abandoned += [one for one in callers if one.gives_up(self.longest)]
            callers = [one for one in callers if not one.abandoned]
            self._progress()
        return work.outcomes

    def overdue(self) -> float:
        """For how many seconds the longest of the abandoned calls has run; 0.0 if none
        runs."""
        self._abandoned = [
            caller for caller in self._abandoned if caller.thread.is_alive()
        ]
        return max(
            (time.monotonic() - caller.begun for caller in self._abandoned), default=0.0
        )
