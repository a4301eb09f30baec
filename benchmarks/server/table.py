"""Results as tables, and what in them is worse than it should be. Depends on tally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MOST_GAP_MS = 1000.0
MOST_GAP_RATIO = 4.0
MOST_FIRST_TOKEN_MS = 1000.0
MOST_RECOVERY_MS = (300.0, 1500.0)

_COLUMNS = (
    "run",
    "answers",
    "valid",
    "length",
    "invalid",
    "lost",
    "gap p50",
    "p99",
    "max",
    "new p50",
    "p99",
    "max",
)
_MORE = ("kills", "recovery p50", "max")


def _shown(value: Any) -> str:
    return (
        "-"
        if value is None
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )


def lines(rows: Sequence[Sequence[Any]]) -> str:
    """Rows under each other, the first column left, the others right."""
    shown = [[_shown(value) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(shown[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    )


def answers(runs: dict[str, dict[str, Any]]) -> str:
    """A row for each run, in milliseconds."""
    rows: list[list[Any]] = [[*_COLUMNS, *_MORE]]
    for name, found in runs.items():
        ends = found["ends"]
        gaps = found["gaps_ms"]
        new = found["new_schema_first_token_ms"]
        recovery = found["recovery_ms"]
        rows.append(
            [name, sum(ends.values()), ends["valid"], ends["length"], ends["invalid"]]
            + [f"{found['guided_lost']}+{found['unguided_lost']}"]
            + [part[key] for part in (gaps, new) for key in ("p50", "p99", "max")]
            + [found["kills"], recovery["p50"], recovery["max"]]
        )
    return (
        lines(rows)
        + "\nmilliseconds; lost: guided + unguided; a client that leaves on purpose counts as an answer"
    )


def processes(found: dict[str, dict[str, Any]]) -> str:
    """What the processes took: at the start, at most, at the end."""
    rows: list[list[Any]] = [
        ["process", "memory MB", "shared MB", "threads", "descriptors", "processes"]
    ]
    for role, measures in found.items():
        cells = [
            measures.get(name)
            for name in (
                "memory_mb",
                "shared_mb",
                "threads",
                "descriptors",
                "processes",
            )
        ]
        rows.append(
            [
                role,
                *(
                    "-"
                    if one is None
                    else f"{one['start']:g}/{one['peak']:g}/{one['end']:g}"
                    for one in cells
                ),
            ]
        )
    return lines(rows) + "\nat the start / at most / at the end"


def worse(found: dict[str, Any], quiet: dict[str, Any] | None = None) -> list[str]:
    """What is worse than promised, in words; `quiet` is the same load without the
    attack."""
    said = []
    if found["ends"]["invalid"]:
        said.append(f"{found['ends']['invalid']} invalid answers")
    for kind in ("guided", "unguided"):
        lost = found[f"{kind}_lost"]
        if lost:
            said += [f"{lost} {kind} answers lost"]
    gap = found["gaps_ms"]["max"]
    before = quiet["gaps_ms"]["max"] if quiet else None
    if gap is not None and gap > MOST_GAP_MS:
        said.append(f"a gap of {gap:.0f} ms")
    elif gap is not None and before and gap > MOST_GAP_RATIO * before:
        said.append(
            f"a gap of {gap:.0f} ms, {gap / before:.1f} times that without the attack"
        )
    first = found["new_schema_first_token_ms"]["p99"]
    if first is not None and first > MOST_FIRST_TOKEN_MS:
        said.append(f"first token of new schemas {first:.0f} ms (p99)")
    recovery = found["recovery_ms"]
    for key, most in zip(("p50", "max"), MOST_RECOVERY_MS, strict=True):
        if recovery[key] is not None and recovery[key] > most:
            said.append(f"recovery {recovery[key]:.0f} ms ({key})")
    return said
