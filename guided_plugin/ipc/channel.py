"""Messages between two processes of this package: pickles in frames over a stream
socket. Depends on errors.

Sending never blocks: what the other side does not take at once waits here. An engine
that adds a thousand requests must not stand still because the worker is busy, nor a
worker because the engine is. A child unpickles what the process that started it sends.
That one reads a child's messages with a `plain_decoder`: a process that runs native
code on a client's spec may send anything at all.
"""

from __future__ import annotations

import io
import itertools
import pickle
import pickletools
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from guided_plugin.errors import PipelineError

MAX_BYTES = 1 << 28
"""Size limit of a message: a broken process must not fill the memory of an engine."""

MAX_PARTS = 100_000
"""The most parts of one message: numbers, texts, tuples. Each takes some memory of its
own."""

# What protocol 5 writes for plain data and dataclasses. Left out: what names its place
# in the table of things seen so far, which takes as much memory as it says, and what
# calls methods of objects.
_PARTS = frozenset(
    [
        *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET"),
        *(
            "NONE",
            "NEWTRUE",
            "NEWFALSE",
            "BININT",
            "BININT1",
            "BININT2",
            "LONG1",
            "BINFLOAT",
        ),
        *(
            "SHORT_BINUNICODE",
            "BINUNICODE",
            "BINUNICODE8",
            "SHORT_BINBYTES",
            "BINBYTES",
            "BINBYTES8",
        ),
        *("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "FROZENSET"),
        *(
            "EMPTY_LIST",
            "APPEND",
            "APPENDS",
            "STACK_GLOBAL",
            "NEWOBJ",
            "REDUCE",
            "BUILD",
        ),
    ]
)

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 18
_TOGETHER = 64
"""Messages that go in one call."""


class ChannelClosedError(Exception):
    """The other side is gone."""


class Channel:
    """One end. `send` may be called from any thread; `receive` and `wait` from one at a
    time."""

    def __init__(
        self, sock: socket.socket, decode: Callable[[bytes], Any] = pickle.loads
    ) -> None:
        """`decode` reads messages. The default runs whatever the other side says: it is
        for children."""
        sock.setblocking(False)
        self._decode = decode
        self.sock = sock
        self._lock = threading.Lock()
        self._waiting: deque[memoryview] = deque()
        self._received = bytearray()
        self._broken = False
        """True if sending failed: the other side is gone."""

    def fileno(self) -> int:
        """For select and poll."""
        return self.sock.fileno()

    @property
    def pending(self) -> bool:
        """True if messages wait: for the other side to make room, or for the next
        one."""
        return bool(self._waiting)

    def send(self, message: object, *, later: bool = False) -> None:
        """Queue a message, and send what the other side takes now; `later`: with the
        next one, or `flush`. Never blocks. That the other side is gone is no error
        here: `receive` and `drain` tell. Raises what pickle raises, and PipelineError
        for a message over the size limit."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if len(body) > MAX_BYTES:
            raise _error(f"a message of {len(body)} bytes is too long to send")
        with self._lock:
            self._waiting.append(memoryview(_LENGTH.pack(len(body)) + body))
            if not later:
                self._flush()

    def flush(self) -> None:
        """Send what the other side takes now."""
        with self._lock:
            self._flush()

    def drain(self, deadline: float | None = None) -> bool:
        """Wait until all is sent, or the deadline (of `time.monotonic`) has passed;
        whether all was sent."""
        while self._waiting and poll_until(self, select.POLLOUT, deadline):
            self.flush()
        return not self._waiting and not self._broken

    def receive(self) -> list[Any]:
        """The messages that have arrived. Raises ChannelClosedError when there will be
        no more, and PipelineError for a message that cannot be read."""
        closed = False
        while len(self._received) < _LENGTH.size + MAX_BYTES:
            try:
                data = self.sock.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            self._received += data
            if len(data) < _CHUNK:  # no more is there
                closed = not data
                break
        messages = self._take() if self._received else []
        if closed and not messages:
            raise ChannelClosedError("it has closed its end")
        return messages

    def wait(self, deadline: float | None = None) -> list[Any]:
        """Wait for messages and return them. Raises TimeoutError past the deadline (of
        `time.monotonic`)."""
        while True:
            if not poll_until(self, select.POLLIN, deadline):
                raise TimeoutError("it did not answer in time")
            if messages := self.receive():
                return messages

    def close(self) -> None:
        """Hang up. What still waits is dropped."""
        with self._lock:
            self._waiting.clear()
            self.sock.close()

    def _flush(self) -> None:
        while self._waiting:
            try:
                sent = self.sock.sendmsg(itertools.islice(self._waiting, _TOGETHER))
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._broken = True
                self._waiting.clear()
                return
            while sent:
                head = self._waiting.popleft()
                if len(head) > sent:
                    self._waiting.appendleft(head[sent:])
                sent -= min(sent, len(head))

    def _take(self) -> list[Any]:
        messages = []
        at = 0
        while len(self._received) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, at)
            if length > MAX_BYTES:
                raise _error(f"the other process announced a message of {length} bytes")
            if len(self._received) - at - _LENGTH.size < length:
                break
            at += _LENGTH.size
            try:
                messages.append(
                    self._decode(bytes(memoryview(self._received)[at : at + length]))
                )
            # unpickling raises anything at all for bytes that are not a pickle
            except Exception as error:
                raise _error(f"cannot read a message: {error!r}") from error
            at += length
        del self._received[:at]
        return messages


def poll_until(
    source: socket.socket | Channel, event: int, deadline: float | None
) -> bool:
    """Wait for a socket; False when the deadline (of `time.monotonic`) passes first."""
    # not select(): a host may have more descriptors open than that can name
    poll = select.poll()
    poll.register(source, event)
    return bool(
        poll.poll(
            None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
        )
    )


def plain_decoder(
    classes: Iterable[type], functions: Iterable[Any] = ()
) -> Callable[[bytes], Any]:
    """A function that reads pickles of these classes and of plain data, and raises
    pickle.UnpicklingError, or what unpickling raises, for anything else. It calls
    nothing but the classes and `functions`, which their `__reduce__` names, and takes
    memory in proportion to the length of the data."""
    known: dict[tuple[str, str], Any] = {
        (one.__module__, one.__qualname__): one for one in classes
    }
    known |= {(one.__module__, one.__name__): one for one in functions}

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            try:
                return known[module, name]
            except KeyError:
                raise pickle.UnpicklingError(
                    f"{module}.{name} is not part of a message"
                ) from None

    def decode(data: bytes) -> Any:
        for number, (part, _, _) in enumerate(pickletools.genops(data)):
            if part.name not in _PARTS:
                raise pickle.UnpicklingError(f"{part.name} is not part of a message")
            if number >= MAX_PARTS:
                raise pickle.UnpicklingError(f"it has more than {MAX_PARTS} parts")
        return Unpickler(io.BytesIO(data)).load()

    return decode


def _error(what: str) -> PipelineError:
    return PipelineError(what, where="channel between processes", hint="report it")
