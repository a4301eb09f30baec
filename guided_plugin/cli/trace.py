"""`guided-plugin trace`: a timeline of some decode steps, to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from guided_plugin.cli.bench import check_out, model_or_shape
from guided_plugin.cli.loading import InputError, working
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import did_you_mean

__all__ = ["trace"]


def trace(
    out: Annotated[Path, typer.Option(help="File to write: Chrome trace JSON.")] = Path("trace.json"),
    png: Annotated[
        Path | None, typer.Option(help="Also draw some steps into this PNG (extra `plot`).")
    ] = None,
    model: Annotated[
        Path, typer.Option(help="Folder of a model with its tokenizer.", show_default="the demo's")
    ] = MODEL_DIR,
    shape: Annotated[
        str | None, typer.Option(help="Random weights of this shape instead: qwen3-0.6b, qwen3-1.7b.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer folder to go with --shape.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Guided rows.")] = 8,
    schema: Annotated[str, typer.Option(help="Schema: plain or maxlength.")] = "plain",
    steps: Annotated[int, typer.Option(min=1, max=512, help="Decode steps, after a warm-up.")] = 32,
    mode: Annotated[str, typer.Option(help="Where grammars work: auto, inline or process.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Trace the reference loop: the engine's calls, both streams and the worker. Open it in Perfetto."""
    check_out(out)
    if png is not None:
        from guided_plugin.bench.trace_plot import load_matplotlib, plot_trace

        load_matplotlib()  # before anything is measured
        check_out(png)
    with working("loading the model"):
        from guided_plugin.bench.schemas import SCHEMAS
        from guided_plugin.bench.trace import chrome_trace, trace_loop
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.config import MODES
        from guided_plugin.spec import OutputSpec

        for value, known, where in ((schema, SCHEMAS, "--schema"), (mode, MODES, "--mode")):
            if value not in known:
                raise InputError(f"unknown value {value!r}", where=where, hint=did_you_mean(value, known))
        loaded, vocabulary = model_or_shape(model, shape, tokenizer, 0, device)
    spec = OutputSpec.json_schema(SCHEMAS[schema])
    with working("decoding"):
        spans = trace_loop(
            loaded,
            GrammarCompiler(vocabulary),
            spec,
            rows=rows,
            steps=steps,
            mode=mode,  # type: ignore[arg-type]  # checked above
        )
    out.write_text(json.dumps(chrome_trace(spans)) + "\n")
    typer.echo(f"{out}: {len(spans)} spans of {steps} steps")
    if png is not None:
        plot_trace(spans, png, title=f"{rows} guided rows, schema {schema}, {device}")
        typer.echo(f"{png}: some steps of it")
