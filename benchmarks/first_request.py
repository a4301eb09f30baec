"""What the first guided requests wait for, after vLLM says that it is ready.

    python -m benchmarks.first_request [--rows 32] [--new 28] [--sample FOLDER_OR_TAR] [--out FILE]
        [--model DIR] [--tokenizer DIR] [--mode process] [--server] [--engine '{"load_format": "dummy"}']
        [--rounds 1] [--compare]

Starts an engine and measures whole runs of `rows` requests: unguided ones first, so that the model's own
first times are over, then the first guided run, warm ones, `new` schemas that come together, and those
again. `rounds` repeats the last two with other schemas: the table has the median. With `--compare` each
round has two such runs, in turn first: one as the package is, and one whose specs are admitted one after the
other. Without `--sample` (of MaskBench) the schemas are built in. With `--server` the requests go to vLLM's
OpenAI server, each from a thread of its own. Runs on the CPU with the shipped model, or on a CUDA device.
Needs vLLM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from benchmarks.samples import served_schemas
from guided_plugin.bench import environment
from guided_plugin.demo import MODEL_DIR

FIRST: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
}
WARM_RUNS = 5
KNOWN_RUNS = 3
SERVER_SECONDS = 300.0
"""How long a server may take to start."""
PROGRESS_SECONDS = 10.0

Ask = Callable[[list[dict[str, Any] | None]], float]
"""Sends a request for each schema, all at once; the seconds until the last has ended."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--new", type=int, default=28, help="new schemas that come together")
    parser.add_argument("--tokens", type=int, default=4, help="tokens of each request")
    parser.add_argument("--sample", type=Path, help="schemas of MaskBench, a folder or a tar archive")
    parser.add_argument("--model", default=str(MODEL_DIR))
    parser.add_argument("--tokenizer")
    parser.add_argument("--mode", default="process", choices=["process", "inline", "auto"])
    parser.add_argument("--engine", type=json.loads, default={}, help="further arguments of the engine, JSON")
    parser.add_argument("--server", action="store_true")
    parser.add_argument("--rounds", type=int, default=1, help="how often schemas are new")
    parser.add_argument("--compare", action="store_true", help="also with specs admitted one after the other")
    parser.add_argument("--device", default="cpu", help="for the description of the machine")
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args()
    os.environ["GUIDED_PLUGIN"] = json.dumps({"take_over": True, "mode": options.mode})
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    if options.compare and options.server:
        parser.error("--compare is for offline runs: a server admits the specs of its requests as they come")
    rounds = new_schemas(options, options.rounds * (1 + options.compare))
    with (served if options.server else offline)(options) as ask:
        result = {"environment": environment(options.device), "options": _plain(options)}
        result["ms"] = measure(ask, options.rows, len(rounds[0]))
        result["rounds"] = found = measure_new(ask, rounds, options.compare)
    for way in dict.fromkeys(one["way"] for one in found):
        for name in ("new_schemas", "the_same_known", "new_over_known"):
            each = [one[name] for one in found if one["way"] == way]
            result["ms"][name + way] = round(statistics.median(each), 2)
    for name, value in result["ms"].items():
        print(f"{name.replace('_', ' '):36} {value:10.1f} ms")
    if options.out:
        Path(options.out).write_text(json.dumps(result))


def measure(ask: Ask, rows: int, new: int) -> dict[str, float]:
    """Milliseconds of whole runs, before any schema is new."""
    for _ in range(3):
        unguided = ask([None] * rows)
    first = ask([FIRST] * rows)
    warm = statistics.median(ask([FIRST] * rows) for _ in range(WARM_RUNS))
    plain = statistics.median(ask([None] * new) for _ in range(2))
    seconds = {
        "unguided": unguided,
        "first_guided": first,
        "warm": warm,
        "first_over_warm": first - warm,
        "unguided_as_many": plain,
    }
    return {name: round(value * 1e3, 2) for name, value in seconds.items()}


def measure_new(ask: Ask, rounds: list[list[dict[str, Any]]], compare: bool) -> list[dict[str, Any]]:
    """The same of schemas that come together, and again; of each round."""
    found = []
    for number, schemas in enumerate(rounds):
        alone = compare and number % 4 in (1, 2)  # one way, the other, the other, the one
        with _one_by_one() if alone else contextlib.nullcontext():
            new = ask(list(schemas))
        known = statistics.median(ask(list(schemas)) for _ in range(KNOWN_RUNS))
        seconds = {"new_schemas": new, "the_same_known": known, "new_over_known": new - known}
        values = {name: round(value * 1e3, 2) for name, value in seconds.items()}
        found.append({"way": "_one_by_one" if alone else "", **values})
    return found


@contextlib.contextmanager
def _one_by_one() -> Iterator[None]:
    """`LLM` as it is without the package's wrapper, which has the next specs admitted too."""
    from vllm import LLM

    wrapper = vars(LLM)["_render_and_add_requests"]
    del LLM._render_and_add_requests
    try:
        yield
    finally:
        LLM._render_and_add_requests = wrapper


def new_schemas(options: argparse.Namespace, rounds: int) -> list[list[dict[str, Any]]]:
    """The schemas of each round: built in, or of the sample those that are served, in random order."""
    wanted, sample = options.new * rounds, options.sample
    found = list(map(_built_in, range(wanted))) if sample is None else served_schemas(sample, wanted)
    if len(found) < wanted:
        raise SystemExit(f"{sample} has {len(found)} schemas that are served, {wanted} are needed")
    return [found[start : start + options.new] for start in range(0, wanted, options.new)]


@contextlib.contextmanager
def offline(options: argparse.Namespace) -> Iterator[Ask]:
    """An engine in this process."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    from guided_plugin.vllm import GuidedLogitsProcessor

    llm = LLM(
        options.model,
        tokenizer=options.tokenizer,
        logits_processors=[GuidedLogitsProcessor],
        **{"max_model_len": 256, "max_num_seqs": max(options.rows, options.new), **options.engine},
    )

    def params(schema: dict[str, Any] | None) -> Any:
        outputs = None if schema is None else StructuredOutputsParams(json=schema)
        return SamplingParams(max_tokens=options.tokens, structured_outputs=outputs)

    def ask(schemas: list[dict[str, Any] | None]) -> float:
        asked = [params(schema) for schema in schemas]
        start = time.perf_counter()
        llm.generate(["x"] * len(asked), asked, use_tqdm=False)
        return time.perf_counter() - start

    yield ask


@contextlib.contextmanager
def served(options: argparse.Namespace) -> Iterator[Ask]:
    """vLLM's server in a process of its own; asked as soon as /health answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    engine = {"max_model_len": 256, "max_num_seqs": max(options.rows, options.new), **options.engine}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", options.model, "--served-model-name", "served", "--port", str(port)]
    command += ["--host", "127.0.0.1", "--disable-uvicorn-access-log"]
    command += ["--logits-processors", "guided_plugin.vllm:GuidedLogitsProcessor"]
    if options.tokenizer:
        command += ["--tokenizer", options.tokenizer]
    for name, value in engine.items():
        flag = "--" + name.replace("_", "-")
        command += [flag] if value is True else [flag, str(value)]

    def one(schema: dict[str, Any] | None) -> None:
        body = {"model": "served", "prompt": "x", "max_tokens": options.tokens}
        if schema is not None:
            body["structured_outputs"] = {"json": schema}
        request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=300) as answer:
            answer.read()

    with tempfile.TemporaryFile("w+") as log, ThreadPoolExecutor(max(options.rows, options.new)) as threads:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

        def ask(schemas: list[dict[str, Any] | None]) -> float:
            start = time.perf_counter()
            list(threads.map(one, schemas))
            return time.perf_counter() - start

        try:
            _wait_for(server, f"{address}/health", log)
            yield ask
        finally:
            server.terminate()
            server.wait(60)


def _wait_for(server: subprocess.Popen[bytes], url: str, log: IO[str]) -> None:
    """Wait until a server answers, and say so meanwhile. Exits with the end of its log if it does not."""
    start = told = time.monotonic()
    while not _answers(url):
        now = time.monotonic()
        ended = server.poll()
        if ended is not None or now - start > SERVER_SECONDS:
            what = (
                f"gave no answer within {SERVER_SECONDS:g} s" if ended is None else f"ended with code {ended}"
            )
            log.seek(0)
            raise SystemExit(
                f"{log.read()[-4000:]}\nvLLM's server {what}; above are the last lines of its log"
            )
        if now - told > PROGRESS_SECONDS:
            told = now
            print(f"waiting for vLLM's server, {now - start:.0f} s", file=sys.stderr, flush=True)
        time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except OSError:
        return False


def _built_in(number: int) -> dict[str, Any]:
    """Every other one compiles in a helper process."""
    kinds: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 10 + number},
        {"type": "integer", "minimum": number},
        {"type": "string", "pattern": f"^[a-z]{{1,{number + 2}}}$"},
        {"type": "array", "items": {"enum": ["new", "open", number]}},
    ]
    properties = {f"field_{number}_{place}": kind for place, kind in enumerate(kinds)}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"allOf": [schema, {"minProperties": 1}]} if number % 2 else schema


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}


if __name__ == "__main__":
    main()
