"""A backend `odd` that does what a schema's title says."""

import os
import time

import numpy as np

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.base import Grammar
from guided_plugin.hookspecs import hookimpl


class Matcher:
    complete = True

    def __init__(self, does):
        self.does = does


def bits(vocabulary, tokens):
    row = np.zeros(32 * vocabulary.words, np.uint8)
    row[list(tokens)] = 1
    return np.packbits(row, bitorder="little").view(np.int32)


class Batch:
    def __init__(self, matchers, vocabulary):
        self.matcher = matchers[0]
        self.does = self.matcher.does
        self.taken = 0
        stops = set(vocabulary.stop_token_ids)
        self.stops = bits(vocabulary, stops)
        self.special = bits(vocabulary, set(vocabulary.special_ids) - stops)
        self.texts = bits(
            vocabulary, set(range(vocabulary.size)) - set(vocabulary.special_ids)
        )

    def fill(self, mask, rows):
        mask[rows] = 0 if self.does == "get stuck" else self.texts | self.stops
        late = self.taken >= 1
        if self.does == "stop early":
            self.matcher.complete = not late
        if self.does == "stop late" and late:
            mask[rows] &= ~self.stops
        if self.does == "let special tokens in" and late:
            mask[rows] |= self.special

    def accept(self, tokens):
        self.taken += 1
        if self.does == "hang":
            with open(os.environ["ODD_PID"], "w") as file:
                file.write(str(os.getpid()))
            time.sleep(1000)
        return [self.does != "break its word"]


class Backend:
    name = "odd"

    def __init__(self, vocabulary, config):
        self.threads = config.thread_count()
        self.vocabulary = vocabulary

    def compile(self, spec):
        does = spec.document().get("title", "")
        if does == "refuse":
            raise UnsupportedSpecError("odd as well", where="#")
        if does == "crash":
            os.abort()
        if does == "raise":
            raise RuntimeError("a bug in odd")
        return Grammar(spec, "odd", does, 1000, 0.0, reason=f"threads {self.threads}")

    def start(self, grammar, stops):
        matcher = Matcher(grammar.handle)
        matcher.complete = matcher.does != "get stuck"
        return matcher

    def batch(self, matchers):
        return Batch(matchers, self.vocabulary)


@hookimpl
def register_backends(register):
    register("odd", Backend)
