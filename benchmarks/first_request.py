"""What the first guided requests wait for, after vLLM says that it is ready.

    python benchmarks/first_request.py [--rows 32] [--new 28] [--sample FOLDER_OR_TAR] [--out FILE]
        [--model DIR] [--tokenizer DIR] [--mode process] [--server] [--engine '{"load_format": "dummy"}']

Starts an engine and measures whole runs of `rows` requests: unguided ones first, so that the model's own
first times are over, then the first guided run, warm ones, `new` schemas that come together, and those
again. Without `--sample` (of MaskBench) the schemas are built in. With `--server` the requests go to vLLM's
OpenAI server, each from a thread of its own. Runs on the CPU with the shipped model, or on a CUDA device.
Needs vLLM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
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
from typing import Any

from guided_plugin.bench.environment import environment
from guided_plugin.bench.maskbench import open_sample
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

FIRST: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
}
WARM_RUNS = 5

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
    parser.add_argument("--device", default="cpu", help="for the description of the machine")
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args()
    os.environ["GUIDED_PLUGIN"] = json.dumps({"take_over": True, "mode": options.mode})
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    schemas = new_schemas(options)
    with (served if options.server else offline)(options) as ask:
        result = {"environment": environment(options.device), "options": _plain(options)}
        measured = measure(ask, options.rows, schemas)
        result["ms"] = {name.replace(",", "").replace(" ", "_"): value for name, value in measured.items()}
    for name, value in result["ms"].items():
        print(f"{name:24} {value:10.1f} ms")
    print(json.dumps(result))
    if options.out:
        Path(options.out).write_text(json.dumps(result))


def measure(ask: Ask, rows: int, schemas: list[dict[str, Any]]) -> dict[str, float]:
    """Milliseconds of whole runs."""
    for _ in range(3):
        unguided = ask([None] * rows)
    first = ask([FIRST] * rows)
    warm = statistics.median(ask([FIRST] * rows) for _ in range(WARM_RUNS))
    plain = statistics.median(ask([None] * len(schemas)) for _ in range(2))
    new = ask(list(schemas))
    known = statistics.median(ask(list(schemas)) for _ in range(WARM_RUNS))
    seconds = {
        "unguided": unguided,
        "first guided": first,
        "warm": warm,
        "first over warm": first - warm,
        "unguided, as many": plain,
        "new schemas": new,
        "the same, known": known,
        "new over known": new - known,
    }
    return {name: round(value * 1e3, 2) for name, value in seconds.items()}


def new_schemas(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Schemas that are served, chosen at random from the sample, or built in."""
    if options.sample is None:
        return [_built_in(number) for number in range(options.new)]
    vocabulary = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])
    compiler = GrammarCompiler(vocabulary)
    found: list[dict[str, Any]] = []
    with open_sample(options.sample) as files:
        names = sorted(files)
        random.Random(1).shuffle(names)
        for name in names:
            schema = json.loads(files[name].read_text())["schema"]
            with contextlib.suppress(GuidedError):
                compiler.compile(OutputSpec.json_schema(schema))
                found.append(schema)
            if len(found) == options.new:
                break
    compiler.close()
    return found


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
            while not _answers(f"{address}/health"):
                if server.poll() is not None:
                    log.seek(0)
                    raise SystemExit(log.read()[-4000:])
                time.sleep(0.05)
            yield ask
        finally:
            server.terminate()
            server.wait(60)


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
