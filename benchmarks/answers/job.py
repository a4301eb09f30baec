"""One job of many requests in one `LLM`: guided with new schemas, with known ones, and
the same requests unguided with answers of the same lengths.

    python -m benchmarks.answers.job --model DIR --device cuda --engines plugin,guidance,xgrammar --out FILE

One process an engine; the ways take turns in it, and each turn begins with another one.
A schema is new in each turn by its `$comment`; those of the turn before are known. This
package also answers new ones with `close_before_length`: `closed`. The unguided requests
write as many tokens as the guided ones of the turn before, and stop at nothing else. The
first turn warms up and is not counted.

    seconds    from the first prompt that is handed in to the last answer: median, lowest, highest
    ratio      to the unguided requests of the same turn: median, lowest, highest
    thread     the same of the CPU time of vLLM's thread: median
    step ms    between two outputs of the engine, 50th and 99th percentile of all turns
    valid      answers of `new` and `closed` that are valid under their schema, by jsonschema
    right      those that are right by their task's judge
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.answers.__main__ import add_tasks, chosen, engine_of
from benchmarks.answers.judges import judged
from benchmarks.answers.models import model_folder
from benchmarks.answers.tasks import Task
from benchmarks.answers.ways import PLUGIN, Way
from benchmarks.harness import (
    Engine,
    Json,
    Options,
    finish,
    given,
    head,
    measured,
    median,
    quantile,
)

_TICK = 0.01
"""Seconds; CPU time is counted in these."""
WAYS = ("new", "unguided", "known", "closed")
_COLUMNS = (
    ("engine", "{engine}"),
    ("way", "{way}"),
    ("tokens", "{tokens}"),
    ("valid", "{valid}"),
    ("right", "{right}"),
    ("seconds", "{seconds}"),
    ("ratio", "{ratio}"),
    ("thread", "{thread_ratio}"),
    ("step ms", "{step_ms}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 if an engine failed."""
    parser = Options(__doc__, prog="python -m benchmarks.answers.job")
    add_tasks(parser, "bfcl", 300.0)
    known = [PLUGIN, "guidance", "xgrammar"]
    parser.several("--engines", known, known, "this package, vLLM's own")
    parser.add("--repetitions", 3, "turns that count")
    options = parser.parse_args(arguments)
    folder = model_folder(options.model)
    kinds, _ = chosen(options, folder)
    tasks = [task for asked in kinds.values() for task, _ in asked]
    result = {
        **head("benchmarks.answers.job", given(arguments)),
        "benchmark": "job",
        "requests": len(tasks),
        "rows": options.rows,
        "repetitions": options.repetitions,
        "figures": [],
    }
    engines = []
    for name in options.engines:
        ways = ["flexible", "flexible+close"] if name == PLUGIN else [name]
        own = list(map(Way.named, ways))
        engine = engine_of(options, folder, name, own, kinds)
        engine.question["repetitions"] = options.repetitions
        engine.question["engine"]["enable_prefix_caching"] = False
        engines.append(engine)

    def take(engine: Engine, answer: Json) -> None:
        result["figures"] += figures(engine.name, answer["turns"], tasks)

    measured(result, engines, options, take)
    return finish(result, options.out, _COLUMNS)


def figures(engine: str, turns: Sequence[Json], tasks: Sequence[Task]) -> list[Json]:
    """A line for each way."""
    found = []
    for way in WAYS:
        if way not in turns[-1]:
            continue
        outputs = turns[-1][way]["outputs"]
        # Those of the other ways have the lengths, or the schemas, of the turn before.
        ends = way in ("new", "closed")
        pairs = zip(tasks, outputs, strict=True) if ends else ()
        verdicts = [judged(one["text"], task.schema, task.judge) for task, one in pairs]
        seconds = [turn[way]["seconds"] for turn in turns]
        ratios, threads = (
            [turn[way][what] / max(_TICK, turn["unguided"][what]) for turn in turns]
            for what in ("seconds", "thread")
        )
        steps: list[Any] = list(
            itertools.chain(*(turn[way]["steps"] for turn in turns))
        )
        line = {
            "engine": engine,
            "way": way,
            "tokens": sum(one["tokens"] for one in outputs),
            "valid": sum(one.valid for one in verdicts) if ends else None,
            "right": sum(one.right for one in verdicts) if ends else None,
            "seconds": median(seconds, 2),
            "all_seconds": [round(one, 2) for one in seconds],
            "ratio": median(ratios, 3),
            "all_ratios": [round(one, 3) for one in ratios],
            "thread_ratio": median(threads, 3),
            "step_ms": [
                round(1e3 * quantile(steps, share), 2) for share in (0.5, 0.99)
            ],
        }
        found.append(line)
    return found


if __name__ == "__main__":
    sys.exit(main())
