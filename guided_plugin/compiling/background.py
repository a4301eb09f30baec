"""Threads that run compiles in the background. Depends on ipc and grammar/native.

They mostly wait for helper processes, so there may be many. They are daemons, because a
compile must not keep a program from ending.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any

from guided_plugin.grammar.native import native
from guided_plugin.ipc import processors

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 10.0
"""Seconds that a thread waits for its next call. One that waits runs 0.05 ms after the
call came, a new one after 0.2 ms, or 1.9 where both processors are busy."""


class Background:
    """Runs calls, each in a thread of its own up to a number of threads; the others
    wait for one of these."""

    def __init__(self, threads: int = 64, *, gives_way: bool = False) -> None:
        """`gives_way`: at a low priority."""
        self._most_threads = threads
        self._gives_way = gives_way
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()  # futures, and their calls
        self._threads = 0
        self._idle = 0
        """The number of threads that wait for a call."""

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """The result of a call in the caller's context, later. Never blocks."""
        future: Future[Any] = Future()
        if self._pid != os.getpid():  # its threads belong to the parent
            self._begin()
        with self._changed:
            if self._idle <= len(self._waiting) and self._threads < self._most_threads:
                # Before the call is queued: should no thread start, there is no future
                # that never ends.
                threading.Thread(
                    target=self._work, name="guided-compile", daemon=True
                ).start()
                self._threads += 1
            self._waiting.append((future, partial(copy_context().run, call)))
            self._changed.notify()
        return future

    def _work(self) -> None:
        if self._gives_way:
            processors.give_way()
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting, _IDLE_SECONDS)
                self._idle -= 1
                if not self._waiting:
                    self._threads -= 1
                    return
                future, call = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del future, call  # what they hold must not live until the next call


def outside_own_threads(call: Callable[[], object]) -> None:
    """Call it here, or in a new thread if this is one of this package: a garbage
    collection may have brought an end here, and the thread may be one that ends with
    it, or hold a lock that the end needs."""
    if threading.current_thread().name.startswith("guided-"):
        threading.Thread(target=call, name="guided-close").start()
    else:
        call()


def in_background(work: Callable[[], object], name: str) -> threading.Event:
    """Do some work in a thread; the event says that it is over. A fork waits until
    then, as vLLM forks its engine meanwhile, and so does the end of the interpreter."""
    over = threading.Event()

    def run() -> None:
        with native():
            try:
                work()
            except Exception:
                _log.exception(
                    "%s failed; the first request that needs it gets the error", name
                )
            finally:
                over.set()

    threading.Thread(target=run, name=name, daemon=True).start()
    return over
