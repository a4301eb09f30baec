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
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

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
from benchmarks.server.launch import Server
from benchmarks.server.processes import by_role

_AT_ONCE = 4
_FLOOD = 16
_SCHEMAS = 10_000
_QUICK_PAUSE = 2.0
_START_SECONDS = 60.0


class Skipped(Exception):
    """The attack can't be made here, and why."""


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


async def _killed(target: Target, pause: float, *roles: str) -> None:
    await asyncio.sleep(1.0)
    while True:
        target.signal(signal.SIGKILL, *roles)
        await asyncio.sleep(pause)


async def kill_worker(target: Target) -> None:
    """kill -9 of the grammar worker."""
    await _killed(target, target.pause, "worker")


async def kill_template(target: Target) -> None:
    """kill -9 of the templates, which ends their children too."""
    await _killed(target, target.pause, "template")


async def kill_helpers(target: Target) -> None:
    """kill -9 of all compile processes, while new schemas come."""
    await asyncio.gather(_killed(target, _QUICK_PAUSE, "helpers"), many_schemas(target))


async def kill_all(target: Target) -> None:
    """kill -9 of the templates, the worker and all compile processes at once."""
    await _killed(target, target.pause, "template", "worker", "helpers")


async def _stopped(target: Target, pause: float, *roles: str) -> None:
    """SIGSTOP, and SIGCONT of what is still there after the pause."""
    await asyncio.sleep(1.0)
    while True:
        stopped = target.signal(signal.SIGSTOP, *roles)
        try:
            await asyncio.sleep(pause)
        finally:
            for process in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()


async def stop_worker(target: Target) -> None:
    """SIGSTOP of the grammar worker."""
    await _stopped(target, target.pause, "worker")


async def stop_helpers(target: Target) -> None:
    """SIGSTOP of the compile processes, while new schemas come."""
    pause = 4 * _QUICK_PAUSE
    await asyncio.gather(_stopped(target, pause, "helpers"), many_schemas(target))


async def stop_template(target: Target) -> None:
    """SIGSTOP of the templates, then kill -9 of the worker: the next one can't be
    forked."""
    await asyncio.gather(
        _stopped(target, target.pause - 0.5, "template"),
        _killed(target, target.pause, "worker"),
    )


async def full_shm(target: Target) -> None:
    """/dev/shm without a free byte, and kill -9 of the worker."""
    folder = Path(f"/proc/{target.pid}/root/dev/shm")
    try:
        shared = folder.stat().st_dev == os.stat("/dev/shm").st_dev
    except OSError as error:
        raise Skipped(f"the server's /dev/shm cannot be seen: {error}") from error
    if shared:
        raise Skipped("the server shares /dev/shm with this machine: it needs root")
    filler = folder / "filler"
    try:
        with filler.open("wb") as file:
            space = os.statvfs(folder)
            os.posix_fallocate(
                file.fileno(),
                0,
                space.f_bavail * space.f_frsize,
            )
        await _killed(target, target.pause, "worker")
    finally:
        filler.unlink(missing_ok=True)


_ALL: Sequence[Attack] = (
    compile_bombs,
    mask_bombs,
    big_bodies,
    many_schemas,
    leavers,
    kill_worker,
    kill_template,
    kill_helpers,
    kill_all,
    stop_worker,
    stop_helpers,
    stop_template,
    full_shm,
)
ATTACKS = {attack.__name__.replace("_", "-"): attack for attack in _ALL}


class Attacker:
    """The process that attacks a server for some seconds."""

    def __init__(self, name: str, server: Server, seconds: float, pause: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        given = theirs, name, server.url, server.pid, seconds, pause
        self._process = context.Process(target=_attack, args=given, daemon=True)
        self._process.start()
        theirs.close()
        if not self._pipe.poll(_START_SECONDS) or self._pipe.recv() != "ready":
            self._process.kill()
            raise RuntimeError(f"the process of the attack {name} did not start")

    def begin(self) -> None:
        """Let it attack."""
        self._pipe.send("begin")

    def end(self, seconds: float = 60.0) -> Json:
        """Wait until it is over; what it did."""
        done: Json = {"failed": "the process of the attack did not report"}
        with contextlib.suppress(EOFError):
            if self._pipe.poll(seconds):
                done = self._pipe.recv()
        self._process.kill()
        self._process.join()
        return done


def _attack(
    pipe: Connection, name: str, url: str, pid: int, seconds: float, pause: float
) -> None:
    """Wait for the word, and attack."""
    with contextlib.suppress(OSError):
        os.nice(5)  # in earnest these clients are other machines
    bombs.big_bodies()  # what takes seconds to make
    pipe.send("ready")
    pipe.recv()
    pipe.send(
        asyncio.run(
            _attacked(
                ATTACKS[name],
                url,
                pid,
                seconds,
                pause,
            )
        )
    )


async def _attacked(
    attack: Attack, url: str, pid: int, seconds: float, pause: float
) -> Json:
    async with connect(url) as session:
        target = Target(session, pid, pause)
        try:
            async with asyncio.timeout(seconds):
                await attack(target)
        except TimeoutError:
            pass
        except Skipped as why:
            return {**target.report(), "skipped": str(why)}
        return target.report()
