"""Milliseconds a step in vLLM: unguided, with its own structured output, and with the plugin.

    python -m benchmarks.engines --model DIR --runner v2 --rows 8,64,256 --schema plain,maxlength --out FILE

One process an engine, each runner without the plugin and with it; only these children import vLLM.
`--mixed 30` adds seconds of requests at random moments, half of them guided; `--sample` measures schemas of
MaskBench too, as `real-world`. Prints tables.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine_child import REAL_WORLD
from guided_plugin.cli.results import progress, show_table, write_json
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import PipelineError

_ENGINES = (
    *(("runner", "{runner}"), ("rows", "{rows}"), ("way", "{way}"), ("schema", "{schema}")),
    *(("ms", "{ms_per_step:.3f}"), ("ratio", "{ratio:.3f}")),
    *(("steady ms", "{steady_ms:.3f}"), ("ratio", "{steady_ratio:.3f}"), ("wrong", "{wrong_outputs}")),
)
_MIXED = (
    *(("runner", "{runner}"), ("way", "{way}"), ("tokens/s", "{tokens_per_second}")),
    *(("between tokens p50 ms", "{inter_token_ms[p50]:.2f}"), ("p99", "{inter_token_ms[p99]:.2f}")),
    *(("first token p50 ms", "{first_token_ms[p50]:.2f}"), ("p99", "{first_token_ms[p99]:.2f}")),
    ("wrong", "{wrong_outputs}"),
)

_WITHOUT = ("unguided", "logit_bias", "built-in")
"""`logit_bias` is vLLM's own, which adds 0 to one token: the cost of processing logits at all."""
_WITH = ("unguided", "logit_bias", "extra_args", "take_over")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    options = parsed(arguments)
    with progress("engines", 2 * len(options.runner.split(","))) as advance:
        result = measure(options, progress=advance)
    write_json(result, options.out)
    show_table(result["figures"], _ENGINES)
    if result["mixed"]:
        show_table(result["mixed"], _MIXED)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(MODEL_DIR), help="folder of a model")
    parser.add_argument("--tokenizer", help="tokenizer folder; the model's if not given")
    parser.add_argument("--rows", default="8,64,256", help="batch sizes, separated by commas")
    parser.add_argument("--schema", default="plain,maxlength", help="schemas, separated by commas")
    parser.add_argument("--runner", default="v1,v2", help="model runners: v1, v2")
    parser.add_argument("--steps", type=int, default=256, help="tokens a request")
    parser.add_argument("--repetitions", type=int, default=3, help="measured runs a figure")
    parser.add_argument("--no-built-in", dest="built_in", action="store_false", help="not vLLM's own")
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parser.add_argument("--mixed", type=float, default=0.0, help="seconds of requests at random moments")
    parser.add_argument("--rate", type=float, default=60.0, help="how many of those come a second")
    parser.add_argument("--engine", type=json.loads, default={}, help="more arguments of the engine, as JSON")
    parser.add_argument("--sample", type=Path, help="schemas of MaskBench, a folder or a tar archive")
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    return parser.parse_args(arguments)


def measure(
    options: argparse.Namespace, timeout: float = 1200.0, progress: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Run the engines one after the other; `progress` is called after each."""
    engines = []
    for runner in options.runner.split(","):
        for plugin in (False, True):
            ways = _WITH if plugin else _WITHOUT if options.built_in else _WITHOUT[:-1]
            asked = {
                "model": options.model,
                "tokenizer": options.tokenizer or options.model,
                "rows": [int(count) for count in options.rows.split(",")],
                "schemas": [*options.schema.split(","), *(REAL_WORLD,) * (options.sample is not None)],
                "sample": None if options.sample is None else str(options.sample.absolute()),
                "ways": list(ways),
                "steps": options.steps,
                "repetitions": options.repetitions,
                "device": options.device,
                "plugin": plugin,
                "mixed": {"seconds": options.mixed, "rate": options.rate} if options.mixed else None,
                "engine": options.engine,
            }
            result = _run(asked, runner, timeout)
            engines.append({"runner": runner, "plugin": plugin, **result})
            progress()
    return {
        "benchmark": "vllm",
        "environment": engines[0]["environment"],
        "model": Path(options.model).name,
        "steps": options.steps,
        "repetitions": options.repetitions,
        "figures": _figures(engines),
        "mixed": [
            {**figure, "runner": engine["runner"], "way": _way(engine, figure)}
            for engine in engines
            for figure in engine["mixed"]
        ],
        "engines": engines,
    }


def _run(options: dict[str, Any], runner: str, timeout: float) -> dict[str, Any]:
    environment = {
        "VLLM_USE_V2_MODEL_RUNNER": "1" if runner == "v2" else "0",
        "GUIDED_PLUGIN": json.dumps({"take_over": True}) if options["plugin"] else "0",
    }
    where = f"benchmarks.engines, runner {runner}"
    return run_child("benchmarks.engine_child", options, environment, timeout, where)


def run_child(
    module: str, options: dict[str, Any], environment: dict[str, str], timeout: float, where: str
) -> dict[str, Any]:
    """What a process with an engine answers, its last answer if it ended early. It gets two files: its
    options, and the one to write its answer to. Raises PipelineError, at `where`, if it answers nothing."""
    level = {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING")}
    with tempfile.TemporaryDirectory() as folder:
        asked, answer, log = (Path(folder, name) for name in ("options", "result", "log"))
        asked.write_text(json.dumps(options))
        command = [sys.executable, "-m", module, str(asked), str(answer)]
        with log.open("w") as out:
            child = subprocess.Popen(
                command,
                env={**os.environ, **level, **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                ended = f"ended with exit code {child.wait(timeout)} and no result"
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)  # the engine's processes too
                child.wait()
                ended = f"gave no result within {timeout:g} s"
        if not answer.exists():
            raise PipelineError(
                f"the engine {ended}: {_last_words(log.read_text(errors='replace'))}",
                where=where,
                hint="VLLM_LOGGING_LEVEL=DEBUG makes it say more",
            )
        result: dict[str, Any] = json.loads(answer.read_text())
        return result


def _last_words(log: str) -> str:
    """What an engine that failed said: its errors, the last ones, or else its last lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = list(dict.fromkeys(found[0] for found in map(_ERROR.search, lines) if found))
    return "; ".join(errors[-3:] or lines[-3:]) or "it said nothing"


_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Exit)\b: .*")
"""The line of a traceback that names the error, also behind the head of a log line."""


def _figures(engines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every figure against the unguided one of the same runner without the plugin: over whole runs, and in
    the middle of them (`steady`)."""
    base = {
        (engine["runner"], figure["rows"]): figure
        for engine in engines
        for figure in engine["figures"]
        if not engine["plugin"] and figure["way"] == "unguided"
    }
    figures = []
    for engine in engines:
        for figure in engine["figures"]:
            unguided = base[engine["runner"], figure["rows"]]
            figures.append(
                {
                    "runner": engine["runner"],
                    "way": _way(engine, figure),
                    **{name: figure[name] for name in ("rows", "schema", "tokens_per_second", "ms_per_step")},
                    "ratio": round(figure["ms_per_step"] / unguided["ms_per_step"], 4),
                    "steady_ms": figure["steady_ms"],
                    "steady_ratio": round(figure["steady_ms"] / unguided["steady_ms"], 4),
                    "wrong_outputs": figure["wrong_outputs"],
                }
            )
    return figures


def _way(engine: dict[str, Any], figure: dict[str, Any]) -> str:
    """The way of a figure; `loaded` is unguided with the plugin loaded. Engines differ by some percent from
    start to start, so ways are best compared within one engine."""
    way: str = figure["way"]
    loaded = {"unguided": "loaded", "logit_bias": "logit_bias, loaded"}
    return loaded.get(way, way) if engine["plugin"] else way


if __name__ == "__main__":
    main()
