"""Milliseconds a step in vLLM: unguided, and guided by this package or by vLLM's own
structured output.

    python -m benchmarks.engines --model DIR --engines plugin,guidance,xgrammar --rows 8,64,256 --out FILE

One process an engine, one after the other. All get the same requests; those that are
guided take turns with those that are not, in the same engine. `--sample` measures
schemas of MaskBench too, as `real-world`; the schema `new` asks for those, or else for
`plain`, each request with a schema that was never asked for. Several GPUs: `--engine
'{"tensor_parallel_size": 2}'`. Prints a table. `thread us`: CPU time of the main
threads of vLLM's processes in a step. `wrong`: outputs that a fresh matcher refuses.
The file also has `refused`: schemas of the sample that an engine does not take. Exit
code 1 if an engine failed.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine_child import NEW, REAL_WORLD
from benchmarks.harness import (
    Engine,
    Json,
    Options,
    counts,
    finish,
    given,
    head,
    measured,
)
from benchmarks.samples import SCHEMAS

_ENGINES = ("plugin", "guidance", "xgrammar")
_COLUMNS = (
    ("engine", "{engine}"),
    ("runner", "{runner}"),
    ("rows", "{rows}"),
    ("way", "{way}"),
    ("schema", "{schema}"),
    ("ms", "{ms_per_step:.3f}"),
    ("ratio", "{ratio:.3f}"),
    ("steady ms", "{steady_ms:.3f}"),
    ("ratio", "{steady_ratio:.3f}"),
    ("p99", "{p99_ms:.3f}"),
    ("thread us", "{thread_us}"),
    ("wrong", "{wrong_outputs}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, print."""
    parser = Options(__doc__)
    parser.model(needs_sample=False)
    parser.add("--rows", [8, 64, 256], "batch sizes, separated by commas", counts)
    parser.several("--schema", list(SCHEMAS), [*SCHEMAS, NEW], "what is asked for")
    parser.several("--engines", list(_ENGINES), _ENGINES, "this package, vLLM's own")
    parser.several("--runner", ["v2"], ["v1", "v2"], "model runners")
    parser.add("--steps", 256, "tokens a request")
    parser.add("--repetitions", 3, "measured runs a figure")
    parser.engine(1200.0)
    options = parser.parse_args(arguments)
    result = {
        **head("benchmarks.engines", given(arguments)),
        "benchmark": "vllm",
        "model": Path(options.model).name,
        "steps": options.steps,
        "repetitions": options.repetitions,
        "figures": [],
        "refused": {},
    }

    def take(engine: Engine, answer: Json) -> None:
        name, _, runner = engine.name.partition(" on ")
        gpus = options.engine.get("tensor_parallel_size", 1)
        leg = {"engine": name, "runner": runner, "gpus": gpus}
        figures = [{**leg, **one} for one in compared(answer["figures"])]
        result["figures"] += figures
        result["refused"][engine.name] = answer["refused"]
        if {one["rows"] for one in figures} != set(options.rows):
            what = f"not all of it was measured within {options.limit:g} s"
            result["failed"].append(f"{engine.name}: {what}")

    legs = itertools.product(options.engines, options.runner)
    measured(result, [_engine(options, *leg) for leg in legs], options, take)
    return finish(result, options.out, _COLUMNS)


def _engine(options: Any, name: str, runner: str) -> Engine:
    own = name == "plugin"
    backend = {} if own else {"structured_outputs_config": {"backend": name}}
    question = {
        "model": options.model,
        "tokenizer": options.tokenizer,
        "rows": options.rows,
        "schemas": options.schema + [REAL_WORLD] * bool(options.sample),
        "sample": options.sample and str(options.sample.absolute()),
        "steps": options.steps,
        "repetitions": options.repetitions,
        "engine": {**backend, **options.engine},
    }
    return Engine(
        f"{name} on {runner}",
        "benchmarks.engine_child",
        question,
        {"take_over": True} if own else None,
        v2=runner == "v2",
    )


def compared(figures: list[Json]) -> list[Json]:
    """Each against the unguided one of the same engine: over whole runs, and in the
    middle of them."""
    base = {one["rows"]: one for one in figures if one["way"] == "unguided"}
    for one in figures:
        other = base[one["rows"]]
        one["ratio"] = round(one["ms_per_step"] / other["ms_per_step"], 4)
        one["steady_ratio"] = round(one["steady_ms"] / other["steady_ms"], 4)
    return figures


if __name__ == "__main__":
    sys.exit(main())
