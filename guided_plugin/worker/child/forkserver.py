"""Child process: imports once, then forks grammar workers on request. Never has a second thread.

What a worker imports takes seconds (xgrammar imports torch), a fork takes milliseconds: a worker that
died is replaced within the time of a step, and the next one fills the masks it owed. Forking is safe
here and only here: this process has one thread, no CUDA, and none of its host's state.

It ends when its host does, and the kernel ends its workers with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
from typing import NoReturn

from guided_plugin.ipc.spawn import die_with
from guided_plugin.plugins import BUILTIN_PLUGINS
from guided_plugin.worker.child.process import main as serve_engine

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
            # Without a descriptor for each child, poll them; the second is for a host that has ended.
            watched = len(handles) == len(self._children)
            control = self._control.fileno()
            ready, _, _ = select.select([control, *handles], [], [], 1.0 if watched else 0.02)
            self._reap()
            if control in ready and not self._answer():
                return

    def close(self) -> None:
        """End all workers, and reap them: the process that inherits them may never do it."""
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _answer(self) -> bool:
        try:
            command, descriptors, _, _ = socket.recv_fds(self._control, 64, 2)
        except ConnectionResetError:  # the host closed its end with notices unread
            return False
        if not command:
            return False
        channel, region = descriptors
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(server, channel, region)
        os.close(channel)
        os.close(region)
        handle = None
        with contextlib.suppress(AttributeError, OSError):
            handle = os.pidfd_open(pid)
        self._children[pid] = handle
        answer = json.dumps({"number": int(command), "pid": pid}).encode()
        socket.send_fds(self._control, [answer], [] if handle is None else [handle])
        return True

    def _become_worker(self, server: int, channel: int, region: int) -> NoReturn:
        code = 1
        try:
            die_with(server)
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
            # For a log only: a host that doesn't read it must not stop the next fork.
            with contextlib.suppress(OSError):
                self._control.send(notice, socket.MSG_DONTWAIT)


def main(control: socket.socket, host: int) -> None:
    """Serve the host at the other end of a socket."""
    for module in (*_HEAVY, *BUILTIN_PLUGINS.values()):
        with contextlib.suppress(Exception):  # the backend that needs it tells what is wrong
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    with control, contextlib.closing(_Server(control, host)) as server:
        server.serve()
