"""Ordinary clients of a server: one request and its outcome, and clients that ask one
after the other.

Depends on aiohttp, asks, tally.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from benchmarks.harness import Json
from benchmarks.server.asks import LONG, MIXED, Ask, Make, small_schema
from benchmarks.server.tally import Outcome

_PATIENCE = 120.0
"""Seconds without a word after which a client gives up: the answer is lost."""


@dataclass(slots=True)
class _Answer:
    text: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)
    reason: str | None = None
    error: str = ""
    tokens: int = 0

    def take(self, part: Json) -> None:
        """Add an answer, or one part of a stream."""
        if part.get("error") is not None:
            self.error = json.dumps(part["error"])[:300]
        self.tokens = (part.get("usage") or {}).get("completion_tokens", self.tokens)
        for choice in part.get("choices", ()):
            said = choice.get("delta") or choice.get("message") or {}
            self.text += choice.get("text") or said.get("content") or ""
            for index, call in enumerate(said.get("tool_calls") or ()):
                ours = self.calls.setdefault(call.get("index", index), ["", ""])
                function = call.get("function") or {}
                ours[0] += function.get("name") or ""
                ours[1] += function.get("arguments") or ""
            self.reason = choice.get("finish_reason") or self.reason

    def judged(self, ask: Ask) -> tuple[str, str]:
        """How it ended."""
        if self.error or self.reason in ("error", "abort"):
            return "told", self.error or str(self.reason)
        if self.reason is None:
            return "cut", "a stream without finish_reason"
        if self.reason == "length" or self.tokens >= ask.body["max_tokens"]:
            return "length", ""
        wrong = ask.judge(
            self.text, [(name, arguments) for name, arguments in self.calls.values()]
        )
        return ("invalid", wrong) if wrong else ("valid", "")


async def one(
    session: aiohttp.ClientSession,
    ask: Ask,
    *,
    stream: bool = True,
    leaves: float | None = None,
    into: Outcome | None = None,
) -> Outcome:
    """Ask, and read to the end; a client that `leaves` goes after so many seconds. What
    becomes of it is written `into` an outcome while it runs."""
    outcome = into or Outcome(
        ask.kind,
        ask.guided,
        time.monotonic(),
    )
    try:
        async with asyncio.timeout(_PATIENCE if leaves is None else leaves) as limit:
            patience = None if leaves is not None else limit
            outcome.end, outcome.detail = await _read(
                session, ask, stream, outcome.times, patience
            )
    except TimeoutError:
        if leaves is None:
            outcome.detail = f"not a word for {_PATIENCE:.0f} s"
        else:
            outcome.end = "left"
    except (aiohttp.ClientError, OSError) as error:
        outcome.detail = repr(error)[:200]
    return outcome


async def _read(
    session: aiohttp.ClientSession,
    ask: Ask,
    stream: bool,
    times: list[float],
    patience: asyncio.Timeout | None,
) -> tuple[str, str]:
    options = (
        {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    )
    answer = _Answer()
    async with session.post(ask.path, json={**ask.body, **options}) as response:
        if response.status != 200:
            return "told", f"status {response.status}: {(await response.text())[:300]}"
        if not stream:
            answer.take(await response.json())
        else:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    part = json.loads(line[6:])
                    if part.get("choices"):
                        times.append(time.monotonic())
                        if patience is not None:
                            patience.reschedule(
                                asyncio.get_running_loop().time() + _PATIENCE
                            )
                    answer.take(part)
    return answer.judged(ask)


@dataclass(frozen=True)
class Crowd:
    """Clients that ask at the same time, each one request after the other."""

    makes: Sequence[Make]
    clients: int
    streams: float = 1.0
    """Share of requests that stream."""
    leavers: float = 0.0
    """Share of requests whose client leaves before the end."""
    pause: float = 0.0
    """Seconds between one request and the next."""


def soak_crowd(clients: int) -> list[Crowd]:
    """Everything mixed."""
    return [Crowd(MIXED, clients, streams=0.6, leavers=0.2)]


def chaos_crowd(clients: int) -> list[Crowd]:
    """Long streams, half of the guided ones of every form, and a client whose schemas
    are new."""
    return [Crowd(LONG, clients), Crowd((small_schema,), 1, pause=0.1)]


async def _client(
    session: aiohttp.ClientSession,
    crowd: Crowd,
    seed: str,
    over: Callable[[], bool],
    found: list[Outcome],
) -> None:
    rng = random.Random(seed)
    turn = rng.randrange(len(crowd.makes))
    while not over():
        ask = crowd.makes[turn % len(crowd.makes)](rng)
        turn += 1
        leaves = rng.uniform(0.0, 1.5) if rng.random() < crowd.leavers else None
        found.append(
            await one(
                session,
                ask,
                stream=rng.random() < crowd.streams,
                leaves=leaves,
            )
        )
        if found[-1].end in ("told", "cut"):
            # a server that refuses everything is not asked thousands of times
            await asyncio.sleep(0.2)
        await asyncio.sleep(crowd.pause)


def connect(url: str) -> aiohttp.ClientSession:
    """A session of which each request may have a connection."""
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(
        url, connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    )


async def asked(
    url: str, crowds: Sequence[Crowd], seconds: float, seed: int
) -> list[Outcome]:
    """Let clients ask for some seconds; requests that run then are read to their
    ends."""
    end = time.monotonic() + seconds
    found: list[Outcome] = []
    async with connect(url) as session, asyncio.TaskGroup() as tasks:
        for number, crowd in enumerate(crowds):
            for client in range(crowd.clients):
                name = f"{seed} {number} {client}"
                tasks.create_task(
                    _client(
                        session,
                        crowd,
                        name,
                        lambda: time.monotonic() > end,
                        found,
                    )
                )
    return found


async def ready(url: str, seconds: float = 150.0) -> bool:
    """Wait until a guided request is answered: what an attack left behind may refuse
    them for a minute."""
    end = time.monotonic() + seconds
    rng = random.Random()
    async with connect(url) as session:
        while time.monotonic() < end:
            with contextlib.suppress(aiohttp.ClientError):
                if (await one(session, small_schema(rng))).end == "valid":
                    return True
            await asyncio.sleep(1.0)
    return False
