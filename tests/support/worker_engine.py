"""The engine's side of a worker that runs in a thread, with the device played by the
test."""

import os
import socket
import threading
import time

from compilers import tokens_of
from vocabularies import BYTES

import guided_plugin as gp
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.step import StepPlan
from guided_plugin.worker.child import loop
from guided_plugin.worker.engine.client import WorkerClient
from guided_plugin.worker.engine.session import Session
from guided_plugin.worker.layout import PLAN_DEPTH, TOKEN_DEPTH
from guided_plugin.worker.messages import from_worker
from guided_plugin.worker.words import Counter

END = BYTES.stop_token_ids[0]


ABC = gp.OutputSpec.choice(["abcdef"], backend="llguidance")


XYZ = gp.OutputSpec.choice(["xyzxyz"], backend="llguidance")


def numbers(text):
    """A token for each character; `.` is the stop token."""
    return [END if one == "." else ord(one) for one in text]


class Engine:
    """A client, the device's part of its steps, and a worker in a thread."""

    def __init__(self, first_step=0, **config):
        config = gp.GuidedConfig(threads=1, **config)
        plugins = gp.Plugins(entry_points=False)
        self.client = WorkerClient(
            gp.GrammarCompiler(BYTES, config=config, plugins=plugins),
            4,
            first_step=first_step,
        )
        self.session = Session(self.client)
        self.region = self.client.region
        self.codes = []
        self.said = []
        self.plans = {}
        self.begin()

    def begin(self, *, isolate=False):
        """A new worker, as after a death."""
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, from_worker)
        compiler = self.client.compiler
        control, end = socket.socketpair()
        end.close()  # there is no template: these specs need no helper
        arguments = (
            compiler.chooser,
            control.detach(),
            theirs.detach(),
            os.dup(self.region.fd),
        )
        self.thread = threading.Thread(
            target=lambda: self.codes.append(loop.main(*arguments))
        )
        self.thread.start()
        self.session.begin(self.channel, isolate=isolate)

    def end(self):
        """It goes as if it had been killed."""
        self.session.end()
        self.channel.close()
        self.thread.join(10)
        assert not self.thread.is_alive()

    def listen(self):
        self.channel.flush()
        try:
            messages = self.channel.receive()
        except ChannelClosedError:
            return
        for message in messages:
            self.said.append(message)
            self.session.received(message)

    def until(self, what, seconds=60.0):
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "did not happen in time"
            self.listen()
            time.sleep(0.001)

    def never(self, what, seconds=0.1):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.listen()
            assert not what()
            time.sleep(0.001)

    def plan(self, *slots):
        self.client.publish(StepPlan(tuple(range(len(slots))), slots))
        step = self.client.steps.announce()
        self.plans[step] = slots
        return step

    def add(self, slot=0, /, tokens="", **specs):
        """Requests by their names, in slots from this one on."""
        for at, (name, spec) in enumerate(specs.items(), slot):
            self.client.add(at, name, spec, numbers(tokens))

    def first_step(self, **specs):
        """A step of these requests that is scheduled; its tokens have yet to land."""
        self.add(**specs)
        step = self.plan(*range(len(specs)))
        self.shown(step)
        self.schedule(step)
        return step

    def filled(self, step):
        return self.client.steps.filled >= step

    def shown(self, step):
        """The tokens that each row of a step allows, with `|` between rows."""
        self.until(lambda: self.filled(step))
        rows = tokens_of(self.region.masks[step % PLAN_DEPTH])
        texts = [
            "".join("." if token == END else chr(token) for token in row)
            for row in rows
        ]
        return "|".join(texts[: len(self.plans[step])])

    def schedule(self, step):
        self.client.steps.scheduled(step)

    def land(self, step, text):
        """A token for each row."""
        self.region.tokens[step % TOKEN_DEPTH, : len(text)] = numbers(text)
        self.region.store(Counter.SAMPLED, step)

    def request(self, slot):
        """The request in a slot. `client.state` waits for a supervisor's thread; there
        is none."""
        found = []
        thread = threading.Thread(target=lambda: found.append(self.client.state(slot)))
        thread.start()
        self.until(lambda: bool(found))
        thread.join()
        return self.client.requests[slot]
