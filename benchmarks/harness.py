"""What the benchmarks share: options, raw files, engines in processes of their own that
take turns, and clocks.

An engine's process is a module that calls `serve` with what it measures; `measured`
asks one or several of them, each with its `Engine`. A result is written after each of
them, and an engine tells its own after each part, so that a time limit costs what was
not measured yet.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import gzip
import itertools
import json
import math
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import Columns, show_table, writable
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError, PipelineError, did_you_mean

Json = dict[str, Any]
_PACKAGES = ("torch", "xgrammar", "llguidance", "transformers", "triton", "vllm")
_MEMORY = 0.88
"""Of a GPU's memory, for engines that share it."""
_CPU = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Where they are not set: GiB of keys and values; and vLLM does not pin its threads, so
that it shares the machine with others."""


class Options(argparse.ArgumentParser):
    """The options of a command whose description is its module's docstring."""

    def __init__(self, doc: str | None, **more: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(
            description=doc,
            formatter_class=form,
            **more,
        )

    def add(self, name: str, default: Any, what: str, kind: Any = None) -> None:
        """An option with a value."""
        kind = kind or type(default)
        self.add_argument(
            name,
            default=default,
            help=what,
            type=kind,
        )

    def several(
        self, name: str, default: list[str], known: Collection[str], what: str
    ) -> None:
        """An option whose values, separated by commas, are each of a fixed set."""

        def read(text: str) -> list[str]:
            found = names(text)
            for one in found:
                if one not in known:
                    hint = did_you_mean(one, known)
                    raise argparse.ArgumentTypeError(f"unknown: {one!r} ({hint})")
            return found

        self.add(name, default, f"{what}: {', '.join(known)}", read)

    def model(self, *, needs_sample: bool) -> None:
        """Those of every command whose engines are asked for schemas of a sample."""
        self.add("--model", str(MODEL_DIR), "folder of a model")
        self.add("--tokenizer", None, "tokenizer folder; the model's if not given", str)
        sample = "MaskBench files: a folder or a tar archive"
        self.add_argument("--sample", type=Path, required=needs_sample, help=sample)

    def engine(self, limit: float | None = None) -> None:
        """Those of every command that starts engines; a limit is for processes of their
        own."""
        self.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
        self.add("--engine", {}, "more arguments of the engines, as JSON", json.loads)
        if limit is not None:
            self.add("--limit", limit, "seconds of an engine; what was measured counts")
        self.out()

    def sample(self) -> None:
        """Those of every command that reads all files of MaskBench."""
        files = "folder or tar archive of MaskBench files"
        self.add_argument("source", type=Path, help=files)
        folder = "folder of a transformers tokenizer"
        self.add_argument("--tokenizer", type=Path, required=True, help=folder)
        self.add("--every", 1, "take every Nth file only")
        self.out()

    def out(self) -> None:
        """Where the raw file goes."""
        self.add("--out", None, "also write the JSON here; *.gz: compressed", writable)


def names(text: str) -> list[str]:
    """A value with commas."""
    return text.split(",")


def counts(text: str) -> list[int]:
    """Numbers with commas between them."""
    return list(map(int, names(text)))


def given(arguments: Sequence[str] | None) -> list[str]:
    """The words of a command."""
    return sys.argv[1:] if arguments is None else list(arguments)


def head(module: str, arguments: Sequence[str], device: str = "cpu") -> Json:
    """How a raw file begins."""
    command = f"python -m {module} {shlex.join(arguments)}"
    here = environment(device)
    return {"command": command, "date": here["date"], "environment": here}


def environment(device: str = "cpu") -> dict[str, Any]:
    """Everything a reader needs to judge a figure measured on a device."""
    import torch

    from guided_plugin import __version__

    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "guided_plugin": __version__,
        "python": platform.python_version(),
        "versions": versions,
        "cpus": os.cpu_count(),
        "device": torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else device,
    }


def write(result: Json, path: Path | None) -> None:
    """Write a raw file, where one is asked for: all at once, and the same bytes for the
    same result."""
    if path is None:
        return
    data = (json.dumps(result, indent=1) + "\n").encode()
    partly = path.with_name(path.name + ".part")
    partly.write_bytes(
        gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data
    )
    partly.replace(path)


@dataclass(frozen=True, slots=True)
class Engine:
    """A process with an engine, and what is asked of it."""

    name: str
    module: str
    question: Json
    plugin: Json | None
    """Options of the plugin; None: it is off."""
    v2: bool = True
    """vLLM's V2 model runner, which needs a GPU."""

    def variables(self) -> dict[str, str]:
        """What chooses the runner and the plugin."""
        return {
            "VLLM_USE_V2_MODEL_RUNNER": str(int(self.v2)),
            "GUIDED_PLUGIN": "0" if self.plugin is None else json.dumps(self.plugin),
        }


def measured(
    result: Json,
    engines: Sequence[Engine],
    options: argparse.Namespace,
    take: Callable[[Engine, Json], None],
    *,
    together: bool = False,
) -> None:
    """Ask engines, one after the other or `together`, and add each answer to a result
    with `take`. Those that fail are listed in it.

    Engines that run together share the GPU, and work in turns.
    """
    result.setdefault("failed", [])
    with (
        tempfile.NamedTemporaryFile() as turns,
        ThreadPoolExecutor(len(engines) if together else 1) as pool,
    ):
        for engine in engines:
            engine.question.update(
                turns=turns.name,
                device=options.device,
                guided=engine.plugin is not None,
            )
            if together and options.device != "cpu":
                share = round(_MEMORY / len(engines), 2)
                engine.question["engine"].setdefault("gpu_memory_utilization", share)
        running = {
            pool.submit(ask, engine, options.limit): engine for engine in engines
        }
        for ended in as_completed(running):
            engine = running[ended]
            try:
                answer = ended.result()
            except GuidedError as error:
                result["failed"].append(str(error))
            else:
                result["environment"] = answer["environment"]
                result["date"] = answer["environment"]["date"]
                take(engine, answer)
            write(result, options.out)


def finish(result: Json, out: Path | None, columns: Columns) -> int:
    """Write a result, show its figures and tell which engines failed: the exit code."""
    write(result, out)
    if result["figures"]:
        show_table(result["figures"], columns)
    for failure in result["failed"]:
        print(failure, file=sys.stderr)
    return int(bool(result["failed"]))


def ask(engine: Engine, limit: float) -> Json:
    """What an engine's process answers, its last answer if it ended early. Raises
    PipelineError if it answers nothing.

    It gets two files: the question, and the one to write its answer to.
    """
    level = {"VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING")}
    with tempfile.TemporaryDirectory() as folder:
        question = Path(folder, "question")
        answer = Path(folder, "answer")
        log = Path(folder, "log")
        question.write_text(json.dumps(engine.question))
        with log.open("w") as out:
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    engine.module,
                    str(question),
                    str(answer),
                ],
                env={**os.environ, **level, **engine.variables()},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                ended = f"ended with exit code {child.wait(limit)} and no result"
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)  # the engine's processes too
                child.wait()
                ended = f"gave no result within {limit:g} s"
        if not answer.exists():
            raise PipelineError(
                f"the engine {ended}: {_last_words(log.read_text(errors='replace'))}",
                where=f"{engine.module}, {engine.name}",
                hint="VLLM_LOGGING_LEVEL=DEBUG makes it say more",
            )
        return dict(json.loads(answer.read_text()))


def _last_words(log: str) -> str:
    """What an engine that failed said: its last errors, or else its last lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [found[0] for found in map(_ERROR.search, lines) if found]
    return (
        "; ".join(list(dict.fromkeys(errors))[-3:] or lines[-3:]) or "it said nothing"
    )


_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Exit)(?:: .*|$)")
"""The line of a traceback that names the error, also behind the head of a log line;
some say no more."""


def serve(measure: Callable[[Json, Callable[[Json], None]], None]) -> None:
    """Answer the question of `ask`: `measure` gets it, and a function that tells what
    is known so far.

    When who asks is gone, this process and all that it started end too: an engine holds
    the memory of its GPU.
    """
    parent = os.getppid()
    question, answer = map(Path, sys.argv[1:3])

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    asked = json.loads(question.read_text())

    def tell(known: Json) -> None:
        # Not before the engine has started: it touches the device.
        write({"environment": environment(asked["device"]), **known}, answer)

    measure(asked, tell)


def start(question: Json, **more: Any) -> Any:
    """vLLM's engine for a question, without a cache of prompts."""
    if question["device"] == "cpu":
        os.environ.update({**_CPU, **os.environ})
    from vllm import LLM

    arguments = {"enable_prefix_caching": False, **more, **question["engine"]}
    tokenizer = question.get("tokenizer") or question["model"]
    return LLM(
        question["model"],
        tokenizer=tokenizer,
        **arguments,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Requests that an engine answered, handed in at once."""

    outputs: list[Any]
    """In the order of the requests."""
    seconds: float
    """From the first request in to the last output out."""
    stamps: list[float]
    """When outputs came, by the engine's own clock."""
    thread: float
    """CPU seconds of the main threads of vLLM's processes."""

    @property
    def gaps(self) -> list[float]:
        """Seconds between outputs that follow each other."""
        return [later - one for one, later in itertools.pairwise(self.stamps)]


def generated(llm: Any, prompts: Sequence[list[int]], params: Sequence[Any]) -> Run:
    """Answer these requests."""
    stamps: list[float] = []

    def note(step: Any) -> None:
        if step.outputs:
            stamps.append(step.timestamp)

    thread = thread_clock()
    before = thread()
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    with watched(llm, note):
        start = time.monotonic()
        found = llm.generate(asked, params, use_tqdm=False)
        seconds = time.monotonic() - start
    outputs = [one.outputs[0] for one in found]
    return Run(outputs, seconds, stamps, thread() - before)


def plugin_metrics(llm: Any, question: Json) -> list[Json]:
    """The plugin's own figures, of each rank; empty where it is off."""
    if not question["guided"]:
        return []
    from guided_plugin.hosts.vllm.common import METRICS

    # Ranks that follow another one, and stages that do not sample, answer nothing.
    return [answer[0] for answer in llm.collective_rpc(METRICS) if answer]


@contextlib.contextmanager
def turn(path: str | Path, *, together: bool = False) -> Iterator[None]:
    """The engines that share this file work one at a time, but for those that work
    `together`."""
    with Path(path).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH if together else fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # the engine's process has the file too
    time.sleep(0.05)  # who waits is next


@contextlib.contextmanager
def watched(llm: Any, note: Callable[[Any], None]) -> Iterator[None]:
    """Call `note` with the engine's outputs of each step."""
    core = llm.llm_engine.engine_core
    original = core.get_output

    def get_output() -> Any:
        outputs = original()
        note(outputs)
        return outputs

    core.get_output = get_output
    try:
        yield
    finally:
        del core.get_output


def thread_clock() -> Callable[[], float]:
    """Tells the CPU seconds that the main threads of vLLM's processes, those that this
    one started, have used."""
    import psutil

    files = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith("VLLM::"):
                files.append(Path(f"/proc/{process.pid}/task/{process.pid}/stat"))
    tick = os.sysconf("SC_CLK_TCK")

    def seconds() -> float:
        fields = [file.read_text().rpartition(")")[2].split() for file in files]
        return sum(int(each[11]) + int(each[12]) for each in fields) / tick

    return seconds


def quantile(values: Sequence[float] | NDArray[Any], share: float) -> float:
    """The smallest value that is not below this share of the values: one that was
    measured."""
    rank = max(0, math.ceil(share * len(values)) - 1)
    return float(np.partition(values, rank)[rank])


def median(values: Iterable[float], digits: int = 4) -> float:
    """Rounded, for JSON."""
    return round(statistics.median(values), digits)


def own_schema(schema: Json, number: object) -> Json:
    """The same schema as one that was never asked for: the text differs, and nothing
    that it means."""
    return {**schema, "$comment": f"schema {number}"}
