"""What an attack sees: the server and its processes, and what it did. Depends on
clients, processes."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.server.asks import Ask
from benchmarks.server.clients import one
from benchmarks.server.processes import by_role


class Skipped(Exception):
    """The attack can't be made here, and why."""


@dataclass(slots=True)
class Target:
    """A server under attack."""

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
        try:
            async with self.session.post(
                path, data=io.BytesIO(body), headers=headers
            ) as response:
                text = await response.text()
                self.ends[f"status {response.status}"] += 1
                if response.status != 200:
                    self.details[f"status {response.status}: {text[:120]}"] += 1
        except (aiohttp.ClientError, OSError) as error:
            self.ends["cut"] += 1
            self.details[repr(error)[:120]] += 1

    def found(self, *roles: str) -> list[psutil.Process]:
        """The processes of these roles that run now."""
        processes = by_role(self.pid)
        return [process for role in roles for process in processes[role]]

    def signal(
        self, number: signal.Signals, *roles: str, kill: bool = True
    ) -> list[psutil.Process]:
        """Send a signal to all of them; counted as a kill if there were any."""
        processes = self.found(*roles)
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if processes and kill:
            self.kills.append(time.monotonic())
        return processes

    @property
    def shm(self) -> Path:
        """/dev/shm as the server sees it. Raises Skipped where it is not the server's
        alone."""
        seen = Path(f"/proc/{self.pid}/root/dev/shm")
        try:
            alone = os.stat(seen).st_dev != os.stat("/dev/shm").st_dev
        except OSError as error:
            raise Skipped(f"the server's /dev/shm cannot be seen: {error}") from error
        if not alone:
            raise Skipped(
                "the server shares /dev/shm with this machine: it needs a mount namespace (root)"
            )
        return seen

    def report(self) -> dict[str, Any]:
        """What was done, as plain data."""
        return {
            "ends": dict(self.ends),
            "details": dict(self.details.most_common(12)),
            "kills": self.kills,
            "invalid": self.invalid[:20],
        }


async def forever(*tasks: Any) -> None:
    """Run until cancelled."""
    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(task)
