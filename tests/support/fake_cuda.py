"""A device that a test drives: streams, events and the driver calls of a step, as
queues of calls.

A stream does nothing until the test runs it, so everything may be as late as on a
device. Its memory is the host's.
"""

import ctypes
from collections import deque

from guided_plugin.worker.device.streamops import StreamOps


class Stuck(AssertionError):
    """The host waits for what nothing will do."""


class Device:
    """Installs itself where `cuda_masks` looks for CUDA."""

    def __init__(self, monkeypatch):
        self.streams = {}
        self.main = self.stream()
        self.asked = None
        """Called while the host waits for an event, in place of another process."""
        device = self

        class Event:
            def __init__(self, enable_timing=False):
                self.records = self.done = 0

            def record(self, stream=None):
                self.records += 1
                number = self.records
                (stream or device.main).queue.append(lambda: self._finish(number))

            def query(self):
                return self.done == self.records

            def synchronize(self):
                device.run()
                if not self.query() and device.asked is not None:
                    device.asked()
                    device.run()
                if not self.query():
                    raise Stuck

            def elapsed_time(self, other):
                return 0.0

            def _finish(self, number):
                self.done = max(self.done, number)
                return True

        monkeypatch.setattr("torch.cuda.Event", Event)
        monkeypatch.setattr("torch.cuda.Stream", lambda device: self.stream())
        monkeypatch.setattr(
            "guided_plugin.worker.device.cuda_masks.load_stream_ops", self._ops
        )

    def stream(self):
        made = Stream(len(self.streams))
        self.streams[made.cuda_stream] = made
        return made

    def run(self):
        """As far as all streams get."""
        while sum(stream.run() for stream in self.streams.values()):
            pass

    def _ops(self, handle):
        queue = self.streams[handle].queue

        def wait(address, value):
            word = ctypes.c_uint32.from_address(address)
            queue.append(lambda: (word.value - value) & 0xFFFFFFFF < 0x80000000)

        def copy_up(there, host, size):
            queue.append(lambda: ctypes.memmove(there, host, size) is not None)

        return StreamOps(wait, copy_up)


class Stream:
    """Calls in order; one that returns False is tried again."""

    def __init__(self, handle):
        self.cuda_stream = handle
        self.queue = deque()
        self.held = False

    def wait_event(self, event):
        number = event.records
        self.queue.append(lambda: event.done >= number)

    def launch(self, kernel):
        """`kernel` runs when its turn comes."""
        self.queue.append(lambda: kernel() or True)

    def run(self):
        """Whether anything was done."""
        ran = False
        while self.queue and not self.held and self.queue[0]():
            self.queue.popleft()
            ran = True
        return ran
