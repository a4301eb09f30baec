"""`guided-plugin trace`: a timeline of some decode steps, to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast

import typer

from guided_plugin.bench.schemas import SCHEMAS
from guided_plugin.cli import options
from guided_plugin.cli.loading import known, model_or_shape, needs_shape
from guided_plugin.cli.results import check_out, working
from guided_plugin.config import MODES, Mode
from guided_plugin.demo import MODEL_DIR


def trace(
    out: Annotated[Path, typer.Option(help="File to write: Chrome trace JSON.")] = Path("trace.json"),
    png: Annotated[
        Path | None, typer.Option(help="Also draw some steps into this PNG (extra `plot`).")
    ] = None,
    model: options.Model = MODEL_DIR,
    shape: options.Shape = None,
    tokenizer: options.ShapeTokenizer = None,
    rows: Annotated[int, typer.Option(min=1, help="Guided rows.")] = 8,
    schema: Annotated[str, typer.Option(help="Schema: plain or maxlength.")] = "plain",
    steps: Annotated[int, typer.Option(min=1, max=512, help="Decode steps, after a warm-up.")] = 32,
    mode: Annotated[str, typer.Option(help="Where grammars work: auto, inline or process.")] = "auto",
    device: options.Device = "cpu",
) -> None:
    """Trace the reference loop: the engine's calls, both streams and the worker. Open it in Perfetto."""
    needs_shape(shape, {"--tokenizer": tokenizer})
    check_out(out, "--out")
    if png is not None:
        from guided_plugin.bench.trace_plot import load_matplotlib, plot_trace

        load_matplotlib()  # before anything is measured
        check_out(png, "--png")
    document = SCHEMAS[known(schema, SCHEMAS, "--schema")]
    chosen = cast("Mode", known(mode, MODES, "--mode"))
    with working("loading the model"):
        from guided_plugin.bench.trace import chrome_trace, trace_loop
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.spec import OutputSpec

        loaded, vocabulary = model_or_shape(model, shape, tokenizer, 0, device)
        compiler = GrammarCompiler(vocabulary)
    with working("decoding"):
        spec = OutputSpec.json_schema(document)
        spans = trace_loop(loaded, compiler, spec, rows=rows, steps=steps, mode=chosen)
    out.write_text(json.dumps(chrome_trace(spans)) + "\n")
    typer.echo(f"{out}: {len(spans)} spans of {steps} steps")
    if png is not None:
        plot_trace(spans, png, title=f"{rows} guided rows, schema {schema}, {device}")
        typer.echo(f"{png}: some steps of it")
