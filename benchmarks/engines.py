"""Milliseconds a step in vLLM: unguided, and guided by this package or by vLLM's own
structured output.

    python -m benchmarks.engines --model DIR --engines plugin,guidance,xgrammar --rows 8,64,256 --out FILE

One process an engine, one after the other. All get the same requests; those that are
guided take turns with those that are not, in the same engine. `--executor uni,mp` and
`--tensor-parallel 1,2` measure each of them. `--sample` measures schemas of MaskBench
too, as `real-world`; the schema `new` asks for those, or else for `plain`, each request
with a schema that was never asked for. Prints a table. `thread us`: CPU time of the
main threads of vLLM's processes in a step. `wrong`: outputs that a fresh matcher
refuses. The file also has `refused`: schemas of the sample that an engine does not
take. Exit code 1 if an engine failed.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine_child import REAL_WORLD
from benchmarks.harness import (
    Engine,
    Json,
    Options,
    counts,
    finish,
    given,
    head,
    measured,
    names,
)
from guided_plugin.demo import MODEL_DIR

_COLUMNS = (
    ("engine", "{engine}"),
    ("runner", "{runner}"),
    ("executor", "{executor}"),
    ("GPUs", "{gpus}"),
    ("rows", "{rows}"),
    ("way", "{way}"),
    ("schema", "{schema}"),
    ("ms", "{ms_per_step:.3f}"),
    ("ratio", "{ratio:.3f}"),
    ("steady ms", "{steady_ms:.3f}"),
    ("ratio", "{steady_ratio:.3f}"),
    ("thread us", "{thread_us}"),
    ("wrong", "{wrong_outputs}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, print."""
    parser = Options(__doc__)
    parser.add("--model", str(MODEL_DIR), "folder of a model")
    parser.add("--tokenizer", None, "tokenizer folder; the model's if not given", str)
    parser.add(
        "--rows",
        [8, 64, 256],
        "batch sizes, separated by commas",
        counts,
    )
    parser.add("--schema", ["plain", "maxlength"], "plain, maxlength, new", names)
    engines = ["plugin", "guidance", "xgrammar"]
    parser.add("--engines", engines, "this package, and vLLM's own backends", names)
    parser.add("--runner", ["v2"], "model runners: v1, v2", names)
    parser.add("--executor", ["uni"], "uni (one GPU), mp", names)
    parser.add("--tensor-parallel", [1], "numbers of GPUs", counts)
    parser.add("--steps", 256, "tokens a request")
    parser.add("--repetitions", 3, "measured runs a figure")
    parser.add("--sample", None, "MaskBench files, a folder or a tar archive", Path)
    parser.add("--limit", 1200.0, "seconds of an engine")
    parser.engine()
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
    legs = {engine.name: leg for leg, engine in _legs(options)}

    def take(engine: Engine, answer: Json) -> None:
        leg = legs[engine.name]
        figures = [{**leg, **one} for one in compared(answer["figures"])]
        result["figures"] += figures
        result["refused"][engine.name] = answer["refused"]
        if {one["rows"] for one in figures} != set(options.rows):
            what = f"not all of it was measured within {options.limit:g} s"
            result["failed"].append(f"{engine.name}: {what}")

    measured(
        result,
        [engine for _, engine in _legs(options)],
        options,
        take,
    )
    return finish(result, options.out, _COLUMNS)


def _legs(options: Any) -> list[tuple[Json, Engine]]:
    """The engines: one process has one GPU."""
    kinds = itertools.product(
        options.runner, options.executor, options.tensor_parallel, options.engines
    )
    found = []
    for runner, executor, gpus, name in kinds:
        if executor == "uni" and gpus > 1:
            continue
        leg = {"engine": name, "runner": runner, "executor": executor, "gpus": gpus}
        own = {"distributed_executor_backend": executor, "tensor_parallel_size": gpus}
        if name != "plugin":
            own["structured_outputs_config"] = {"backend": name}
        question = {
            "model": options.model,
            "tokenizer": options.tokenizer,
            "rows": options.rows,
            "schemas": options.schema + [REAL_WORLD] * bool(options.sample),
            "sample": options.sample and str(options.sample.absolute()),
            "steps": options.steps,
            "repetitions": options.repetitions,
            "plugin": name == "plugin",
            "engine": {**own, **options.engine},
        }
        engine = Engine(
            f"{name} on {runner}, {executor}, {gpus} GPU",
            "benchmarks.engine_child",
            question,
            {"take_over": True} if name == "plugin" else None,
            v2=runner == "v2",
        )
        found.append((leg, engine))
    return found


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
