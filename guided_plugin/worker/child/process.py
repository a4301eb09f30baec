"""The grammar worker's process: from its fork to its end. Depends on the worker's loop; no CUDA."""

from __future__ import annotations

import ctypes
import gc
import socket
import sys
import time
import traceback
from contextlib import closing
from typing import NoReturn

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError
from guided_plugin.ipc.channel import Channel, ChannelClosedError
from guided_plugin.plugins import Plugins
from guided_plugin.worker.child.loop import GrammarWorker, WorkerRetires
from guided_plugin.worker.layout import Region
from guided_plugin.worker.messages import Crashed, Ready, Retires

_PR_SET_TIMERSLACK = 29


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
    hello, *rest = channel.wait()
    sys.path.extend(entry for entry in hello.sys_path if entry not in sys.path)
    sys.setswitchinterval(5e-4)  # compile threads give way to the step in half a millisecond
    # Let short sleeps be short: by default the kernel rounds them up by 50 microseconds.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    with closing(Region(region_fd, hello.shape, hello.identity)) as region:
        plugins = Plugins(disabled=hello.config.disabled_plugins, entry_points=hello.entry_points)
        compiler = GrammarCompiler(hello.vocabulary, config=hello.config, plugins=plugins)
        with closing(GrammarWorker(channel, region, hello, compiler, rest)) as worker:
            channel.send(Ready(frozenset(plugins.backends), frozenset(plugins.lowerings)))
            gc.collect()
            gc.freeze()  # a full collection of the vocabulary would take longer than a step
            worker.run()
