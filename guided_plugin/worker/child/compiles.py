"""What the grammar worker compiles: in threads, never in its loop. Depends on the compiler."""

from __future__ import annotations

import math
from concurrent.futures import Future
from functools import partial

from guided_plugin.compiling.background import Background
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError, RequestError
from guided_plugin.grammar.base import Grammar
from guided_plugin.ipc import processors
from guided_plugin.ipc.channel import Channel
from guided_plugin.worker.messages import Add, Compile, Verdict

_QUICK_THREADS = max(2, min(4, processors.count() // 4))
"""Threads for specs that take milliseconds, half of that in native code. Others, which wait for helper
processes or take long to load, have threads of their own."""


class Compiles:
    """The compiles of one session."""

    def __init__(self, compiler: GrammarCompiler, channel: Channel) -> None:
        self._compiler = compiler
        self._channel = channel
        self._quick: Background[Grammar] = Background(_QUICK_THREADS)
        self._slow: Background[Grammar] = Background()

    def grammar(self, message: Add | Compile) -> Future[Grammar]:
        """The grammar of a message's spec."""
        spec = message.spec
        if message.prepared is not None:
            self._compiler.keep(spec, message.prepared)
        grammar = self._compiler.cached(spec)
        if grammar is None:
            threads = self._quick if self._compiler.is_quick(spec) else self._slow
            # How long a request waits is for its engine to say.
            return threads.submit(partial(self._compiler.compile, spec, deadline=math.inf))
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
            self._channel.send(Verdict(message.key, as_guided_error(error)))
            return
        # The engine keeps it for the worker after this one.
        made = self._compiler.kept(message.spec) if message.prepared is None else None
        self._channel.send(Verdict(message.key, done.result().admission(), made))


def as_guided_error(error: BaseException) -> GuidedError:
    """What a compile or a start raised, as an error for its request."""
    if isinstance(error, GuidedError):
        return error
    return RequestError(f"the grammar worker could not use its spec: {error!r}", where="grammar worker")
