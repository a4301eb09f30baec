"""What the grammar worker compiles: in threads, never in its loop. Depends on the compiler."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from guided_plugin.compiling.background import Background
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError, RequestError
from guided_plugin.grammar.base import Grammar
from guided_plugin.ipc import processors
from guided_plugin.ipc.channel import Channel
from guided_plugin.worker.messages import Add, Compile, Verdict, Warm

_log = logging.getLogger(__name__)

_QUICK_THREADS = max(2, min(4, processors.count() // 4))
"""Threads for specs that take milliseconds, half of that in native code. Others, which wait for helper
processes or take long to load, have threads of their own."""


class Compiles:
    """The compiles of one session."""

    def __init__(self, compiler: GrammarCompiler, channel: Channel, *, spare: bool) -> None:
        """`spare`: what backends build of the vocabulary gives way to all other processes."""
        self._compiler = compiler
        self._channel = channel
        self._quick: Background[Grammar] = Background(_QUICK_THREADS)
        self._slow: Background[Grammar] = Background()
        self._threads = ThreadPoolExecutor(
            thread_name_prefix="guided-warm", initializer=processors.give_way if spare else None
        )
        self.warming: list[Future[None]] = []
        """Backends that are being built."""

    @property
    def not_yet(self) -> bool:
        """Whether no grammar can be there, which is no spec's fault: backends are being made, or the first
        helper process starts, which takes seconds on a busy machine."""
        return bool(self.warming) or self._compiler.starts_first_helper

    def warm_up(self) -> None:
        """Build what each backend needs of the vocabulary before requests wait for it."""
        names = self._compiler.plugins.backends
        self.warming = [self._threads.submit(self._compiler.warm_up, name) for name in names]

    def report_warm(self) -> None:
        """Tell the engine once the backends are there."""
        if all(done.done() for done in self.warming):
            for failure in filter(None, (done.exception() for done in self.warming)):
                _log.warning("a backend could not get ready: %s", failure)
            self.warming = []
            self._channel.send(Warm())

    def grammar(self, message: Add | Compile) -> Future[Grammar]:
        """The grammar of a message's spec."""
        spec = message.spec
        if message.prepared is not None:
            self._compiler.keep(spec, message.prepared)
        grammar = self._compiler.cached(spec)
        if grammar is None:
            threads = self._quick if self._compiler.is_quick(spec) else self._slow
            return threads.submit(partial(self._compiler.compile, spec))
        cached: Future[Grammar] = Future()
        cached.set_result(grammar)
        return cached

    def answer(self, message: Compile) -> None:
        """Tell the engine whether a spec compiles, once that is known."""
        self.grammar(message).add_done_callback(partial(self._send_verdict, message))

    def _send_verdict(self, message: Compile, done: Future[Grammar]) -> None:
        """Runs in the compiling thread: the loop may be asleep."""
        error = done.exception()
        if error is not None:
            self._channel.send(Verdict(message.ticket, as_guided_error(error)))
            return
        # The engine keeps it for the worker after this one.
        made = self._compiler.kept(message.spec) if message.prepared is None else None
        self._channel.send(Verdict(message.ticket, done.result().admission(), made))

    def close(self) -> None:
        """Compile no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def as_guided_error(error: BaseException) -> GuidedError:
    """What a compile or a start raised, as an error for its request."""
    if isinstance(error, GuidedError):
        return error
    return RequestError(f"the grammar worker could not use its spec: {error!r}", where="grammar worker")
