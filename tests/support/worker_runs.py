"""Decode steps, and a loop of them over random logits whose every output is checked;
waiting for what must happen."""

import dataclasses
import os
import pathlib
import signal
import time

import torch
from compilers import compiler_of, start
from vocabularies import BYTES

import guided_plugin as gp

END = BYTES.stop_token_ids[0]


WIDTH = BYTES.size + 3


LONG = gp.OutputSpec.regex("[a-c]{12,14}", backend="llguidance")


PAREN = gp.OutputSpec.grammar('start: "(" start ")" | "x"', "lark")


def one_step(pipe, slots, logits):
    """One whole decode step: masks the logits, and returns the likeliest tokens."""
    pipe.plan(slots)
    pipe.fill_mask()
    pipe.apply_mask(logits)
    tokens = logits.argmax(-1)
    pipe.schedule_update(tokens)
    pipe.finish_update()
    return tokens


def faulty(directive, marker=None):
    text = f"@{directive}" + (f" {marker}" if marker is not None else "")
    return gp.OutputSpec.choice([text, "abcdefgh"], backend="faulty")


class Run:
    """Decodes over random logits, one row a request and a last one that is unguided."""

    def __init__(self, pipe, **specs):
        self.pipe = pipe
        self.specs = specs
        self.slots = {
            name: pipe.add_request(name, spec) for name, spec in specs.items()
        }
        self.out = {name: [] for name in specs}
        self.generator = torch.Generator().manual_seed(7)
        self.slowest = 0.0

    def step(self, names=None):
        names = list(self.slots) if names is None else names
        logits = torch.rand(len(names) + 1, WIDTH, generator=self.generator)
        # "abcdefgh" rather than the directive, where both are allowed
        logits[:, ord("@")] -= 2.0
        before = logits[-1].clone()
        start = time.monotonic()
        slots = [*map(self.slots.get, names), gp.UNGUIDED]
        tokens = one_step(self.pipe, slots, logits)
        self.slowest = max(self.slowest, time.monotonic() - start)
        assert torch.equal(logits[-1], before)
        for name, token in zip(names, tokens.tolist(), strict=False):
            self.out[name].append(token)

    def steps(self, count):
        for _ in range(count):
            self.step()

    def check(self, *, failed=()):
        """Every request that didn't fail has only what its grammar allows, all of it in
        its journal."""
        errors = {
            name: error
            for name in self.specs
            if (error := self.pipe.request(name).error) is not None
        }
        assert set(errors) == set(failed), errors
        compiler = compiler_of(BYTES)
        for name, spec in self.specs.items():
            counted = self.pipe.tokens(name)
            # Not with `faulty`: it would do here what it is told.
            matcher = start(compiler, dataclasses.replace(spec, backend="llguidance"))
            assert all(matcher.accept(token) for token in counted), (name, counted)
            if name not in failed:
                end = self.out[name].index(END) + 1 if END in self.out[name] else None
                assert counted == tuple(self.out[name][:end])


def until(what, seconds=20.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.005)


def gone(pid):
    """Whether a process has ended; its parent may not have reaped it."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rsplit(")", 1)[1].split()[0] == "Z"


def stopped(pipe):
    """Stop the worker; its process id."""
    pid = pipe.runtime.supervisor.worker_pid
    os.kill(pid, signal.SIGSTOP)
    return pid
