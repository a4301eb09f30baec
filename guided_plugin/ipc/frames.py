"""Objects over a pipe between two processes of this package: a length, then a pickle. Touches nothing.

Both ends are this package's own processes, started by each other, so pickles are safe here. An end that
must never hang gives a deadline, and makes its descriptor non-blocking to write to it.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from typing import Any

__all__ = ["MAX_BYTES", "PeerGone", "pack", "receive", "send"]

MAX_BYTES = 1 << 28
"""Of a frame. Anything larger is no answer to a compile, and would be read into an engine's memory."""

_LENGTH = struct.Struct("!Q")


class PeerGone(Exception):
    """The other end has closed, or sends what no frame is."""


def pack(message: Any) -> bytes:
    """A frame. Raises what pickle raises, and ValueError for one that is too large."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    if len(data) > MAX_BYTES:
        raise ValueError(f"a message of {len(data)} bytes")
    return _LENGTH.pack(len(data)) + data


def send(fd: int, frame: bytes, deadline: float | None = None) -> None:
    """Write a whole frame. Raises TimeoutError past the deadline (of `time.monotonic`)."""
    view = memoryview(frame)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            _wait(fd, select.POLLOUT, deadline)
        except OSError as error:
            raise PeerGone(str(error)) from error


def receive(fd: int, deadline: float | None = None) -> Any:
    """Read a whole frame. Raises TimeoutError past the deadline (of `time.monotonic`)."""
    (length,) = _LENGTH.unpack(_read(fd, _LENGTH.size, deadline))
    if length > MAX_BYTES:
        raise PeerGone(f"a frame of {length} bytes")
    data = _read(fd, length, deadline)
    try:
        return pickle.loads(data)
    except Exception as error:
        # Unpickling raises anything at all for bytes that no pickle are.
        raise PeerGone(f"a frame that can't be read: {error!r}") from error


def _read(fd: int, count: int, deadline: float | None) -> bytes:
    chunks = []
    while count:
        if deadline is not None:
            _wait(fd, select.POLLIN, deadline)
        try:
            chunk = os.read(fd, min(count, 1 << 20))
        except OSError as error:
            raise PeerGone(str(error)) from error
        if not chunk:
            raise PeerGone("closed")
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def _wait(fd: int, event: int, deadline: float | None) -> None:
    # Not select(): a server may have more than 1,024 files open.
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3):
        raise TimeoutError
