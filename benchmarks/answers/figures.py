"""Figures of ways: answers counted, and pairs of ways compared by McNemar's exact
test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from benchmarks.answers.judges import Verdict
from benchmarks.answers.tasks import Task
from benchmarks.answers.ways import Way
from benchmarks.harness import Json

TOLD = 0.05
"""Pairs with a larger p are in the raw file only."""
COLUMNS = (
    ("tasks", "{kind}"),
    ("way", "{way}"),
    ("of", "{tasks}"),
    ("right", "{right}"),
    ("%", "{right_percent:.1f}"),
    ("valid", "{valid}"),
    ("cut", "{cut}"),
    ("refused", "{refused}"),
    ("failed", "{failed}"),
    ("unprotected", "{unprotected}"),
    ("tokens", "{tokens}"),
    ("s", "{seconds:.1f}"),
    ("items", "{items}"),
    ("of", "{expected}"),
    ("lists empty", "{empty}"),
)
PAIR_COLUMNS = (
    ("tasks", "{kind}"),
    ("better", "{better}"),
    ("other", "{other}"),
    ("right only there", "{only_better}"),
    ("only here", "{only_other}"),
    ("p", "{p:.4f}"),
)


def figure(
    case: Json,
    tasks: Sequence[Task],
    verdicts: Sequence[Verdict],
) -> Json:
    """Count the answers of one way to the tasks of one kind."""
    outputs = case["outputs"]
    finishes = [output["finish"] for output in outputs]
    finished = [
        verdict
        for verdict, finish in zip(verdicts, finishes, strict=True)
        if finish == "stop"
    ]
    right = sum(verdict.right for verdict in verdicts)
    return {
        "kind": tasks[0].kind,
        "way": case["way"],
        "tasks": len(tasks),
        "right": right,
        "right_percent": round(100 * right / len(tasks), 2),
        "valid": sum(verdict.valid for verdict in verdicts),
        "finished": len(finished),
        "finished_invalid": sum(
            not (verdict.valid and verdict.whole) for verdict in finished
        ),
        "cut": finishes.count("length"),
        "refused": finishes.count("refused"),
        "failed": finishes.count("error"),
        "unprotected": case["unprotected"],
        "tokens": sum(output["tokens"] for output in outputs),
        "seconds": round(case["seconds"], 2),
        "items": sum(verdict.found for verdict in verdicts),
        "expected": sum(len(task.judge.get("items", ())) for task in tasks),
        "empty": sum(verdict.empty for verdict in verdicts),
        "right_by_task": "".join(str(int(verdict.right)) for verdict in verdicts),
    }


def broken_promises(figures: Sequence[Json]) -> list[str]:
    """Say which ways of this package finished answers that are not valid, and where
    `close_before_length` did not do what it promises."""
    told = []
    for one in figures:
        way = Way.named(one["way"])
        count = one["finished_invalid"]
        if count and way.own:
            told.append(
                f"error: {one['kind']}, {one['way']}: {count} of {one['finished']} finished answers are not "
                "JSON that is valid under the schema of their task: measure again with --texts FILE, whose "
                "lines have the answers, and report those with finish stop"
            )
        if "close" in way.changes and _unclosed(one):
            told.append(
                f"error: {one['kind']}, {one['way']}: {one['failed']} failed, {one['cut']} were cut, "
                f"{one['unprotected']} were told unprotected, of {one['tasks']}: none may fail, one may only be "
                f"cut where that is told, and {_UNPROTECTED:.0%} may be unprotected"
            )
    return told


_UNPROTECTED = 0.01
"""Of the answers with `close_before_length` that have room."""


def _unclosed(one: Json) -> bool:
    room = one["tasks"] - one["refused"]
    return bool(
        one["failed"]
        or one["cut"] > one["unprotected"]
        or one["unprotected"] > _UNPROTECTED * room
    )


def pairs(figures: Sequence[Json]) -> list[Json]:
    """Compare all ways of the same tasks, two at a time, the better one first, by the
    tasks that only one of them answers right."""
    found = []
    for both in itertools.combinations(figures, 2):
        better, other = sorted(both, key=lambda one: -one["right"])
        if better["kind"] != other["kind"]:
            continue
        answers = list(
            zip(better["right_by_task"], other["right_by_task"], strict=True)
        )
        only_better, only_other = map(answers.count, (("1", "0"), ("0", "1")))
        pair = {
            "kind": better["kind"],
            "better": better["way"],
            "other": other["way"],
            "only_better": only_better,
            "only_other": only_other,
            "p": round(mcnemar(only_better, only_other), 6),
        }
        found.append(pair)
    return found


def mcnemar(only_one: int, only_other: int) -> float:
    """Return the two-sided exact p: how likely so uneven a split is if both ways are
    equally good."""
    differ = only_one + only_other
    tail = sum(
        math.comb(differ, count) for count in range(min(only_one, only_other) + 1)
    )
    return min(1.0, float(2 * tail / 2**differ))
