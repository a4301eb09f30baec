"""The processes of a server by role, and what they take, from /proc. Depends on psutil.

Roles: `frontend` (the API server), `engine` (all of vLLM's other processes), and those
of the plugin: the `template`s of the frontend and of the engine, the grammar `worker`
and `helpers` (compile processes, of the frontend and of the worker).
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections import Counter

import psutil

from benchmarks.harness import Json

ROLES = ("frontend", "engine", "template", "worker", "helpers")
MEASURES = ("memory_mb", "threads", "descriptors", "processes")


def by_role(server: int) -> dict[str, list[psutil.Process]]:
    """The processes below a server, and itself."""
    found: dict[str, list[psutil.Process]] = {role: [] for role in ROLES}
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(server)
        found["frontend"].append(top)
        for child in top.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                role = _role(child)
                if role:
                    found[role].append(child)
    return found


def _role(process: psutil.Process) -> str:
    command = process.cmdline()
    text = " ".join(command)
    if not command or "resource_tracker" in text:
        return ""
    if "guided_plugin.compiling.template_process" in text:
        # Workers and helpers are forks of the template: they have the same command
        # line.
        return {"guided-template": "template", "guided-worker": "worker"}.get(
            process.name(), "helpers"
        )
    return "engine"


def usage(process: psutil.Process) -> dict[str, float]:
    """What one process takes: memory of its own, threads, descriptors."""
    memory = process.memory_info()
    return {
        "memory_mb": (memory.rss - memory.shared) / 2**20,
        "threads": process.num_threads(),
        "descriptors": process.num_fds(),
        "processes": 1,
    }


class Watch:
    """Samples the processes of a server in a thread, until it is left."""

    def __init__(self, server: int, seconds: float = 1.0) -> None:
        self._server = server
        self._seconds = seconds
        self._samples: list[dict[str, Counter[str]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self._samples.append(self._sample())

    def _sample(self) -> dict[str, Counter[str]]:
        sums: dict[str, Counter[str]] = {role: Counter() for role in ROLES}
        for role, processes in by_role(self._server).items():
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    sums[role].update(usage(process))
        return sums

    def figures(self) -> Json:
        """For each role and measure the medians of the first and the last fifth of the
        time, and the peak."""
        found: Json = {}
        fifth = max(1, len(self._samples) // 5)
        for role in ROLES:
            found[role] = {}
            for name in MEASURES:
                values = [one[role][name] for one in self._samples]
                if any(values):
                    first = statistics.median(values[:fifth])
                    last = statistics.median(values[-fifth:])
                    found[role][name] = {
                        "start": round(first, 1),
                        "peak": round(max(values), 1),
                        "end": round(last, 1),
                    }
        return found
