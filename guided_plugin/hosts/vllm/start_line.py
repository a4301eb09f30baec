"""One line in the log at the start of a frontend and of an engine: what the plugin does there.

Depends on config.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from guided_plugin._version import __version__
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError


def frontend_line(options: GuidedConfig, error: GuidedError | None, backends: Iterable[str]) -> str:
    """Of a process that takes requests. `error`: why nothing is guided, if nothing is."""
    take_over = f"take_over {_switch(options.take_over)}"
    if error is not None:
        return f"guided_plugin {__version__} is off in this frontend: {error}; {take_over}"
    helpers = f"compiles in at most {options.compile_processes} helper processes"
    if not options.isolate_compiles:
        helpers = "compiles in this process"
    return (
        f"guided_plugin {__version__} is on in this frontend: {take_over}, {helpers}, "
        f"backend {options.backend} of {_versions(backends)}"
    )


def engine_line(
    options: GuidedConfig,
    error: GuidedError | None,
    mode: str,
    requests: int,
    shared_bytes: int,
    *,
    leads: bool = True,
) -> str:
    """Of a process that runs an engine. `shared_bytes`: of the memory shared with a grammar worker or with
    other ranks. `leads`: whether the grammars are this rank's."""
    if error is not None:
        return f"guided_plugin {__version__} is off in this engine: {error}"
    where = "in a process of their own" if mode == "process" else "in the engine's thread"
    if not leads:
        where = "at rank 0"
    shared = f"{shared_bytes / 2**20:.1f} MiB of" if shared_bytes else "no"
    return (
        f"guided_plugin {__version__} is on in this engine: mode {mode} ({options.mode} is set), "
        f"grammars work {where}, {shared} shared memory, "
        f"at most {options.thread_count()} threads, {requests} requests"
    )


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _versions(backends: Iterable[str]) -> str:
    found = []
    for name in backends:
        with contextlib.suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
            continue
        found.append(name)
    return ", ".join(found) or "none"
