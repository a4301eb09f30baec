"""First tokens of new and of known schemas on a server under load, and what a burst of
new ones does to other streams.

    python -m benchmarks.server.first [--rounds 60] [--burst 100] [--streams 8] [--out FILE]
    python -m benchmarks.server.first --rounds 0 --burst 8 --kinds plain,slow

Unguided streams run all the time. Next to them come single requests in turns: unguided,
with a known schema, with a new one. Then bursts of each kind, one after the other, and
a pause between any two. `slow` are requests whose masks cost milliseconds each, `plain`
guided ones of the same length. Prints a line for each kind and repetition, and writes
JSON.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.harness import Json, Options, given, head, write
from benchmarks.server import bombs, judges
from benchmarks.server.asks import LONG, Ask, completion, small_schema
from benchmarks.server.clients import connect, one
from benchmarks.server.launch import Launch, started
from benchmarks.server.tally import Outcome, spread
from benchmarks.tables import show_table

_PAUSE = 0.15
"""Seconds between single requests."""
_CALM = 3.0
"""Seconds before and after a burst."""

KINDS = ("unguided", "known", "new")
"""Of bursts."""

_COLUMNS = (
    ("kind", "{kind}"),
    ("first token ms, alone", "{lone[p50]}"),
    ("in a burst", "{first_token_ms[p50]}"),
    ("burst s", "{seconds:.3f}"),
    ("others' gaps ms, before: p50", "{others_gaps_ms_before[p50]}"),
    ("beside it: p50", "{others_gaps_ms[p50]}"),
    ("p99", "{others_gaps_ms[p99]}"),
    ("max", "{others_gaps_ms[max]}"),
)
Make = Callable[[], Ask]


async def measure(url: str, options: Any, seed: int) -> Json:
    """All figures of one server, as JSON."""
    rng = random.Random(seed)
    known = small_schema(rng)
    slow = itertools.cycle(bombs.SLOW_ROWS)

    def slow_row() -> Ask:
        form = bombs.varied(next(slow), rng.randrange(10**6))
        return bombs.ask(form, min_tokens=200)

    kinds: dict[str, Make] = {
        "unguided": lambda: completion("plain", judges.anything, tokens=20),
        "known": lambda: known,
        "new": lambda: small_schema(rng),
        "plain": lambda: bombs.ask({"regex": r"(.|\n)*"}, min_tokens=200),
        "slow": slow_row,
    }
    kinds = {name: kinds[name] for name in options.kinds}
    others: list[Outcome] = []
    async with connect(url) as session:
        await one(session, known)
        running = [
            asyncio.create_task(_stream(session, rng, others))
            for _ in range(options.streams)
        ]
        await asyncio.sleep(_CALM)
        firsts = await _turns(session, kinds, options.rounds)
        bursts = {}
        for kind, make in kinds.items():
            bursts[kind] = await _burst(session, make, options.burst, others)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return {"first_token_ms": firsts, "bursts": bursts}


async def _stream(
    session: aiohttp.ClientSession, rng: random.Random, others: list[Outcome]
) -> None:
    """Unguided streams, one after the other; each is listed when it begins."""
    while True:
        ask = LONG[0](rng)
        outcome = Outcome(ask.kind, False, time.monotonic())
        others.append(outcome)
        await one(session, ask, into=outcome)


async def _turns(
    session: aiohttp.ClientSession,
    kinds: dict[str, Make],
    rounds: int,
) -> Json:
    waits: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, make in kinds.items():
            outcome = await one(session, make())
            if outcome.times:
                waits[kind].append(outcome.times[0] - outcome.sent)
            await asyncio.sleep(_PAUSE)
    return {kind: spread(times) for kind, times in waits.items()}


async def _burst(
    session: aiohttp.ClientSession, make: Make, count: int, others: list[Outcome]
) -> Json:
    """Requests of one kind at the same time. Gaps of the other streams in the seconds
    before, and until the last of the burst has ended."""
    await asyncio.sleep(_CALM)
    begun = time.monotonic()
    asks = [make() for _ in range(count)]
    outcomes = await asyncio.gather(*(one(session, ask) for ask in asks))
    ended = time.monotonic()
    firsts = [each.times[0] - each.sent for each in outcomes if each.times]
    return {
        "seconds": round(ended - begun, 3),
        "valid": sum(each.end in ("valid", "length") for each in outcomes),
        "first_token_ms": spread(firsts),
        "others_gaps_ms_before": spread(_gaps(others, begun - _CALM, begun)),
        "others_gaps_ms": spread(_gaps(others, begun, ended)),
    }


def _gaps(others: list[Outcome], since: float, until: float) -> list[float]:
    """Gaps between parts of streams that end in a span of time."""
    return [
        later - before
        for outcome in others
        for before, later in itertools.pairwise(outcome.times)
        if since <= later < until
    ]


def parsed(arguments: Sequence[str]) -> Any:
    """The options."""
    parser = Options(__doc__)
    parser.add("--rounds", 60, "single requests a kind")
    parser.add("--burst", 100, "requests of a burst")
    parser.add("--streams", 8, "unguided ones beside")
    parser.several("--kinds", list(KINDS), [*KINDS, "plain", "slow"], "of bursts")
    parser.add("--arguments", "", "more of vLLM's server")
    parser.add("--repeat", 3, "times, in one server")
    parser.add("--model", Launch.model, "default: the demo's")
    parser.add("--device", "cpu", "cpu or cuda")
    parser.out()
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write."""
    options = parsed(given(arguments))
    launch = Launch(
        model=options.model,
        device=options.device,
        sequences=options.streams + options.burst,
        arguments=options.arguments,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        started(launch, Path(folder) / "log") as server,
    ):
        runs = [
            asyncio.run(measure(server.url, options, seed))
            for seed in range(options.repeat)
        ]
    lines = [
        {"kind": kind, "lone": run["first_token_ms"][kind], **run["bursts"][kind]}
        for run in runs
        for kind in options.kinds
    ]
    show_table(lines, _COLUMNS)
    result = head("benchmarks.server.first", given(arguments), options.device)
    write({**result, "runs": runs}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
