"""The template's process: imports the package, reads the vocabulary and builds
llguidance's tokenizers once, then forks grammar workers and compile helpers.

It never has a second thread: that makes forking safe, here and only here.

It ends when the process that started it does, and the kernel ends its children with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pickle
import select
import signal
import socket
from dataclasses import dataclass
from typing import NoReturn

from guided_plugin.compiling.chooser import Chooser
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.ipc.spawn import die_with
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

MODULE = "guided_plugin.compiling.template_process"

_BUILT = "llguidance"
"""The backend that is built before the forks: it starts no thread before its first
batch."""

_RARE = OutputSpec.json_schema(
    {"type": "array", "uniqueItems": True, "items": {"type": "string"}}
)
"""Its masks need the text of each token in each place of a JSON text."""

_ROLES = ("guided_plugin.compiling.helper_process", "guided_plugin.worker.child.loop")
"""The modules that children run."""

_PR_SET_NAME = 15


@dataclass(frozen=True, slots=True)
class Greeting:
    """Build what a template's children share."""

    vocabulary: Vocabulary
    config: GuidedConfig
    disabled_plugins: frozenset[str]
    entry_points: bool
    serves: bool = False
    """True if it builds what few specs need too: a second for a large vocabulary."""


class _Server:
    def __init__(
        self, control: socket.socket, host: int, built: Chooser | GuidedError
    ) -> None:
        self._host = host
        self._control = control
        self._built = built
        self._forks: dict[int, socket.socket] = {}
        """The socket to which the exit code of each child goes."""
        self._wakes, self._woken = socket.socketpair()
        """The end of a child wakes `serve`."""
        for end in (self._wakes, self._woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Fork and reap until the host hangs up."""
        while os.getppid() == self._host:
            # The second is for a host that has ended.
            ready, _, _ = select.select([self._control, self._woken], [], [], 1.0)
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            self._reap()
            if self._control in ready and not self._answer():
                return

    def close(self) -> None:
        """End all children, and reap them: the process that inherits them may never do
        it."""
        for pid in self._forks:
            os.kill(pid, signal.SIGKILL)
        for pid in self._forks:
            os.waitpid(pid, 0)

    def _answer(self) -> bool:
        """Fork what a message asks for; whether there was one."""
        try:
            role, descriptors, _, _ = socket.recv_fds(self._control, 256, 8)
        except ConnectionError:
            return False
        if not role:
            return False
        status, *others = descriptors
        module = importlib.import_module(role.decode())
        template = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(status)
            self._become(template, module, others)
        for descriptor in others:
            os.close(descriptor)
        self._forks[pid] = socket.socket(fileno=status)
        # nothing waits for it any more: it finds its channel closed
        with contextlib.suppress(OSError):
            self._forks[pid].send(str(pid).encode())
        return True

    def _become(
        self, template: int, module: object, descriptors: list[int]
    ) -> NoReturn:
        code = 1
        try:
            die_with(template)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._wakes, self._woken, *self._forks.values()):
                end.close()
            code = module.main(self._built, *descriptors)  # type: ignore[attr-defined]
        finally:
            os._exit(code)

    def _reap(self) -> None:
        for pid in list(self._forks):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            with self._forks.pop(pid) as told, contextlib.suppress(OSError):
                told.send(
                    str(os.waitstatus_to_exitcode(status)).encode(), socket.MSG_DONTWAIT
                )


def build(greeting: Greeting) -> Chooser | GuidedError:
    """The backends of a vocabulary, with what all requests need of it; or why there are
    none."""
    try:
        plugins = Plugins(
            disabled=greeting.disabled_plugins, entry_points=greeting.entry_points
        )
        chooser = Chooser(greeting.vocabulary, greeting.config, plugins)
        if _BUILT in plugins.backends:
            chooser.compile(_BUILT, OutputSpec.choice(["a"]))
            chooser.warm_up(_BUILT)
            if greeting.serves:
                with contextlib.suppress(GuidedError):  # a vocabulary without brackets
                    chooser.compile(_BUILT, _RARE)
    except GuidedError as error:
        return error
    return chooser


def main(control: socket.socket, host: int) -> None:
    """Serve the process at the other end of a socket."""
    die_with(host)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"guided-template", 0, 0, 0)
    _, (descriptor,), _, _ = socket.recv_fds(control, 64, 1)
    with open(descriptor, "rb") as file:
        file.seek(0)
        built = build(pickle.load(file))
    for role in _ROLES:
        importlib.import_module(role)
    gc.collect()
    gc.freeze()
    with control, contextlib.closing(_Server(control, host, built)) as server:
        server.serve()
