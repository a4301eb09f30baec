"""Attacks on a server, each in a process of its own, so that its work is not that of
the ordinary clients. Depends on bombs, clients, processes.

An attack runs until it is cancelled. Those with specs keep four requests going; those
with signals wait `pause` seconds between one and the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
import psutil

from benchmarks.harness import Json
from benchmarks.server import bombs, judges
from benchmarks.server.asks import (
    COMPLETIONS,
    MIXED,
    Ask,
    completion,
    guided,
    small_object,
)
from benchmarks.server.clients import connect, one
from benchmarks.server.processes import by_role

_AT_ONCE = 4
_FLOOD = 16
_SCHEMAS = 10_000


@dataclass(slots=True)
class Target:
    """A server under attack, and what was done to it."""

    session: aiohttp.ClientSession
    pid: int
    pause: float
    """Seconds between kills of workers: three within a minute, and the plugin refuses
    guided requests."""
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

    async def send(self, path: str, body: bytes) -> None:
        """A body as it is; its status counted."""
        headers = {"Content-Type": "application/json"}
        data = io.BytesIO(body)
        try:
            async with self.session.post(
                path,
                data=data,
                headers=headers,
            ) as response:
                text = await response.text()
                self.ends[f"status {response.status}"] += 1
                self.details[f"status {response.status}: {text[:60]}"] += 1
        except (aiohttp.ClientError, OSError) as error:
            self.ends["cut"] += 1
            self.details[repr(error)[:120]] += 1

    def signal(self, number: signal.Signals, *roles: str) -> list[psutil.Process]:
        """Send a signal to the processes of these roles; counted as a kill if there
        were any."""
        found = by_role(self.pid)
        processes = [process for role in roles for process in found[role]]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if processes:
            self.kills.append(time.monotonic())
        return processes

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
    await _clients(_AT_ONCE, lambda: target.send(COMPLETIONS, next(turns)))


async def many_schemas(target: Target) -> None:
    """10,000 distinct small schemas, as fast as they are answered."""
    rng = random.Random(7)
    left = itertools.count()

    async def turn() -> None:
        if next(left) >= _SCHEMAS:
            await asyncio.Event().wait()
        schema = small_object(rng)
        judge = judges.of_schema(schema)
        spec = guided({"json_schema": schema})
        await target.ask(completion("flood", judge, tokens=100, **spec))

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
        target.signal(signal.SIGKILL, "template", "worker", "helpers")
        await asyncio.sleep(target.pause)


async def stop_worker(target: Target) -> None:
    """SIGSTOP of the grammar worker, and SIGCONT if it is still there after the
    pause."""
    await asyncio.sleep(1.0)
    while True:
        stopped = target.signal(signal.SIGSTOP, "worker")
        try:
            await asyncio.sleep(target.pause)
        finally:
            for process in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()


_ALL: Sequence[Attack] = (
    compile_bombs,
    mask_bombs,
    big_bodies,
    many_schemas,
    leavers,
    kill_all,
    stop_worker,
)
ATTACKS = {attack.__name__.replace("_", "-"): attack for attack in _ALL}


def prepare() -> None:
    """What the process of an attack does before it begins."""
    with contextlib.suppress(OSError):
        os.nice(5)  # in earnest these clients are other machines
    bombs.big_bodies()  # what takes seconds to make


def attacked(name: str, url: str, pid: int, seconds: float, pause: float) -> Json:
    """Attack for some seconds; what was done."""

    async def run() -> Json:
        async with connect(url) as session:
            target = Target(session, pid, pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ATTACKS[name](target)
            return target.report()

    return asyncio.run(run())
