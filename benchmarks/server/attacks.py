"""Attacks on a server, each in a process of its own, so that its work is not that of
the ordinary clients. Depends on bombs, clients, processes.

An attack runs until it is cancelled. Those with specs keep four requests going.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
import psutil

from benchmarks.harness import Json
from benchmarks.server import bombs
from benchmarks.server.asks import (
    MIXED,
    Ask,
    document,
    small_object,
)
from benchmarks.server.clients import connect, one
from benchmarks.server.processes import by_role

_AT_ONCE = 4
_FLOOD = 16
_SCHEMAS = 10_000
_PAUSE = 31.0
"""Seconds between kills of workers: three within a minute, and the plugin refuses
guided requests."""


@dataclass(slots=True)
class Target:
    """A server under attack, and what was done to it."""

    session: aiohttp.ClientSession
    pid: int
    ends: Counter[str] = field(default_factory=Counter)
    details: Counter[str] = field(default_factory=Counter)
    kills: list[float] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)

    async def ask(self, ask: Ask, *, leaves: float | None = None) -> None:
        """One request, its outcome counted."""
        outcome = await one(self.session, ask, leaves=leaves)
        self.ends[outcome.end] += 1
        if outcome.end == "invalid":
            self.invalid.append(outcome.detail)
        elif outcome.detail:
            self.details[f"{outcome.end}: {outcome.detail[:120]}"] += 1

    def kill(self, *roles: str) -> None:
        """kill -9 of the processes of these roles."""
        found = by_role(self.pid)
        for process in itertools.chain(*(found[role] for role in roles)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.kills.append(time.monotonic())

    def report(self) -> Json:
        """What was done, as plain data."""
        return {
            "ends": dict(self.ends),
            "details": dict(self.details.most_common(12)),
            "kills": self.kills,
            "invalid": self.invalid[:20],
        }


Attack = Callable[[Target], Awaitable[None]]


async def _clients(count: int, turn: Callable[[], Awaitable[None]]) -> None:
    """Clients that do the same, each again and again."""

    async def client() -> None:
        while True:
            await turn()

    await asyncio.gather(*(client() for _ in range(count)))


async def _bombs(target: Target, forms: Sequence[Json]) -> None:
    turns = itertools.cycle(forms)
    numbers = itertools.count()
    await _clients(
        _AT_ONCE,
        lambda: target.ask(bombs.ask(bombs.varied(next(turns), next(numbers)))),
    )


async def compile_bombs(target: Target) -> None:
    """Every hostile spec of the tests: most take long to compile, or much memory."""
    await _bombs(target, bombs.hostile_specs())


async def mask_bombs(target: Target) -> None:
    """Grammars that compile at once, and whose masks cost much."""
    await _bombs(target, bombs.MASK_BOMBS)


async def big_bodies(target: Target) -> None:
    """Bodies of 10 MB."""
    turns = itertools.cycle(bombs.big_bodies())
    await _clients(_AT_ONCE, lambda: target.ask(next(turns)))


async def many_schemas(target: Target) -> None:
    """10,000 distinct small schemas, as fast as they are answered."""
    rng = random.Random(7)
    left = itertools.count()

    async def turn() -> None:
        if next(left) >= _SCHEMAS:
            await asyncio.Event().wait()
        await target.ask(document("flood", small_object(rng), tokens=100))

    await _clients(_FLOOD, turn)


async def leavers(target: Target) -> None:
    """Clients that leave while their schemas compile, or soon afterwards."""
    rng = random.Random(8)
    await _clients(
        _FLOOD,
        lambda: target.ask(rng.choice(MIXED)(rng), leaves=rng.expovariate(10.0)),
    )


async def kill_all(target: Target) -> None:
    """kill -9 of the templates, the worker and all compile processes at once."""
    await asyncio.sleep(1.0)
    while True:
        target.kill("template", "worker", "helpers")
        await asyncio.sleep(_PAUSE)


_ALL: Sequence[Attack] = (
    compile_bombs,
    mask_bombs,
    big_bodies,
    many_schemas,
    leavers,
    kill_all,
)
ATTACKS = {attack.__name__.replace("_", "-"): attack for attack in _ALL}


def prepare() -> None:
    """What the process of an attack does before it begins."""
    with contextlib.suppress(OSError):
        os.nice(5)  # in earnest these clients are other machines
    bombs.big_bodies()  # what takes seconds to make


def attacked(name: str, url: str, pid: int, seconds: float) -> Json:
    """Attack for some seconds; what was done."""

    async def run() -> Json:
        async with connect(url) as session:
            target = Target(session, pid)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ATTACKS[name](target)
            return target.report()

    return asyncio.run(run())
