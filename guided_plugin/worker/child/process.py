"""The grammar worker's process: from its fork to its end. Depends on the worker's loop; no CUDA."""

from __future__ import annotations

import ctypes
import gc
import select
import socket
import sys
import time
import traceback
from contextlib import closing
from typing import Any, NoReturn

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.plugins import Plugins
from guided_plugin.worker.child.compiles import Compiles
from guided_plugin.worker.child.loop import GrammarWorker, WorkerRetires
from guided_plugin.worker.layout import Region
from guided_plugin.worker.messages import Crashed, Ready, Retires

_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29

_LOOK_SECONDS = 0.02
"""How often a spare worker looks whether its backends are there."""


def main(channel_fd: int, region_fd: int) -> int:
    """Serve an engine until it hangs up; the exit code."""
    with closing(Channel(socket.socket(fileno=channel_fd))) as channel:
        try:
            _serve(channel, region_fd)
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


def _serve(channel: Channel, region_fd: int) -> NoReturn:
    prepare, *received = channel.wait()
    _name("guided-spare" if prepare.spare else "guided-worker")
    sys.path.extend(entry for entry in prepare.sys_path if entry not in sys.path)
    sys.setswitchinterval(5e-4)  # compile threads give way to the step in half a millisecond
    # Let short sleeps be short: by default the kernel rounds them up by 50 microseconds.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    plugins = Plugins(disabled=prepare.config.disabled_plugins, entry_points=prepare.entry_points)
    compiler = GrammarCompiler(prepare.vocabulary, config=prepare.config, plugins=plugins)
    with closing(Compiles(compiler, channel, spare=prepare.spare)) as compiles:
        channel.send(Ready(frozenset(plugins.backends), frozenset(plugins.lowerings)))
        gc.collect()
        gc.freeze()  # a full collection of the vocabulary would take longer than a step
        compiles.warm_up()
        hello, *received = received or _turn(channel, compiles)
        _name("guided-worker")
        with closing(Region(region_fd, hello.shape, hello.identity)) as region:
            GrammarWorker(channel, region, hello, compiler, compiles, received).run()


def _turn(channel: Channel, compiles: Compiles) -> list[Any]:
    """Wait until the engine needs this worker: the messages that say so."""
    while compiles.warming:
        if received := channel.receive():
            return received
        compiles.report_warm()
        channel.flush()
        select.select([channel], [], [], _LOOK_SECONDS)
    return channel.wait()


def _name(name: str) -> None:
    """What `ps` and `top` show; the kernel takes 15 bytes."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)
