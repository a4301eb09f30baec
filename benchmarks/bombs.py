"""What one request with a grammar bomb costs the requests that decode next to it.

    python benchmarks/bombs.py [--out FILE] [--mode process] [--rows 8] [--vocabulary qwen.tiktoken]

For each bomb: ordinary rows decode random tokens, then the bomb joins them. The script prints the slowest
step, which ordinary requests failed, and how the bomb ended. Outputs of ordinary rows are checked with fresh
matchers.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import guided_plugin as gp
from guided_plugin.bench import environment, refused_at
from guided_plugin.config import MODES

RECORD = {
    "type": "array",
    "minItems": 500,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 24}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    },
}


def bombs() -> dict[str, gp.OutputSpec]:
    """Small grammars whose masks cost much, by kind."""
    lexers = "\n".join(f"{n}: /.*{c}.{{60}}/" for n, c in zip("ABCD", "abcd", strict=True))
    words = {"type": "grammar", "grammar": "root ::= w\nw ::= w w w | w w | [a-z ]+"}
    return {
        "ebnf": gp.OutputSpec.grammar("root ::= e\ne ::= e e e | [a-z] e | [a-z]"),
        "ebnf, nested": gp.OutputSpec.grammar('root ::= s\ns ::= s s | s s s | "a" s | "b" | [a-c]+'),
        "ebnf, xgrammar": gp.OutputSpec.grammar("root ::= e\ne ::= e e e e | [a-z]", backend="xgrammar"),
        "lark": gp.OutputSpec.grammar("start: e\ne: e e | X\nX: /[a-z]/", "lark"),
        "lexer": gp.OutputSpec.grammar(f"start: (A|B|C|D)+\n{lexers}", "lark"),
        "learnt states": gp.OutputSpec.regex("[a-z ]*[aeiou][a-z ]{150}"),
        "regex": gp.OutputSpec.regex("(a|b|ab|ba|aab)*(.*[aeiou].{20}){3}"),
        "tag": gp.OutputSpec.structural_tag(
            {
                "type": "structural_tag",
                "format": {"type": "tag", "begin": "<t>", "content": words, "end": "</t>"},
            }
        ),
    }


def vocabulary(path: str) -> gp.Vocabulary:
    """From a file of tiktoken ranks, with three control tokens after them."""
    tokens = [base64.b64decode(line.split()[0]) for line in Path(path).read_bytes().splitlines() if line]
    control = [b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>"]
    first = len(tokens)
    return gp.Vocabulary.from_tokens([*tokens, *control], [first, first + 2], [first + 1])


def run(compiler: gp.GrammarCompiler, spec: gp.OutputSpec, options: argparse.Namespace) -> dict[str, Any]:
    """Decode with one bomb; what happened."""
    ordinary = gp.OutputSpec.json_schema(RECORD)
    pipeline = gp.StepPipeline(compiler, max_slots=options.rows + 1, mode=options.mode)
    random = torch.Generator().manual_seed(7)
    width = compiler.vocabulary.size
    names = [f"ordinary-{n}" for n in range(options.rows)]
    slots = [pipeline.add_request(name, ordinary) for name in names]
    seconds: list[float] = []

    def step() -> None:
        logits = torch.rand(len(slots), width, generator=random)
        start = time.perf_counter()
        pipeline.plan(slots)
        pipeline.fill_mask()
        pipeline.apply_mask(logits)
        tokens = logits.argmax(-1)
        pipeline.schedule_update(tokens)
        pipeline.finish_update()
        seconds.append(time.perf_counter() - start)

    result: dict[str, Any] = {}
    try:
        for _ in range(16):
            step()
        before, seconds = seconds[8:], []
        try:
            slots.append(pipeline.add_request("bomb", spec))
        except gp.GuidedError as error:
            result["refused"] = str(error)
        end = time.monotonic() + options.seconds
        while len(seconds) < options.steps and time.monotonic() < end:
            step()
        failed = [name for name in names if pipeline.request(name).error is not None]
        wrong = [name for name in names if refused_at(compiler, ordinary, pipeline.tokens(name)) is not None]
        error = pipeline.request("bomb").error if "refused" not in result else None
        return {
            **result,
            "bomb": str(error) if error is not None else "no error",
            "tokens": len(pipeline.tokens("bomb")) if "refused" not in result else 0,
            "steps": len(seconds),
            "slowest_ms": round(1e3 * max(seconds), 1),
            "slowest_before_ms": round(1e3 * max(before), 1),
            "failed": failed,
            "wrong": wrong,
            "restarts": pipeline.metrics().worker.restarts,
        }
    finally:
        pipeline.close()


def main() -> int:
    """Run all bombs; 1 if an ordinary request suffered."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocabulary", required=True, help="a file of tiktoken ranks")
    parser.add_argument("--mode", choices=MODES, default="process")
    parser.add_argument("--rows", type=int, default=8, help="ordinary rows")
    parser.add_argument("--steps", type=int, default=200, help="steps with the bomb, at most")
    parser.add_argument("--seconds", type=float, default=30.0, help="the same in seconds")
    parser.add_argument("--only", help="one bomb by name")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    config = gp.GuidedConfig()
    found = {}
    for name, spec in bombs().items():
        if options.only in (None, name):
            # A compiler of its own: a spec in quarantine would be refused.
            compiler = gp.GrammarCompiler(vocabulary(options.vocabulary), config=config)
            found[name] = run(compiler, spec, options)
            print(f"{name:16}", json.dumps(found[name]), flush=True)
    if options.out is not None:
        options.out.write_text(
            json.dumps({"environment": environment(), "command": sys.argv[1:], "bombs": found})
        )
    bad = [name for name, one in found.items() if one["failed"] or one["wrong"] or one["slowest_ms"] > 1000]
    print("worse than allowed:", ", ".join(bad) or "none")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
