"""What became of requests, and the figures of many. Depends on nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.harness import Json, quantile

ENDS = ("valid", "invalid", "length", "told", "cut", "left")
"""A finished answer that is right, or wrong; one that reached its limit; an error that
the client was told; an answer without an end; a client that left on purpose."""

LOST = ("told", "cut")
_MOST_NAMED = 20


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


def spread(values: Sequence[float]) -> Json:
    """How many there are, and some percentiles in milliseconds; None of nothing."""
    found: Json = {"count": len(values)}
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        found[name] = round(1e3 * quantile(values, share), 1) if values else None
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
        "back_ms": spread(returns(outcomes, kills)),
        "kills": len(kills),
        "invalid": wrong[:_MOST_NAMED],
        "lost": dict(details.most_common(_MOST_NAMED)),
    }
