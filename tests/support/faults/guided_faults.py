"""A plugin whose grammars misbehave on request. Put this folder on sys.path, and
workers load it too.

The first choice of a `choice` spec may be a directive: `@PHASE COUNT ACTION [MARKER]`.
In that phase, at its COUNT-th call for the request, ACTION happens: `die`, `freeze`
(the whole process, with the GIL), `hang`, `sleep1`, or `raise`. With a MARKER, a file's
path, it happens once: where the file is, a call goes on.
"""

import ctypes
import os
import pathlib
import signal
import time

import guided_plugin as gp
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend


@gp.hookimpl
def register_backends(register):
    register("faulty", FaultyBackend)


class Directive:
    def __init__(self, spec):
        first = spec.document()[0] if spec.kind == "choice" else ""
        self.phase, self.at, self.action, *marker = (
            first[1:].split() if first[:1] == "@" else ("", 0, "")
        )
        self.marker = pathlib.Path(marker[0]) if marker else None
        self.at = int(self.at)

    def reached(self, phase, count):
        if phase != self.phase or count != self.at:
            return
        if self.marker is not None:
            if self.marker.exists():
                return
            self.marker.touch()
        if self.action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "freeze":
            ctypes.PyDLL(None).pause()
        elif self.action == "hang":
            time.sleep(1000)
        elif self.action == "sleep1":
            time.sleep(1)
        else:
            raise RuntimeError("on request")


class FaultyBackend:
    name = "faulty"

    def __init__(self, vocabulary, config):
        self._backend = LLGuidanceBackend(vocabulary, config)

    def compile(self, spec):
        Directive(spec).reached("compile", 1)
        grammar = self._backend.compile(spec)
        return type(grammar)(
            spec, self.name, grammar.handle, grammar.size_bytes, grammar.seconds
        )

    def start(self, grammar, stop_token_ids):
        directive = Directive(grammar.spec)
        directive.reached("start", 1)
        return FaultyMatcher(directive, self._backend.start(grammar, stop_token_ids))

    def batch(self, matchers):
        return FaultyBatch(
            matchers, self._backend.batch([matcher.inner for matcher in matchers])
        )


class FaultyMatcher:
    def __init__(self, directive, inner):
        self.directive = directive
        self.inner = inner
        self.accepts = self.fills = 0

    def accept(self, token):
        self.accepts += 1
        self.directive.reached("accept", self.accepts)
        return self.inner.accept(token)


class FaultyBatch:
    def __init__(self, matchers, inner):
        self._matchers = matchers
        self._inner = inner

    def accept(self, tokens):
        for matcher in self._matchers:
            matcher.accepts += 1
            matcher.directive.reached("accept", matcher.accepts)
        return self._inner.accept(tokens)

    def fill(self, mask, rows):
        for matcher in self._matchers:
            matcher.fills += 1
            # Of a token's number, not of a call's: a worker that fills a step again
            # does so at the same.
            matcher.directive.reached("fill", matcher.accepts + 1)
        return self._inner.fill(mask, rows)
