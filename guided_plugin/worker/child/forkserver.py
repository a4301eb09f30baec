"""Child process: imports once, then forks grammar workers on request. Run as a program; never threaded.

What a worker imports takes seconds (xgrammar imports torch), a fork takes milliseconds: a worker that
died is replaced before anybody notices, and the masks it owed are filled by the next one. Forking is
safe here and only here: this process has one thread, no CUDA, and none of its host's state.

It ends when its host does, and the kernel ends its workers with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from guided_plugin.worker.child.process import main as serve_engine

_PR_SET_PDEATHSIG = 1
_HEAVY = ("numpy", "xgrammar", "llguidance")


class _Server:
    def __init__(self, control: socket.socket, host: int) -> None:
        self._control = control
        self._host = host
        self._children: dict[int, int | None] = {}
        """Process id to the descriptor that shows its end, where the kernel has such."""

    def serve(self) -> None:
        """Fork and reap until the host hangs up."""
        while os.getppid() == self._host:
            handles = [fd for fd in self._children.values() if fd is not None]
            # Without a descriptor for each child, look at them often; a lost host is noticed anyway.
            watched = len(handles) == len(self._children)
            control = self._control.fileno()
            ready, _, _ = select.select([control, *handles], [], [], 1.0 if watched else 0.02)
            self._reap()
            if control in ready and not self._answer():
                return

    def close(self) -> None:
        """End all workers, and reap them: whoever inherits them may never do it."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _answer(self) -> bool:
        try:
            command, descriptors, _, _ = socket.recv_fds(self._control, 64, 2)
        except ConnectionResetError:  # the host left notices unread
            return False
        if not command:
            return False
        channel, region = descriptors
        pid = os.fork()
        if pid == 0:
            self._become_worker(channel, region)
        os.close(channel)
        os.close(region)
        handle = None
        with contextlib.suppress(AttributeError, OSError):
            handle = os.pidfd_open(pid)
        self._children[pid] = handle
        answer = json.dumps({"number": int(command), "pid": pid}).encode()
        socket.send_fds(self._control, [answer], [] if handle is None else [handle])
        return True

    def _become_worker(self, channel: int, region: int) -> NoReturn:
        code = 1
        try:
            server = os.getppid()
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != server:  # it ended before the kernel was told
                os._exit(1)
            self._control.close()
            for handle in self._children.values():
                if handle is not None:
                    os.close(handle)
            code = serve_engine(channel, region)
        finally:
            os._exit(code)

    def _reap(self) -> None:
        for pid, handle in list(self._children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self._children[pid]
            if handle is not None:
                os.close(handle)
            notice = json.dumps({"exited": pid, "code": os.waitstatus_to_exitcode(status)}).encode()
            # Only words for a log: a host that doesn't listen must not stop the next fork.
            with contextlib.suppress(OSError):
                self._control.send(notice, socket.MSG_DONTWAIT)


def main(descriptor: int, host: int) -> None:
    """Serve the host at the other end of a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host to handle
    for module in _HEAVY:
        # Whatever is wrong with one is said by the backend that needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as control, contextlib.closing(_Server(control, host)) as server:
        server.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
