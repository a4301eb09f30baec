"""Messages in frames over a stream socket that never blocks. Both sides use it; touches nothing else.

What the other side does not take at once waits here: an engine that adds a thousand requests must not
stand still because the worker is busy, nor a worker because the engine is.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading
import time
from collections import deque
from typing import Any

from guided_plugin.errors import PipelineError

__all__ = ["Channel", "ChannelClosedError"]

_LENGTH = struct.Struct("<Q")
_LONGEST = 1 << 32
_CHUNK = 1 << 18


class ChannelClosedError(Exception):
    """The other side is gone."""


class Channel:
    """One end. `send` may be called from any thread, `receive` from one at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._lock = threading.Lock()
        self._waiting: deque[memoryview] = deque()
        self._received = bytearray()

    def fileno(self) -> int:
        """For select and poll."""
        return self.sock.fileno()

    @property
    def pending(self) -> bool:
        """Whether something waits for the other side to make room."""
        return bool(self._waiting)

    def send(self, message: object) -> None:
        """Queue a message, and send what the other side takes now. Never blocks, never raises for it:
        who reads the channel learns that the other side is gone."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._waiting.append(memoryview(_LENGTH.pack(len(body)) + body))
            self._flush()

    def flush(self) -> bool:
        """Send what the other side takes now; whether all is gone."""
        with self._lock:
            self._flush()
            return not self._waiting

    def drain(self, seconds: float) -> bool:
        """Wait until all is sent; False when the other side doesn't take it in time."""
        end = time.monotonic() + seconds
        while not self.flush():
            if time.monotonic() > end:
                return False
            time.sleep(0.0005)
        return True

    def receive(self) -> list[Any]:
        """The messages that are there. Raises ChannelClosedError when there will be no more."""
        closed = False
        while True:
            try:
                data = self.sock.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                closed = True
                break
            self._received += data
        messages = self._take() if self._received else []
        if closed and not messages:
            raise ChannelClosedError
        return messages

    def close(self) -> None:
        """Hang up. What still waits is dropped."""
        with self._lock:
            self._waiting.clear()
            self.sock.close()

    def _flush(self) -> None:
        while self._waiting:
            head = self._waiting[0]
            try:
                sent = self.sock.send(head)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._waiting.clear()
                return
            if sent == len(head):
                self._waiting.popleft()
            else:
                self._waiting[0] = head[sent:]

    def _take(self) -> list[Any]:
        messages = []
        at = 0
        while len(self._received) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._received, at)
            if length > _LONGEST:
                raise PipelineError(f"a message of {length} bytes", where="grammar worker's channel")
            if len(self._received) - at - _LENGTH.size < length:
                break
            at += _LENGTH.size
            try:
                messages.append(pickle.loads(memoryview(self._received)[at : at + length]))
            except Exception as error:
                raise PipelineError(f"can't be read: {error!r}", where="grammar worker's channel") from error
            at += length
        del self._received[:at]
        return messages
