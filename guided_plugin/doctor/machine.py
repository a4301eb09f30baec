"""Processors and shared memory, against what a configuration needs."""

from __future__ import annotations

import os
from collections.abc import Iterator

from guided_plugin.config import GuidedConfig
from guided_plugin.doctor.finding import Finding, Setup
from guided_plugin.errors import ConfigError
from guided_plugin.ipc import processors
from guided_plugin.worker import layout

_MIB = 1 << 20


def processor_time(setup: Setup) -> Iterator[Finding]:
    """How many processors there are, by affinity and by quota, and whether the threads fit."""
    count, machine = processors.affine(), os.cpu_count() or 1
    quota = processors.quota()
    bound = "" if count == machine else f" of {machine} (affinity)"
    limited = "" if quota is None else f", {quota:g} processors of time (cgroup quota)"
    yield Finding("ok", f"{count} processors{bound}{limited}")
    try:
        threads = GuidedConfig.from_environment().thread_count()
    except ConfigError:
        return  # the section on options tells
    if quota is not None and threads > max(1.0, quota):
        fit = max(1, int(quota * 3 / 4))
        yield Finding(
            "problem",
            f"{threads} threads fill masks in {quota:g} processors of time: they are throttled",
            f"GUIDED_PLUGIN='{{\"threads\": {fit}}}', or more processors for the container",
        )
    if min(count, quota or count) < 2:
        what = "with mode process the engine and the grammar worker share one processor"
        yield Finding("note", what, "give it two, or set mode to inline")


def shared_memory(setup: Setup) -> Iterator[Finding]:
    """Whether a grammar worker's memory fits."""
    shape = layout.Shape(setup.requests, (setup.vocabulary + 31) // 32, setup.drafts)
    needed = shape.size
    wanted = (
        f"{needed / _MIB:.1f} MiB for {setup.requests} requests, {setup.vocabulary} tokens and "
        f"{setup.drafts} drafts"
    )
    remedy = f"containers: --shm-size={max(64, 2 * needed // _MIB)}m; or set mode to inline"
    try:
        found = os.statvfs(layout.DIRECTORY)
    except OSError as error:
        yield Finding("problem", f"{layout.DIRECTORY}: {error.strerror}", "mount a tmpfs there; " + remedy)
        return
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    what = f"{layout.DIRECTORY}: {free / _MIB:.1f} of {size / _MIB:.1f} MiB are free, a worker needs {wanted}"
    if not os.access(layout.DIRECTORY, os.W_OK | os.X_OK):
        yield Finding("problem", f"{layout.DIRECTORY} may not be written", "run as a user who may; " + remedy)
    elif free < needed:
        yield Finding("problem", what, remedy)
    else:
        yield Finding("ok", what)
