"""What a MaskBench run found: one row a file, their summary, and what differs from an older run.

Touches nothing else. Rows cross a process boundary and are written as JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["STATUSES", "FileResult", "Flip", "compare", "quantile", "summarise"]

STATUSES = ("passing", "wrong", "early stop", "refused", "died", "unreadable")
"""What can become of a file. `wrong`: it compiled, and an instance got the wrong answer. `early stop`: in the
course of an instance a stop token was allowed where the output was not complete, or missing where it was, or
another special token was allowed; this comes before `wrong`."""


@dataclass(slots=True)
class FileResult:
    """One file with one backend."""

    name: str
    status: str = "passing"
    error: str = ""
    """Why it was refused, died or can't be read."""
    seconds: float = 0.0
    """Time the whole file took, with everything that isn't measured."""
    backend: str = ""
    """The backend that took the schema."""
    reason: str = ""
    """In what way it took it, as the grammar says."""
    tests: int = 0
    wrong_accepts: list[int] = field(default_factory=list)
    """Invalid instances that were accepted, by their place in `tests`."""
    wrong_refusals: list[int] = field(default_factory=list)
    """Valid instances that were refused."""
    early_stops: list[str] = field(default_factory=list)
    """Instances on whose way special tokens were allowed or missing against the matcher's word."""
    faults: list[str] = field(default_factory=list)
    """Where a matcher contradicted itself; right and wrong answers don't show these."""
    first_mask_ms: float | None = None
    mask_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Time of every mask of every instance, but for the first mask."""

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file: the times as their statistics."""
        row = {name: getattr(self, name) for name in self.__slots__ if name != "mask_ns"}
        row["seconds"] = round(self.seconds, 4)
        row["first_mask_ms"] = None if self.first_mask_ms is None else round(self.first_mask_ms, 4)
        return {**row, "masks": _mask_statistics(self.mask_ns)}


def summarise(results: Sequence[FileResult]) -> dict[str, Any]:
    """The row of the table. Times are those of every file that compiled and didn't die."""
    with_status = {status: sum(result.status == status for result in results) for status in STATUSES}
    firsts = [result.first_mask_ms for result in results if result.first_mask_ms is not None]
    masks = np.concatenate([np.empty(0, np.int64), *(result.mask_ns for result in results)])
    return {
        "files": len(results),
        "passing": with_status["passing"],
        "wrong_accepts": sum(bool(result.wrong_accepts) for result in results),
        "wrong_refusals": sum(bool(result.wrong_refusals) for result in results),
        "early_stops": with_status["early stop"],
        "refused": with_status["refused"],
        "died": with_status["died"],
        "unreadable": with_status["unreadable"],
        "tests": sum(result.tests for result in results),
        "faults": sum(len(result.faults) for result in results),
        "masks": _mask_statistics(masks),
        "first_mask_ms": {
            f"p{share * 100:g}": round(quantile(np.array(firsts), share), 4) for share in (0.5, 0.9, 0.99)
        }
        if firsts
        else {},
    }


def quantile(values: NDArray[Any], share: float) -> float:
    """The smallest value that is not below this share of the values: one that was measured."""
    rank = max(0, math.ceil(share * len(values)) - 1)
    return float(np.partition(values, rank)[rank])


def _mask_statistics(nanoseconds: NDArray[np.int64]) -> dict[str, Any]:
    if not len(nanoseconds):
        return {"count": 0}
    return {
        "count": len(nanoseconds),
        "avg_us": round(float(nanoseconds.mean()) / 1e3, 3),
        **{f"p{share * 100:g}_us": quantile(nanoseconds, share) / 1e3 for share in (0.5, 0.99, 0.999)},
        "max_us": float(nanoseconds.max()) / 1e3,
    }


@dataclass(frozen=True, slots=True)
class Flip:
    """A file whose outcome differs between two runs of a backend."""

    backend: str
    name: str
    before: str
    after: str
    error: str

    @property
    def worse(self) -> bool:
        """Whether it passed before."""
        return self.before == "passing"

    def to_dict(self) -> dict[str, str]:
        """For the JSON file."""
        return asdict(self)


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Flip]:
    """The files that flipped, those that passed before first; files that one run lacks are left out.

    Both are results as `run_maskbench` gives them. Backends are paired by name.
    """
    flips = []
    older = {run["backend"]: {row["name"]: row for row in run["files"]} for run in old["runs"]}
    for run in new["runs"]:
        before = older.get(run["backend"], {})
        for row in run["files"]:
            if row["name"] not in before:
                continue
            outcomes = _outcome(before[row["name"]]), _outcome(row)
            if outcomes[0] != outcomes[1]:
                flips.append(Flip(run["backend"], row["name"], *outcomes, row["error"]))
    return sorted(flips, key=lambda flip: (not flip.worse, flip.backend, flip.name))


def _outcome(row: Mapping[str, Any]) -> str:
    """The status; for wrong answers, which ones."""
    if row["status"] != "wrong":
        return str(row["status"])
    return ", ".join([*_listed("accepts", row["wrong_accepts"]), *_listed("refuses", row["wrong_refusals"])])


def _listed(verb: str, tests: Iterable[int]) -> list[str]:
    places = ", ".join(map(str, tests))
    return [f"wrongly {verb} tests {places}"] if places else []
