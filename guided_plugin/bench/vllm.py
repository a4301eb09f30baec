"""`bench vllm`: milliseconds a step in vLLM, unguided, with its own structured output, and with the plugin.

One process an engine: each runner without the plugin and with it. Only these children import vLLM.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from guided_plugin.bench.schemas import REAL_WORLD
from guided_plugin.errors import PipelineError

RUNNERS = ("v1", "v2")

_WITHOUT = ("unguided", "logit_bias", "built-in")
"""`logit_bias` is vLLM's own, which adds 0 to one token: the cost of processing logits at all."""
_WITH = ("unguided", "logit_bias", "extra_args", "take_over")


def bench_vllm(
    model: str,
    tokenizer: str,
    *,
    rows: Sequence[int],
    schemas: Sequence[str],
    runners: Sequence[str] = RUNNERS,
    built_in: bool = True,
    steps: int = 256,
    repetitions: int = 3,
    device: str = "cuda",
    mixed: float = 0.0,
    rate: float = 60.0,
    engine: dict[str, Any] | None = None,
    sample: Path | None = None,
    timeout: float = 1200.0,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run the engines one after the other; `progress` is called after each.

    `mixed` seconds of requests at random moments, `rate` of them a second, follow the figures. Schemas of a
    `sample` of MaskBench are measured too, as `real-world`.
    """
    engines = []
    for runner in runners:
        for plugin in (False, True):
            ways = _WITH if plugin else _WITHOUT if built_in else _WITHOUT[:-1]
            options = {
                "model": model,
                "tokenizer": tokenizer,
                "rows": list(rows),
                "schemas": [*schemas, *(REAL_WORLD,) * (sample is not None)],
                "sample": None if sample is None else str(sample.absolute()),
                "ways": list(ways),
                "steps": steps,
                "repetitions": repetitions,
                "device": device,
                "plugin": plugin,
                "mixed": {"seconds": mixed, "rate": rate} if mixed else None,
                "engine": engine or {},
            }
            result = _run(options, runner, timeout)
            engines.append({"runner": runner, "plugin": plugin, **result})
            progress()
    return {
        "benchmark": "vllm",
        "environment": engines[0]["environment"],
        "model": Path(model).name,
        "steps": steps,
        "repetitions": repetitions,
        "figures": _figures(engines),
        "mixed": [
            {**figure, "runner": engine["runner"], "way": _way(engine, figure)}
            for engine in engines
            for figure in engine["mixed"]
        ],
        "engines": engines,
    }


def _needs_vllm() -> None:
    """Refuse at once where vLLM is missing, before a process has imported torch to find out."""
    if find_spec("vllm") is None:
        raise PipelineError(
            "No module named 'vllm'",
            where="bench vllm",
            hint="pip install 'guided-plugin[vllm]', or run it in vLLM's environment",
        )


def _run(options: dict[str, Any], runner: str, timeout: float) -> dict[str, Any]:
    _needs_vllm()
    environment = {
        **os.environ,
        "VLLM_USE_V2_MODEL_RUNNER": "1" if runner == "v2" else "0",
        "GUIDED_PLUGIN": json.dumps({"take_over": True}) if options["plugin"] else "0",
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    }
    with tempfile.TemporaryDirectory() as folder:
        asked, answer, log = (Path(folder, name) for name in ("options", "result", "log"))
        asked.write_text(json.dumps(options))
        command = [sys.executable, "-m", "guided_plugin.bench.vllm_child", str(asked), str(answer)]
        with log.open("w") as out:
            child = subprocess.Popen(
                command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
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
                where=f"bench vllm, runner {runner}",
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
