"""Objects over a pipe between two processes of this package: a length, then a pickle. Touches nothing.

Both ends are this package's own processes, started by each other, so pickles are safe here.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from typing import Any

__all__ = ["PeerGone", "receive", "send"]

_LENGTH = struct.Struct("!Q")
_MAX_BYTES = 1 << 32


class PeerGone(Exception):
    """The other end has closed, or sends what no frame is."""


def send(fd: int, message: Any) -> None:
    """Write a whole frame; blocks while the pipe is full."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    view = memoryview(_LENGTH.pack(len(data)) + data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise PeerGone(str(error)) from error


def receive(fd: int, deadline: float | None = None) -> Any:
    """Read a whole frame. Raises TimeoutError past the deadline (of `time.monotonic`)."""
    (length,) = _LENGTH.unpack(_read(fd, _LENGTH.size, deadline))
    if length > _MAX_BYTES:
        raise PeerGone(f"a frame of {length} bytes")
    try:
        return pickle.loads(_read(fd, length, deadline))
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError) as error:
        raise PeerGone(f"a frame that can't be read: {error}") from error


def _read(fd: int, count: int, deadline: float | None) -> bytes:
    chunks = []
    # Not select(): a server may have more than 1,024 files open.
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while count:
        if deadline is not None and not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            raise TimeoutError
        try:
            chunk = os.read(fd, min(count, 1 << 20))
        except OSError as error:
            raise PeerGone(str(error)) from error
        if not chunk:
            raise PeerGone("closed")
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)
