"""A device that a test drives: streams, events and the driver calls of a step, as
queues of calls.

A stream does nothing until the test runs it, so everything may be as late as on a
device. Its memory is the host's.
"""

import ctypes
from collections import deque


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
        masks = "guided_plugin.worker.device.cuda_masks"
        monkeypatch.setattr(f"{masks}.load_wait", lambda: self._wait)
        monkeypatch.setattr(f"{masks}.load_copy_up", self._copy_up)

    def stream(self):
        made = Stream(len(self.streams))
        self.streams[made.cuda_stream] = made
        return made

    def run(self):
        """As far as all streams get."""
        while sum(stream.run() for stream in self.streams.values()):
            pass

    def _wait(self, handle, address, value):
        word = ctypes.c_uint32.from_address(address)
        self.streams[handle].queue.append(
            lambda: (word.value - value) & 0xFFFFFFFF < 0x80000000
        )

    def _copy_up(self, handle):
        return lambda *given: self.streams[handle].queue.append(
            lambda: ctypes.memmove(*given) is not None
        )


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
