"""The processors that this process and its children may use, and for how much time.
Depends on nothing.

Hosts bind their processes and threads to processors, and children inherit that: with
vLLM's CPU build a grammar worker would share one processor with a thread that never
rests. So children get what this process had when the package was imported, and what its
parent has: vLLM binds a rank before the rank imports anything. In a container the
processors may be many and the time on them little: the quota of the control groups
counts.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_AT_IMPORT = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None

BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
"""Variables by which OpenMP binds a process that loads it, also one that was given more
processors before."""

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")

_NICE = 5
"""Compiles give way to engines and their workers; but on a busy machine they must end
within their time."""


def give_way() -> None:
    """Lower the priority of the calling thread, and of those that it starts from now
    on."""
    with contextlib.suppress(OSError, AttributeError):
        thread = threading.get_native_id()
        os.setpriority(
            os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE
        )


def count() -> int:
    """Return the number of processors this process may keep busy: by its affinity, and
    by the quota of its control groups."""
    quota = _quota_at_first()
    return affine() if quota is None else max(1, min(affine(), math.ceil(quota)))


def affine() -> int:
    """Return the number of processors it may run on, whatever the quota is."""
    return len(_AT_IMPORT) if _AT_IMPORT is not None else os.cpu_count() or 1


def quota() -> float | None:
    """The processors' worth of time that this process's control groups allow now; None
    without a limit."""
    found = []
    for folder in _groups():
        try:
            if (folder / "cpu.max").is_file():
                allowed, period = (folder / "cpu.max").read_text().split()
            else:
                allowed = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
            if allowed != "max" and float(allowed) > 0:
                found.append(float(allowed) / float(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(found, default=None)


def release() -> None:
    """Let the calling thread, and the processes that it starts, use all that the
    program was given."""
    if _AT_IMPORT is None:
        return
    import multiprocessing  # 4 ms, which the command line saves

    allowed = set(_AT_IMPORT)
    host = multiprocessing.parent_process()
    # it has ended, or the machine took processors away
    with contextlib.suppress(OSError):
        if host is not None and host.pid is not None:
            allowed |= os.sched_getaffinity(host.pid)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, allowed)


@functools.cache
def _quota_at_first() -> float | None:
    """Read once: `count` is asked for often."""
    return quota()


def _groups() -> Iterator[Path]:
    """The groups of this process and those above, of both versions. In a container its
    own is the root."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        lines = []
    roots = [(_CGROUPS, "/"), (_CGROUPS / "cpu", "/")]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            roots.append((_CGROUPS, path))
        elif "cpu" in controllers.split(","):
            roots.append((_CGROUPS / "cpu", path))
    for root, path in roots:
        folder = root / path.lstrip("/")
        while folder != root and root in folder.parents:
            yield folder
            folder = folder.parent
        yield root
