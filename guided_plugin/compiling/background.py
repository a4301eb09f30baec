"""Threads that run compiles in the background. Depends on errors and ipc.

They mostly wait for helper processes, so there may be many. They are daemons, because a compile must not keep
a program from ending. Each ends when it had nothing to do for a while.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from guided_plugin.errors import BusyError
from guided_plugin.ipc import processors

_MAX_THREADS = 64
_IDLE_SECONDS = 5.0

T = TypeVar("T")


class Background(Generic[T]):
    """Runs calls, each in a thread of its own up to a number of threads."""

    def __init__(self, threads: int = _MAX_THREADS, most: float = float("inf")) -> None:
        """`most`: calls that may have been submitted and not ended."""
        self._most_threads = threads
        self._most = most
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Future[T], Callable[[], T]]] = queue.SimpleQueue()
        self._threads = self._busy = 0
        """Threads that run; calls that were submitted and have not ended."""

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """The result of a call, later. Never blocks; raises BusyError if there are too many."""
        future: Future[T] = Future()
        with self._lock:
            if self._busy >= self._most:
                raise BusyError(
                    f"{self._busy} specs compile, or wait for that",
                    where="compiling",
                    hint="try again, or raise compile_queue or compile_processes",
                )
            if self._busy >= self._threads < self._most_threads:
                # Before the call is queued: should no thread start, there is no future that never ends.
                threading.Thread(target=self._work, name="guided-compile", daemon=True).start()
                self._threads += 1
            self._busy += 1
            self._waiting.put((future, call))
        return future

    def _work(self) -> None:
        while True:
            try:
                future, call = self._waiting.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._waiting.empty():
                        self._threads -= 1
                        return
                continue
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del future, call  # what they hold must not live until the next call
            with self._lock:
                self._busy -= 1


def at_low_priority(call: Callable[[], T]) -> T:
    """The result of a call that is native work for long, made in a thread that gives way to others."""
    result: Future[T] = Future()

    def work() -> None:
        processors.give_way()
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=work, name="guided-compile-again", daemon=True).start()
    return result.result()


def outside_own_threads(call: Callable[[], object]) -> None:
    """Call it here, or in a new thread if this is one of this package: a garbage collection may have brought
    an end here, and the thread may be one that ends with it, or hold a lock that the end needs."""
    if threading.current_thread().name.startswith("guided-"):
        threading.Thread(target=call, name="guided-close").start()
    else:
        call()
