"""The attacks, one function each, in the table `ATTACKS`. Each runs until it is
cancelled.

Attacks with specs keep four requests going; those with signals wait `pause` seconds
between one and the next. Depends on hostile and target.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence

import psutil

from benchmarks.server import asks, hostile, judges
from benchmarks.server.asks import COMPLETIONS, completion, guided, small_object
from benchmarks.server.target import Target, forever

Attack = Callable[[Target], Awaitable[None]]

_AT_ONCE = 4
_FLOOD = 16
_MIB_CLIENTS = 12
_SCHEMAS = 10_000
_QUICK_PAUSE = 2.0


async def _bombs(target: Target, makers: Sequence[hostile.Maker]) -> None:
    numbers = itertools.count()

    async def client() -> None:
        while True:
            number = next(numbers)
            await target.ask(hostile.bomb(makers[number % len(makers)](number)))

    await forever(*(client() for _ in range(_AT_ONCE)))


async def compile_bombs(target: Target) -> None:
    """Specs whose compiles take long, or much memory."""
    await _bombs(target, hostile.COMPILE_BOMBS)


async def mask_bombs(target: Target) -> None:
    """Grammars that compile at once, and whose masks cost much."""
    await _bombs(target, hostile.mask_bombs())


async def lexer_bombs(target: Target) -> None:
    """Grammars whose lexers have very many states."""
    await _bombs(target, hostile.lexer_bombs())


async def suite(target: Target) -> None:
    """Every hostile spec of the tests, in turn."""
    turns = itertools.cycle(hostile.suite())

    async def client() -> None:
        while True:
            await target.ask(hostile.bomb(next(turns)))

    await forever(*(client() for _ in range(_AT_ONCE)))


async def big_bodies(target: Target) -> None:
    """Bodies of 10 MB."""
    turns = itertools.cycle(hostile.big_bodies())

    async def client() -> None:
        while True:
            await target.send(COMPLETIONS, next(turns))

    await forever(*(client() for _ in range(_AT_ONCE)))


def _mib_bodies(name: str) -> Attack:
    async def attack(target: Target) -> None:
        """Twelve clients that send bodies of a mebibyte, each another one."""
        turns = itertools.cycle(hostile.mib_bodies(name))
        numbers = itertools.count(10 ** len(hostile.NUMBER))

        async def client() -> None:
            while True:
                body = next(turns).replace(hostile.NUMBER, str(next(numbers)).encode())
                await target.send(COMPLETIONS, body)

        await forever(*(client() for _ in range(_MIB_CLIENTS)))

    return attack


async def many_schemas(target: Target) -> None:
    """10,000 distinct small schemas, as fast as they are answered."""
    rng = random.Random(7)
    left = itertools.count()

    async def client() -> None:
        while next(left) < _SCHEMAS:
            schema = small_object(rng)
            judge = judges.of_schema(schema)
            await target.ask(
                completion(
                    "flood", judge, tokens=100, **guided({"json_schema": schema})
                )
            )
        await asyncio.Event().wait()

    await forever(*(client() for _ in range(_FLOOD)))


async def leavers(target: Target) -> None:
    """Clients that leave while their schemas compile, or soon afterwards."""
    rng = random.Random(8)

    async def client() -> None:
        while True:
            await target.ask(rng.choice(asks.MIXED)(rng), leaves=rng.expovariate(10.0))

    await forever(*(client() for _ in range(_FLOOD)))


async def _every(
    target: Target, pause: float, number: signal.Signals, *roles: str
) -> None:
    await asyncio.sleep(1.0)
    while True:
        target.signal(number, *roles)
        await asyncio.sleep(pause)


async def kill_worker(target: Target) -> None:
    """kill -9 of the grammar worker."""
    await _every(target, target.pause, signal.SIGKILL, "worker")


async def kill_template(target: Target) -> None:
    """kill -9 of the templates, which ends their children too."""
    await _every(target, target.pause, signal.SIGKILL, "template")


async def kill_helpers(target: Target) -> None:
    """kill -9 of all compile processes, while new schemas come."""
    await forever(
        _every(target, _QUICK_PAUSE, signal.SIGKILL, "helpers"), many_schemas(target)
    )


async def kill_all(target: Target) -> None:
    """kill -9 of the templates, the worker and all compile processes at once."""
    await _every(target, target.pause, signal.SIGKILL, "template", "worker", "helpers")


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
    await forever(_stopped(target, 4 * _QUICK_PAUSE, "helpers"), many_schemas(target))


async def stop_template(target: Target) -> None:
    """SIGSTOP of the templates, then kill -9 of the worker: the next one can't be
    forked."""

    async def worker() -> None:
        await asyncio.sleep(1.5)
        while True:
            target.signal(signal.SIGKILL, "worker")
            await asyncio.sleep(target.pause)

    await forever(_stopped(target, target.pause - 0.5, "template"), worker())


async def full_shm(target: Target) -> None:
    """/dev/shm without a free byte, and kill -9 of the worker."""
    filler = target.shm / "filler"
    try:
        with filler.open("wb") as file:
            space = os.statvfs(target.shm)
            os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize)
        await _every(target, target.pause, signal.SIGKILL, "worker")
    finally:
        filler.unlink(missing_ok=True)


ATTACKS: dict[str, Attack] = {
    attack.__name__.replace("_", "-"): attack
    for attack in (
        *(
            compile_bombs,
            mask_bombs,
            lexer_bombs,
            suite,
            big_bodies,
            many_schemas,
            leavers,
        ),
        *(kill_worker, kill_template, kill_helpers, kill_all),
        *(stop_worker, stop_template, stop_helpers, full_shm),
    )
} | {name: _mib_bodies(name) for name in hostile.MIB_BODIES}
