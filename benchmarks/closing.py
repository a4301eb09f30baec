"""Whether outputs end valid within their limit: random models and random walks over a
sample of real schemas.

python -m benchmarks.closing SAMPLE --tokenizer DIR [--every N] [--first K] [--seed 1]
[--json OUT]

Each schema that compiles is asked for with five limits of 16 to 256 tokens, by two
models: `random` samples any token that the mask allows; `gumbel` the likeliest under
random logits at temperature 1, and it dislikes to stop. Each output is judged by
jsonschema-rs, from its text alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np

from benchmarks.samples import open_sample
from guided_plugin.bench import environment
from guided_plugin.cli.loading import load_tokenizer
from guided_plugin.cli.results import check_out, progress, write_json
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

LIMITS = (16, 32, 64, 128, 256)
MODELS = ("random", "gumbel")
_SCALE = 2.0
"""Of the logits of `gumbel`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source", type=Path, help="folder or tar archive of MaskBench files"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        required=True,
        help="folder of a transformers tokenizer",
    )
    parser.add_argument("--every", type=int, default=1, help="take every Nth file only")
    parser.add_argument(
        "--first", type=int, default=0, help="of them, from the one with this index on"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args(arguments)
    check_out(options.json, "--json")
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(options.tokenizer))
    compiler = GrammarCompiler(
        vocabulary,
        config=GuidedConfig(
            isolate_compiles=False, close_before_length=True, threads=1
        ),
    )
    counts: Counter[str] = Counter()
    figures: dict[str, list[float]] = {
        "unused": [],
        "led": [],
        "step_us": [],
        "least": [],
    }
    bad: list[list[Any]] = []
    rng = np.random.default_rng(options.seed)
    with (
        open_sample(options.source) as files,
        progress("schemas", len(files) // options.every) as advance,
    ):
        for name in sorted(files)[options.first :: options.every]:
            advance()
            schema = json.loads(files[name].read_text())["schema"]
            try:
                spec = OutputSpec.json_schema(schema)
                least = compiler.compile(spec).admission().least
            except GuidedError as error:
                counts[
                    "no end was found" if "no end" in error.what else "refused schemas"
                ] += 1
                if "no end" in error.what:
                    bad.append([name, error.what])
                continue
            counts["schemas"] += 1
            figures["least"].append(least)
            judge = _judge(schema)
            for limit in LIMITS:
                for model in MODELS:
                    if limit < least:
                        counts["too little room"] += 1
                        continue
                    verdict = _output(compiler, spec, limit, model, rng, judge, figures)
                    counts[verdict] += 1
                    if verdict not in ("valid", "not judged"):
                        bad.append([name, limit, model, verdict])
    found = {"counts": dict(counts), "bad": bad, **_summary(figures)}
    print(json.dumps(found, indent=1))
    head = {
        "command": "python -m benchmarks.closing "
        + " ".join(arguments or sys.argv[1:]),
        "date": time.strftime("%Y-%m-%d"),
        "versions": environment(),
    }
    write_json({**head, **found}, options.json)
    return int(bool(bad))


def _judge(schema: Any) -> Any:
    try:
        return jsonschema_rs.validator_for(schema)
    except (ValueError, jsonschema_rs.ReferencingError):
        return None  # what it can't read is counted


def _output(
    compiler: GrammarCompiler,
    spec: OutputSpec,
    limit: int,
    model: str,
    rng: np.random.Generator,
    judge: Any,
    figures: dict[str, list[float]],
) -> str:
    """What became of one output."""
    vocabulary = compiler.vocabulary
    grammar = compiler.compile(spec)
    table = GrammarTable(vocabulary)
    table.add(0, "one", spec.within(limit), grammar, compiler.backend(grammar.backend))
    mask = np.zeros((1, vocabulary.words), np.int32)
    tokens: list[int] = []
    while len(tokens) < limit:
        start = time.perf_counter()
        table.fill((0,), mask)
        figures["step_us"].append(1e6 * (time.perf_counter() - start))
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not len(allowed):
            return "nothing allowed"
        if model == "random":
            token = int(rng.choice(allowed))
        else:
            logits = _SCALE * rng.standard_normal(len(allowed)) + rng.gumbel(
                size=len(allowed)
            )
            logits[np.isin(allowed, vocabulary.stop_token_ids)] -= 10
            token = int(allowed[logits.argmax()])
        tokens.append(token)
        table.accept((0,), [token])
        if token in vocabulary.stop_token_ids:
            break
    else:
        return "cut by length"
    closing = table.requests[0].closing
    if closing is not None and closing.led:
        figures["led"].append(closing.led)
        figures["unused"].append(limit - len(tokens))
    text = b"".join(vocabulary.tokens[token] for token in tokens[:-1])
    try:
        value = json.loads(text, parse_float=_finite)
    except ValueError:
        return "not JSON"
    if judge is None:
        return "not judged"
    return "valid" if judge.is_valid(value) else "invalid"


def _finite(text: str) -> float:
    """A number that doubles don't reach is one all the same; jsonschema-rs takes no
    infinity."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


def _summary(figures: dict[str, list[float]]) -> dict[str, Any]:
    return {
        name: {
            "count": len(values),
            "p50": round(statistics.median(values), 1),
            "p90": round(float(np.quantile(values, 0.9)), 1),
            "p99": round(float(np.quantile(values, 0.99)), 1),
            "max": round(max(values), 1),
        }
        for name, values in figures.items()
        if values
    }


if __name__ == "__main__":
    raise SystemExit(main())
