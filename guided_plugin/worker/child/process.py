"""The grammar worker's process: from its fork to its end. Depends on the worker's loop; no CUDA."""

from __future__ import annotations

import ctypes
import socket
import sys
import time
import traceback
from contextlib import closing
from typing import NoReturn

from guided_plugin.compiling.chooser import Chooser
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.compiling.template_process import MODULE
from guided_plugin.errors import GuidedError
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.ipc.template import Template
from guided_plugin.worker.child.loop import GrammarWorker, WorkerRetires
from guided_plugin.worker.child.requests import Compiles
from guided_plugin.worker.layout import Region
from guided_plugin.worker.messages import Crashed, Ready, Retires

_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29


def main(built: Chooser | GuidedError, control_fd: int, channel_fd: int, region_fd: int) -> int:
    """Serve an engine until it hangs up; the exit code."""
    with closing(Channel(socket.socket(fileno=channel_fd))) as channel:
        try:
            if isinstance(built, GuidedError):
                raise built
            _serve(channel, region_fd, built, control_fd)
        except ChannelClosedError:
            return 0
        except WorkerRetires as wish:
            channel.send(Retires(str(wish)))
            channel.drain(time.monotonic() + 1.0)
            return 0
        except BaseException as error:
            if not isinstance(error, GuidedError):
                traceback.print_exc()
            channel.send(Crashed(str(error) if isinstance(error, GuidedError) else repr(error)))
            channel.drain(time.monotonic() + 1.0)
    return 1


def _serve(channel: Channel, region_fd: int, chooser: Chooser, control_fd: int) -> NoReturn:
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"guided-worker", 0, 0, 0)  # what `ps` and `top` show
    sys.setswitchinterval(5e-4)  # compile threads give way to the step in half a millisecond
    # Let short sleeps be short: by default the kernel rounds them up by 50 microseconds.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    plugins = chooser.plugins
    channel.send(Ready(frozenset(plugins.backends), frozenset(plugins.lowerings)))
    hello, *received = channel.wait()
    with socket.socket(fileno=control_fd) as control:
        built = chooser, Template(MODULE, None, control)
        compiler = GrammarCompiler(chooser.vocabulary, config=chooser.config, plugins=plugins, built=built)
        with closing(Region(region_fd, hello.shape, hello.identity)) as region:
            GrammarWorker(channel, region, hello, compiler, Compiles(compiler, channel), received).run()
