"""Milliseconds a step in vLLM: unguided, and guided by this package or by vLLM's own
structured output.

    python -m benchmarks.engines --model DIR --engines plugin,guidance,xgrammar --rows 8,64,256 --out FILE

One process an engine. All get the same requests; those that are guided take turns with
those that are not, in the same engine. `--executor uni,mp` and `--tensor-parallel 1,2`
measure each of them; `--mixed 30` adds seconds of requests at random moments, half of
them guided; `--sample` measures schemas of MaskBench too, as `real-world`, and what the
first of them cost. Prints tables. `thread us`: CPU time of the main threads of vLLM's
processes in a step. `wrong`: outputs that a fresh matcher refuses.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.engine_child import REAL_WORLD
from guided_plugin.cli.results import check_out, progress, show_table, write_json
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import PipelineError

_LEG = (
    ("engine", "{engine}"),
    ("runner", "{runner}"),
    ("executor", "{executor}"),
    ("GPUs", "{gpus}"),
)
_FIGURES = (
    *_LEG,
    *(
        ("rows", "{rows}"),
        ("way", "{way}"),
        ("schema", "{schema}"),
        ("ms", "{ms_per_step:.3f}"),
    ),
    *(
        ("ratio", "{ratio:.3f}"),
        ("steady ms", "{steady_ms:.3f}"),
        ("ratio", "{steady_ratio:.3f}"),
    ),
    *(("thread us", "{thread_us}"), ("wrong", "{wrong_outputs}")),
)
_MIXED = (
    *_LEG,
    *(("way", "{way}"), ("tokens/s", "{tokens_per_second}")),
    *(
        ("between tokens p50 ms", "{inter_token_ms[p50]:.2f}"),
        ("p99", "{inter_token_ms[p99]:.2f}"),
    ),
    *(
        ("first token p50 ms", "{first_token_ms[p50]:.2f}"),
        ("p99", "{first_token_ms[p99]:.2f}"),
    ),
    ("wrong", "{wrong_outputs}"),
)
_ENGINES = ("plugin", "guidance", "xgrammar")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, print. 1 if an engine failed."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    options = parsed(given)
    check_out(options.out, "--out")
    with progress("engines", len(_legs(options))) as advance:
        result = measure(
            options, "python -m benchmarks.engines " + shlex.join(given), advance
        )
    for name, columns in (("figures", _FIGURES), ("mixed", _MIXED)):
        if result[name]:
            show_table(result[name], columns)
    for failure in result["failed"]:
        print(failure, file=sys.stderr)
    return int(bool(result["failed"]))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(MODEL_DIR), help="folder of a model")
    parser.add_argument(
        "--tokenizer", help="tokenizer folder; the model's if not given"
    )
    parser.add_argument(
        "--rows", default="8,64,256", help="batch sizes, separated by commas"
    )
    parser.add_argument(
        "--schema", default="plain,maxlength", help="schemas, separated by commas"
    )
    parser.add_argument(
        "--engines",
        default=",".join(_ENGINES),
        help="this package, and vLLM's own backends",
    )
    parser.add_argument("--runner", default="v2", help="model runners: v1, v2")
    parser.add_argument("--executor", default="uni", help="uni (one GPU), mp")
    parser.add_argument(
        "--tensor-parallel", default="1", help="numbers of GPUs, separated by commas"
    )
    parser.add_argument("--steps", type=int, default=256, help="tokens a request")
    parser.add_argument(
        "--repetitions", type=int, default=3, help="measured runs a figure"
    )
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parser.add_argument(
        "--mixed", type=float, default=0.0, help="seconds of requests at random moments"
    )
    parser.add_argument(
        "--rate", type=float, default=60.0, help="how many of those come a second"
    )
    parser.add_argument(
        "--engine",
        type=json.loads,
        default={},
        help="more arguments of the engine, as JSON",
    )
    parser.add_argument(
        "--sample", type=Path, help="schemas of MaskBench, a folder or a tar archive"
    )
    parser.add_argument(
        "--limit", type=float, default=1200.0, help="seconds of an engine"
    )
    parser.add_argument("--out", type=Path, help="also write the JSON here")
    return parser.parse_args(arguments)


def measure(
    options: argparse.Namespace,
    command: str = "",
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run the engines one after the other; the result is written, and `progress`
    called, after each."""
    result: dict[str, Any] = {"command": command, "date": None, "benchmark": "vllm"}
    result["model"] = Path(options.model).name
    result |= {"steps": options.steps, "repetitions": options.repetitions}
    result |= {"figures": [], "mixed": [], "starts": [], "failed": []}
    for leg in _legs(options):
        asked = {
            "model": options.model,
            "tokenizer": options.tokenizer or options.model,
            "rows": [int(count) for count in options.rows.split(",")],
            "schemas": [
                *options.schema.split(","),
                *(REAL_WORLD,) * (options.sample is not None),
            ],
            "sample": None
            if options.sample is None
            else str(options.sample.absolute()),
            "steps": options.steps,
            "repetitions": options.repetitions,
            "device": options.device,
            "mixed": {"seconds": options.mixed, "rate": options.rate}
            if options.mixed
            else None,
            "plugin": leg["engine"] == "plugin",
            "engine": {**_arguments(leg), **options.engine},
        }
        try:
            found = _run(asked, leg, options.limit)
        except PipelineError as error:
            result["failed"].append(str(error))
        else:
            known = found["environment"]
            result |= {"date": known["date"], "environment": known}
            result["figures"] += [{**leg, **one} for one in _compared(found["figures"])]
            result["mixed"] += [{**leg, **one} for one in found["mixed"]]
            result["starts"].append({**leg, **found["starts"]})
            missing = set(asked["rows"]) - {
                figure["rows"] for figure in found["figures"]
            }
            if missing or (options.mixed and not found["mixed"]):
                what = f"not all of it was measured within {options.limit:g} s"
                result["failed"].append(f"{leg['engine']} on {leg['runner']}: {what}")
        write_json(result, options.out)
        progress()
    return result


def _legs(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The engines: one process has one GPU."""
    runners, executors, names = (
        text.split(",") for text in (options.runner, options.executor, options.engines)
    )
    gpus = [int(count) for count in options.tensor_parallel.split(",")]
    return [
        {"engine": name, "runner": runner, "executor": executor, "gpus": count}
        for runner, executor, count, name in itertools.product(
            runners, executors, gpus, names
        )
        if executor != "uni" or count == 1
    ]


def _arguments(leg: dict[str, Any]) -> dict[str, Any]:
    own = (
        {}
        if leg["engine"] == "plugin"
        else {"structured_outputs_config": {"backend": leg["engine"]}}
    )
    return {
        "distributed_executor_backend": leg["executor"],
        "tensor_parallel_size": leg["gpus"],
        **own,
    }


def _compared(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each against the unguided one of the same engine: over whole runs, and in the
    middle of them."""
    base = {figure["rows"]: figure for figure in figures if figure["way"] == "unguided"}
    return [
        {
            **figure,
            "ratio": round(
                figure["ms_per_step"] / base[figure["rows"]]["ms_per_step"], 4
            ),
            "steady_ratio": round(
                figure["steady_ms"] / base[figure["rows"]]["steady_ms"], 4
            ),
        }
        for figure in figures
    ]


def _run(options: dict[str, Any], leg: dict[str, Any], limit: float) -> dict[str, Any]:
    environment = {
        "VLLM_USE_V2_MODEL_RUNNER": "1" if leg["runner"] == "v2" else "0",
        "GUIDED_PLUGIN": json.dumps({"take_over": True}) if options["plugin"] else "0",
    }
    where = f"benchmarks.engines, {leg['engine']} on {leg['runner']}"
    return run_child("benchmarks.engine_child", options, environment, limit, where)


def run_child(
    module: str,
    options: dict[str, Any],
    environment: dict[str, str],
    timeout: float,
    where: str,
) -> dict[str, Any]:
    """What a process with an engine answers, its last answer if it ended early. It gets
    two files: its options, and the one to write its answer to. Raises PipelineError, at
    `where`, if it answers nothing."""
    level = {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING")}
    with tempfile.TemporaryDirectory() as folder:
        asked, answer, log = (
            Path(folder, name) for name in ("options", "result", "log")
        )
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
    """What an engine that failed said: its errors, the last ones, or else its last
    lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = list(
        dict.fromkeys(found[0] for found in map(_ERROR.search, lines) if found)
    )
    return "; ".join(errors[-3:] or lines[-3:]) or "it said nothing"


_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Exit)(?:: .*|$)")
"""The line of a traceback that names the error, also behind the head of a log line;
some say no more."""


if __name__ == "__main__":
    sys.exit(main())
