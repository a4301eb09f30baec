"""What became of requests, the figures of many, and what in them is worse than it
should be. Depends on nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.harness import Json

ENDS = ("valid", "invalid", "length", "told", "cut", "left")
"""A finished answer that is right, or wrong; one that reached its limit; an error that
the client was told; an answer without an end; a client that left on purpose."""

LOST = ("told", "cut")
_STALL_SECONDS = 0.25
_MOST_NAMED = 20
_MOST_GAP_MS = 1000.0
_MOST_GAP_RATIO = 4.0
_MOST_FIRST_TOKEN_MS = 1000.0
_MOST_RECOVERY_MS = {"p50": 300.0, "max": 1500.0}


@dataclass(slots=True)
class Outcome:
    """One request."""

    kind: str
    guided: bool
    sent: float
    end: str = "cut"
    detail: str = ""
    times: list[float] = field(default_factory=list)
    """When the parts of a stream came."""

    def gaps(self) -> list[float]:
        """Seconds between one part and the next."""
        return [later - one for one, later in pairwise(self.times)]


def at(values: Sequence[float], share: float) -> float | None:
    """A percentile in milliseconds; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


def spread(values: Sequence[float]) -> Json:
    """How many there are, and some percentiles in milliseconds."""
    return {
        "count": len(values),
        "p50": at(values, 0.5),
        "p99": at(values, 0.99),
        "max": at(values, 1.0),
    }


def recoveries(outcomes: Iterable[Outcome], kills: Sequence[float]) -> list[float]:
    """For each kill the longest gap in a guided stream that ran then."""
    found = []
    streams = [
        outcome for outcome in outcomes if outcome.guided and len(outcome.times) > 1
    ]
    for kill in kills:
        gaps = [
            later - max(one, kill)
            for outcome in streams
            for one, later in pairwise(outcome.times)
            if one < kill + _STALL_SECONDS and later > kill
        ]
        if gaps:
            found.append(max(gaps))
    return found


def returns(outcomes: Iterable[Outcome], kills: Sequence[float]) -> list[float]:
    """For each kill the time until a guided request that came afterwards was
    answered."""
    good = [
        one
        for one in outcomes
        if one.guided and one.end in ("valid", "length") and one.times
    ]
    answered = [
        [one.times[-1] - kill for one in good if one.sent > kill] for kill in kills
    ]
    return [min(times) for times in answered if times]


def figures(outcomes: Sequence[Outcome], kills: Sequence[float] = ()) -> Json:
    """Everything that the table shows, and more."""
    ends = Counter(one.end for one in outcomes)
    kinds: dict[str, Counter[str]] = {}
    for one in outcomes:
        kinds.setdefault(one.kind, Counter())[one.end] += 1
    lost = [one for one in outcomes if one.end in LOST]
    details = Counter(f"{one.kind}: {one.end}: {one.detail}" for one in lost)
    wrong = [f"{one.kind}: {one.detail}" for one in outcomes if one.end == "invalid"]
    new = [one for one in outcomes if one.kind == "new schema" and one.times]
    guided_lost = sum(one.guided for one in lost)
    return {
        "ends": {end: ends[end] for end in ENDS},
        "guided_lost": guided_lost,
        "unguided_lost": len(lost) - guided_lost,
        "kinds": {kind: dict(found) for kind, found in kinds.items()},
        "gaps_ms": spread([gap for one in outcomes for gap in one.gaps()]),
        "new_schema_first_token_ms": spread([one.times[0] - one.sent for one in new]),
        "recovery_ms": spread(recoveries(outcomes, kills)),
        "back_ms": spread(returns(outcomes, kills)),
        "kills": len(kills),
        "invalid": wrong[:_MOST_NAMED],
        "lost": dict(details.most_common(_MOST_NAMED)),
    }


def worse(found: Json, quiet: Json | None = None) -> list[str]:
    """What is worse than promised, in words; `quiet` is the same load without the
    attack."""
    said = []
    if found["ends"]["invalid"]:
        said.append(f"{found['ends']['invalid']} invalid answers")
    for kind in ("guided", "unguided"):
        lost = found[f"{kind}_lost"]
        if lost:
            said.append(f"{lost} {kind} answers lost")
    gap = found["gaps_ms"]["max"] or 0.0
    before = quiet["gaps_ms"]["max"] if quiet else None
    if gap > _MOST_GAP_MS or (before and gap > _MOST_GAP_RATIO * before):
        said.append(f"a gap of {gap:.0f} ms (without an attack: {before})")
    first = found["new_schema_first_token_ms"]["p99"] or 0.0
    if first > _MOST_FIRST_TOKEN_MS:
        said.append(f"first token of new schemas {first:.0f} ms (p99)")
    for key, most in _MOST_RECOVERY_MS.items():
        took = found["recovery_ms"][key] or 0.0
        if took > most:
            said.append(f"recovery {took:.0f} ms ({key})")
    return said
