"""A soak, and one attack: load on a running server, and its result as plain data.
Depends on the clients."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from benchmarks.harness import Json
from benchmarks.server.attacks import attacked, prepare
from benchmarks.server.clients import Crowd, asked, chaos_crowd, ready, soak_crowd
from benchmarks.server.launch import Server
from benchmarks.server.processes import Watch
from benchmarks.server.tally import figures

_UNREADY = "the server answers no guided request"


def _load(
    server: Server, crowds: Sequence[Crowd], seconds: float, seed: int
) -> tuple[list[Any], Json]:
    with Watch(server.pid) as watch:
        outcomes = asyncio.run(asked(server.url, crowds, seconds, seed))
    return outcomes, watch.figures()


def soak(server: Server, *, clients: int, seconds: float, seed: int = 0) -> Json:
    """Mixed requests of many clients."""
    if not asyncio.run(ready(server.url)):
        return {"failed": _UNREADY}
    preempted = server.metric("vllm:num_preemptions_total")
    start = time.monotonic()
    outcomes, processes = _load(server, soak_crowd(clients), seconds, seed)
    return {
        **figures(outcomes),
        "seconds": round(time.monotonic() - start, 1),
        "clients": clients,
        "preemptions": server.metric("vllm:num_preemptions_total") - preempted,
        "processes": processes,
        "server_alive": server.alive(),
    }


def chaos(
    server: Server,
    attack: str,
    *,
    clients: int,
    seconds: float,
    quiet: float,
) -> Json:
    """Ordinary streams without an attack, then with it."""
    if not asyncio.run(ready(server.url)):
        return {"failed": _UNREADY, "server_alive": server.alive()}
    crowd = chaos_crowd(clients)
    with ProcessPoolExecutor(1, get_context("spawn"), prepare) as pool:
        pool.submit(os.getpid).result()  # it has started
        before, _ = _load(server, crowd, quiet, 0)
        attacker = pool.submit(attacked, attack, server.url, server.pid, seconds)
        outcomes, processes = _load(server, crowd, seconds, 1)
        done = attacker.result()
    return {
        "quiet": figures(before),
        "attacked": figures(outcomes, done["kills"]),
        "attack": done,
        "processes": processes,
        "server_alive": server.alive(),
    }


def invalid(result: Json) -> int:
    """How many answers were wrong."""
    parts = [
        result,
        result.get("quiet", {}),
        result.get("attacked", {}),
    ]
    wrong: int = sum(part.get("ends", {}).get("invalid", 0) for part in parts)
    return wrong + len(result.get("attack", {}).get("invalid", ()))
