"""Outputs of vLLM on several ranks, each checked with a fresh matcher and, if it is finished, by jsonschema.

    python -m benchmarks.ranks [--tensor 2] [--pipeline 1] [--outputs 2000] [--rows 64] [--tokens 120]
        [--sample FOLDER_OR_TAR] [--one-gpu] [--engine '{"enable_batch_sharded_sampling": true}'] [--out FILE]

The schemas are those of MaskBench that are served, else some of the package; a third of the requests are
greedy, the others have seeds. With `--one-gpu` all ranks share one: for correctness, not for speed. Needs
vLLM and jsonschema.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.samples import served_schemas
from guided_plugin.bench import environment, refused_at
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.demo import MODEL_DIR
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 12},
        "age": {"type": "integer", "minimum": 18, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
OWN = [
    {"json_schema": PERSON},
    {"regex": "[a-f]{20}[0-9]{10}"},
    {"choice": ["alpha", "beta", "gamma"]},
    {"grammar": 'root ::= "(" root ")" | "x"'},
    {"json_schema": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,8}$"}, "maxItems": 5}},
]
MOST_SCHEMAS = 200


def main() -> None:
    """Generate, check, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensor", type=int, default=2)
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--outputs", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--sample", type=Path, help="schemas of MaskBench, a folder or a tar archive")
    parser.add_argument("--model", default=str(MODEL_DIR), help="left out: the shipped one")
    parser.add_argument("--engine", type=json.loads, default={}, help="further arguments of the engine, JSON")
    parser.add_argument("--one-gpu", action="store_true", help="all ranks on one GPU")
    parser.add_argument("--device", default="cpu", help="for the description of the machine")
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    forms = list(OWN)
    if options.sample is not None:
        forms += [{"json_schema": schema} for schema in served_schemas(options.sample, MOST_SCHEMAS)]
    llm, seconds = engine(options)
    compiler = GrammarCompiler(
        Vocabulary.from_tokenizer(llm.get_tokenizer()), config=GuidedConfig(isolate_compiles=False)
    )
    chosen = [random.Random(number).choice(forms) for number in range(options.outputs)]
    start = time.perf_counter()
    outputs = generate(llm, chosen, options)
    result: dict[str, Any] = {
        "command": " ".join(["benchmarks/ranks.py", *sys.argv[1:]]),
        **environment(options.device),
        "model_runner": os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "as vLLM chooses"),
        "options": _plain(options),
        "start_seconds": round(seconds, 1),
        "generate_seconds": round(time.perf_counter() - start, 1),
        "schemas": len(forms),
        **check(compiler, chosen, outputs),
    }
    metrics = [figures for worker in llm.collective_rpc("guided_metrics") for figures in worker]
    result["pipelines"] = [
        {name: one[name] for name in ("mode", "steps", "added", "failed")} for one in metrics
    ]
    print(json.dumps({name: value for name, value in result.items() if name != "versions"}, indent=1))
    if options.out:
        Path(options.out).write_text(json.dumps(result))


def engine(options: argparse.Namespace) -> tuple[Any, float]:
    """The engine, and the seconds that its start took."""
    from vllm import LLM

    from guided_plugin.vllm import GuidedLogitsProcessor

    shared: dict[str, Any] = {"distributed_executor_backend": "mp"}
    if options.one_gpu:
        from benchmarks.one_gpu import ONE_GPU

        shared = ONE_GPU
    start = time.perf_counter()
    llm = LLM(
        options.model,
        tensor_parallel_size=options.tensor,
        pipeline_parallel_size=options.pipeline,
        max_num_seqs=options.rows,
        enforce_eager=True,
        logits_processors=[GuidedLogitsProcessor],
        additional_config={"guided_plugin": {"mode": "process"}},
        **{"max_model_len": options.tokens + 32, **shared, **options.engine},
    )
    return llm, time.perf_counter() - start


def generate(llm: Any, forms: list[dict[str, Any]], options: argparse.Namespace) -> list[Any]:
    """An output for each form, in runs that show how far they are."""
    from vllm import SamplingParams

    params = [
        SamplingParams(
            extra_args={"guided": form},
            temperature=0.0 if number % 3 == 0 else 1.0,
            seed=number,
            max_tokens=options.tokens,
        )
        for number, form in enumerate(forms)
    ]
    outputs: list[Any] = []
    for first in range(0, len(forms), 500):
        part = params[first : first + 500]
        outputs += llm.generate(["Person as JSON: "] * len(part), part, use_tqdm=False)
        print(f"{len(outputs)} of {len(forms)} outputs", file=sys.stderr, flush=True)
    return [output.outputs[0] for output in outputs]


def check(compiler: GrammarCompiler, forms: list[dict[str, Any]], answers: list[Any]) -> dict[str, Any]:
    """How the outputs ended, and those that are wrong."""
    wrong = []
    for number, (form, answer) in enumerate(zip(forms, answers, strict=True)):
        spec = OutputSpec.parse(form)
        tokens = list(answer.token_ids)
        if answer.finish_reason == "error":  # it was told; its last token closed it
            tokens.pop()
        refused = None if spec is None else refused_at(compiler, spec, tokens)
        broken = ""
        if answer.finish_reason == "stop" and "json_schema" in form:
            try:
                jsonschema.validate(json.loads(answer.text), form["json_schema"])
            except (ValueError, jsonschema.ValidationError) as error:
                broken = str(error)[:200]
        if refused is not None or broken:
            about = {"number": number, "form": form, "text": answer.text}
            wrong.append({**about, "refused_at": refused, "says": broken})
    ends = Counter(answer.finish_reason for answer in answers)
    tokens = sum(len(answer.token_ids) for answer in answers)
    return {"outputs": len(answers), "tokens": tokens, "ends": dict(ends), "wrong": wrong}


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    named = {name: getattr(value, "name", value) for name, value in vars(options).items()}
    return {name: value for name, value in named.items() if name not in ("model", "out")}


if __name__ == "__main__":
    main()
