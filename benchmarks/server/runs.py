"""A soak, and one attack: load on a running server, and its result as plain data.
Depends on the clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import Json
from benchmarks.server.attacks import Attacker
from benchmarks.server.clients import Crowd, asked, chaos_crowd, ready, soak_crowd
from benchmarks.server.launch import Server
from benchmarks.server.processes import Watch
from benchmarks.server.tally import figures, worse


def _load(
    server: Server, crowds: Sequence[Crowd], seconds: float, seed: int
) -> tuple[list[Any], Json]:
    with Watch(server.pid) as watch:
        outcomes = asyncio.run(asked(server.url, crowds, seconds, seed))
    return outcomes, watch.figures()


def soak(server: Server, *, clients: int, seconds: float, seed: int = 0) -> Json:
    """Mixed requests of many clients."""
    if not asyncio.run(ready(server.url)):
        return {"failed": "the server answers no guided request"}
    preempted = server.metric("vllm:num_preemptions_total")
    start = time.monotonic()
    outcomes, processes = _load(
        server,
        soak_crowd(clients),
        seconds,
        seed,
    )
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
    pause: float = 31.0,
    seed: int = 0,
) -> Json:
    """Ordinary streams without an attack, then with it."""
    if not asyncio.run(ready(server.url)):
        return {
            "failed": "the server answers no guided request",
            "server_alive": server.alive(),
        }
    attacker = Attacker(attack, server, seconds, pause)
    before, _ = _load(
        server,
        chaos_crowd(clients),
        quiet,
        seed,
    )
    attacker.begin()
    outcomes, processes = _load(
        server,
        chaos_crowd(clients),
        seconds,
        seed + 1,
    )
    done = attacker.end()
    result: Json = {
        "quiet": figures(before),
        "attacked": figures(outcomes, done.get("kills", ())),
        "attack": done,
        "processes": processes,
        "server_alive": server.alive(),
    }
    result["worse"] = worse(result["attacked"], result["quiet"])
    if done.get("invalid"):
        result["worse"].append(
            f"{len(done['invalid'])} invalid answers to clients of the attack"
        )
    if not result["server_alive"]:
        result["worse"].append("the server does not answer any more")
    return result


def invalid(result: Json) -> int:
    """How many answers were wrong."""
    parts = [
        result,
        result.get("quiet", {}),
        result.get("attacked", {}),
    ]
    wrong: int = sum(part.get("ends", {}).get("invalid", 0) for part in parts)
    return wrong + len(result.get("attack", {}).get("invalid", ()))
