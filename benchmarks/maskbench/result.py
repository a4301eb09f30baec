"""What a MaskBench run found: one row a file, their summary, and what differs from an
older run.

Rows cross a process boundary and are written as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measuring import quantile


@dataclass(slots=True)
class FileResult:
    """One file with one backend."""

    name: str
    status: str = "passing"
    """`passing`, `wrong` (it compiled, and an instance got the wrong answer), `early
    stop` (it has `early_stops`; this comes before `wrong`), `refused` or `died`."""
    error: str = ""
    """Why it was refused or died."""
    seconds: float = 0.0
    """Time of the whole file, with everything that isn't measured."""
    backend: str = ""
    """The backend that compiled the schema."""
    reason: str = ""
    """Why this backend, and how it takes the schema."""
    tests: int = 0
    wrong_accepts: list[int] = field(default_factory=list)
    """Invalid instances that were accepted, by their place in `tests`."""
    wrong_refusals: list[int] = field(default_factory=list)
    """Valid instances that were refused."""
    early_stops: list[str] = field(default_factory=list)
    """Instances where a stop token was allowed before the output was complete, or
    missing when it was, or another special token was allowed."""
    faults: list[str] = field(default_factory=list)
    """Where a matcher contradicted itself; `wrong_*` doesn't show these."""
    first_mask_ms: float | None = None
    mask_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Time of every mask of every instance, but for the first mask."""

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file: the times as their statistics."""
        row = {
            name: getattr(self, name) for name in self.__slots__ if name != "mask_ns"
        }
        row["seconds"] = round(self.seconds, 4)
        row["first_mask_ms"] = (
            None if self.first_mask_ms is None else round(self.first_mask_ms, 4)
        )
        return {**row, "masks": _mask_statistics(self.mask_ns)}


def summarise(results: Sequence[FileResult]) -> dict[str, Any]:
    """The row of the table. Times are those of every file that compiled and didn't
    die."""
    with_status = Counter(result.status for result in results)
    firsts = [
        result.first_mask_ms for result in results if result.first_mask_ms is not None
    ]
    masks = np.concatenate(
        [np.empty(0, np.int64), *(result.mask_ns for result in results)]
    )
    return {
        "files": len(results),
        "passing": with_status["passing"],
        "wrong_accepts": sum(bool(result.wrong_accepts) for result in results),
        "wrong_refusals": sum(bool(result.wrong_refusals) for result in results),
        "early_stops": with_status["early stop"],
        "refused": with_status["refused"],
        "died": with_status["died"],
        "tests": sum(result.tests for result in results),
        "faults": sum(len(result.faults) for result in results),
        "masks": _mask_statistics(masks),
        "first_mask_ms": {
            f"p{share * 100:g}": round(quantile(firsts, share), 4)
            for share in (0.5, 0.9, 0.99)
        }
        if firsts
        else {},
    }


def _mask_statistics(nanoseconds: NDArray[np.int64]) -> dict[str, Any]:
    if not len(nanoseconds):
        return {"count": 0}
    return {
        "count": len(nanoseconds),
        "avg_us": round(float(nanoseconds.mean()) / 1e3, 3),
        **{
            f"p{share * 100:g}_us": quantile(nanoseconds, share) / 1e3
            for share in (0.5, 0.99, 0.999)
        },
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


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Flip]:
    """The files whose outcome changed, those that passed before first, without files
    that one run lacks.

    Both are results as `run_maskbench` gives them. Backends are paired by name.
    """
    flips = []
    older = {
        run["backend"]: {row["name"]: row for row in run["files"]}
        for run in old["runs"]
    }
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
    answers = ("accepts", row["wrong_accepts"]), ("refuses", row["wrong_refusals"])
    return ", ".join(
        f"wrongly {verb} tests {', '.join(map(str, tests))}"
        for verb, tests in answers
        if tests
    )
