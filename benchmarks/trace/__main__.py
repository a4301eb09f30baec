"""A timeline of the reference loop: the engine's calls, both streams and the worker.
Open it in Perfetto.

    python -m benchmarks.trace --device cuda --graph --shape qwen3-0.6b --rows 64 --png step.png
    python -m benchmarks.trace --read trace.json --png step.png     # draws what was traced

The file has Chrome's trace format.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.models import SHAPES, model_of
from benchmarks.trace.picture import plot_trace
from benchmarks.trace.recorder import chrome_trace, read_chrome_trace, trace_loop
from guided_plugin.bench import SCHEMAS, environment
from guided_plugin.cli.loading import read_json
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import MODES
from guided_plugin.demo import MODEL_DIR
from guided_plugin.spec import OutputSpec


def main(arguments: Sequence[str] | None = None) -> None:
    """Trace and write, or read; then draw where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("trace.json"), help="file to write"
    )
    parser.add_argument("--png", type=Path, help="draw typical steps here")
    parser.add_argument(
        "--read", type=Path, help="run nothing: draw the trace in this file; -: stdin"
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=MODEL_DIR,
        help="folder of a model with its tokenizer",
    )
    parser.add_argument(
        "--shape", choices=SHAPES, help="random weights of this shape instead"
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=MODEL_DIR,
        help="tokenizer folder to go with --shape",
    )
    parser.add_argument("--rows", type=int, default=8, help="guided rows")
    parser.add_argument("--schema", choices=SCHEMAS, default="plain")
    parser.add_argument(
        "--steps", type=int, default=32, help="decode steps, after a warm-up"
    )
    parser.add_argument(
        "--mode", choices=MODES, default="auto", help="where grammars work"
    )
    parser.add_argument(
        "--graph", action="store_true", help="run the decode step as one CUDA graph"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.set_defaults(width=0)
    options = parser.parse_args(arguments)
    result = _traced(options) if options.read is None else read_json(options.read)
    if options.png is not None:
        plot_trace(
            read_chrome_trace(result), options.png, title=str(result.get("title", ""))
        )
        print(f"{options.png}: typical steps of it")


def _traced(options: argparse.Namespace) -> dict[str, Any]:
    model, vocabulary, name = model_of(options)
    spans = trace_loop(
        model,
        GrammarCompiler(vocabulary),
        OutputSpec.json_schema(SCHEMAS[options.schema]),
        rows=options.rows,
        steps=options.steps,
        mode=options.mode,
        graph=options.graph,
    )
    about = environment(options.device)
    title = f"{options.rows} guided rows, schema {options.schema}, {name}, {about['device']}"
    result = {"title": title, "environment": about, **chrome_trace(spans)}
    options.out.write_text(json.dumps(result) + "\n")
    print(f"{options.out}: {len(spans)} spans of {options.steps} steps")
    return result


if __name__ == "__main__":
    main()
