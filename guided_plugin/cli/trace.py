"""`guided-plugin trace`: a timeline of some decode steps, to look at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from guided_plugin.bench.schemas import SCHEMAS
from guided_plugin.cli import options
from guided_plugin.cli.loading import InputError, known, model_or_shape, needs_shape, read_json
from guided_plugin.cli.results import check_out, check_png, working
from guided_plugin.config import MODES, Mode
from guided_plugin.demo import MODEL_DIR


def trace(
    out: Annotated[Path, typer.Option(help="File to write: Chrome trace JSON.")] = Path("trace.json"),
    png: Annotated[
        Path | None, typer.Option(help="Also draw typical steps into this PNG (extra `plot`).")
    ] = None,
    read: Annotated[
        Path | None,
        typer.Option(metavar="<path>", help="Run nothing: draw the trace in this file into --png."),
    ] = None,
    model: options.Model = MODEL_DIR,
    shape: options.Shape = None,
    tokenizer: options.ShapeTokenizer = None,
    rows: Annotated[int, typer.Option(min=1, help="Guided rows.")] = 8,
    schema: Annotated[str, typer.Option(help="Schema: plain or maxlength.")] = "plain",
    steps: Annotated[int, typer.Option(min=1, max=512, help="Decode steps, after a warm-up.")] = 32,
    mode: Annotated[str, typer.Option(help="Where grammars work: auto, inline or process.")] = "auto",
    graph: Annotated[
        bool, typer.Option("--graph", help="Run the model's decode step as one CUDA graph.")
    ] = False,
    device: options.Device = "cpu",
) -> None:
    """Trace the reference loop: the engine's calls, both streams and the worker. Open it in Perfetto."""
    check_png(png)
    if read is not None:
        _draw_again(read, png)
        return
    needs_shape(shape, {"--tokenizer": tokenizer})
    if graph and device == "cpu":
        raise InputError("graphs are CUDA's", where="--graph", hint="add --device cuda")
    check_out(out, "--out")
    document = SCHEMAS[known(schema, SCHEMAS, "--schema")]
    chosen = cast("Mode", known(mode, MODES, "--mode"))
    with working("loading the model"):
        from guided_plugin.bench.environment import environment
        from guided_plugin.bench.trace import chrome_trace, trace_loop
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.spec import OutputSpec

        loaded, vocabulary = model_or_shape(model, shape, tokenizer, 0, device)
        compiler = GrammarCompiler(vocabulary)
    with working("decoding"):
        spec = OutputSpec.json_schema(document)
        spans = trace_loop(loaded, compiler, spec, rows=rows, steps=steps, mode=chosen, graph=graph)
    about = environment(device)
    name = shape or ("demo model" if model == MODEL_DIR else model.resolve().name)
    title = f"{rows} guided rows, schema {schema}, {name}, {about['device']}"
    result = {"title": title, "environment": about, **chrome_trace(spans)}
    out.write_text(json.dumps(result) + "\n")
    typer.echo(f"{out}: {len(spans)} spans of {steps} steps")
    if png is not None:
        _draw(result, png)


def _draw_again(read: Path, png: Path | None) -> None:
    if png is None:
        raise InputError("draws into --png, which is missing", where="--read", hint="add --png FILE")
    _draw(read_json(read), png)


def _draw(document: Any, png: Path) -> None:
    from guided_plugin.bench.trace import read_chrome_trace
    from guided_plugin.bench.trace_plot import plot_trace

    spans = read_chrome_trace(document)
    plot_trace(spans, png, title=str(document.get("title", "")))
    typer.echo(f"{png}: typical steps of it")
