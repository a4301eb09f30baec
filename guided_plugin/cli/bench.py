"""`guided-plugin bench`: what guiding costs on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from guided_plugin.bench.schemas import SCHEMAS
from guided_plugin.bench.vllm import RUNNERS, bench_vllm
from guided_plugin.cli import options
from guided_plugin.cli.loading import InputError, known_names, model_or_shape, needs_shape
from guided_plugin.cli.results import check_out, check_png, deliver, progress, working, write_json
from guided_plugin.demo import MODEL_DIR

app = typer.Typer(help="Measure what guiding costs.", no_args_is_help=True)

# Each table fits in 80 columns.
_LOOP = (
    *(("rows", "{rows}"), ("schema", "{schema}"), ("backend", "{backend}")),
    *(("unguided ms", "{unguided_ms:.3f}"), ("guided ms", "{guided_ms:.3f}"), ("ratio", "{ratio:.3f}")),
    *(("plugin us", "{main_thread_us:.0f}"), ("share", "{share:.1%}")),
)
_GENERATE = (
    *(("rows", "{rows}"), ("schema", "{schema}"), ("forward", "{forward}")),
    *(("unguided ms", "{unguided_ms:.3f}"), ("guided ms", "{guided_ms:.3f}"), ("ratio", "{ratio:.3f}")),
)
_XGRAMMAR = (("xgrammar ms", "{xgrammar_ms:.3f}"), ("ratio", "{xgrammar_ratio:.3f}"))
_ENGINES = (
    *(("runner", "{runner}"), ("rows", "{rows}"), ("way", "{way}"), ("schema", "{schema}")),
    *(("ms", "{ms_per_step:.3f}"), ("ratio", "{ratio:.3f}")),
    *(("steady ms", "{steady_ms:.3f}"), ("ratio", "{steady_ratio:.3f}"), ("wrong", "{wrong_outputs}")),
)
_MIXED = (
    *(("runner", "{runner}"), ("way", "{way}"), ("tokens/s", "{tokens_per_second}")),
    *(("between tokens p50 ms", "{inter_token_ms[p50]:.2f}"), ("p99", "{inter_token_ms[p99]:.2f}")),
    *(("first token p50 ms", "{first_token_ms[p50]:.2f}"), ("p99", "{first_token_ms[p99]:.2f}")),
    ("wrong", "{wrong_outputs}"),
)


@app.callback()
def _group() -> None:
    """Measure what guiding costs."""


@app.command("loop", short_help="Milliseconds a step, unguided and guided.")
def loop(
    model: options.Model = MODEL_DIR,
    shape: options.Shape = None,
    tokenizer: options.ShapeTokenizer = None,
    width: options.Width = 0,
    rows: options.Rows = "1,8,32",
    schema: options.Schemas = "plain",
    steps: options.Steps = 64,
    repetitions: options.Repetitions = 3,
    backend: options.Backend = "auto",
    device: options.Device = "cpu",
    graph: Annotated[
        bool, typer.Option("--graph", help="Run the model's decode step as one CUDA graph.")
    ] = False,
    json_output: options.JsonOutput = False,
    out: options.Out = None,
    png: options.Png = None,
) -> None:
    """The reference loop: milliseconds a step unguided and guided, and the plugin's share of it."""
    counts, schemas = _batch_sizes(rows), known_names(schema, SCHEMAS, "--schema")
    needs_shape(shape, {"--tokenizer": tokenizer, "--width": width})
    if graph and device == "cpu":
        raise InputError("graphs are CUDA's", where="--graph", hint="add --device cuda")
    check_out(out, "--out")
    check_png(png)
    with working("loading the model"):
        from guided_plugin.bench.loop import bench_loop

        loaded, vocabulary = model_or_shape(model, shape, tokenizer, width, device)
    with progress("decoding", 2 * (repetitions + 1) * len(counts) * len(schemas)) as advance:
        result = bench_loop(
            loaded,
            vocabulary,
            rows=counts,
            schemas=schemas,
            steps=steps,
            repetitions=repetitions,
            backend=backend,
            graph=graph,
            progress=advance,
        )
    result["model"] = _name(model, shape)
    deliver(result, out, json_output, (result["figures"], _LOOP))
    _draw(result, png)


@app.command("transformers", short_help="Milliseconds a step of generate, next to xgrammar's processor.")
def transformers(
    model: options.Model = MODEL_DIR,
    shape: options.Shape = None,
    tokenizer: options.ShapeTokenizer = None,
    width: options.Width = 0,
    rows: options.Rows = "8,64",
    schema: options.Schemas = "plain,maxlength",
    forward: Annotated[
        str, typer.Option(help="How the model runs: eager, static (static cache; compiled on a GPU).")
    ] = "eager,static",
    steps: options.Steps = 64,
    repetitions: options.Repetitions = 4,
    backend: options.Backend = "auto",
    compare: Annotated[bool, typer.Option(help="Measure xgrammar's own processor too.")] = True,
    device: options.Device = "cpu",
    json_output: options.JsonOutput = False,
    out: options.Out = None,
    png: options.Png = None,
) -> None:
    """transformers' generate: milliseconds a step unguided, guided, and with xgrammar's own processor."""
    counts, schemas = _batch_sizes(rows), known_names(schema, SCHEMAS, "--schema")
    needs_shape(shape, {"--tokenizer": tokenizer, "--width": width})
    check_out(out, "--out")
    check_png(png)
    with working("loading the model"):
        from guided_plugin.bench.transformers import FORWARDS, bench_transformers

        forwards = known_names(forward, FORWARDS, "--forward")
        loaded, vocabulary = model_or_shape(model, shape, tokenizer, width, device)
    runs = (2 + compare) * (repetitions + 2) * len(counts) * len(schemas) * len(forwards)
    with progress("generating", runs) as advance:
        result = bench_transformers(
            loaded,
            vocabulary,
            rows=counts,
            schemas=schemas,
            forwards=forwards,
            steps=steps,
            repetitions=repetitions,
            backend=backend,
            compare=compare,
            progress=advance,
            found=lambda so_far: write_json(so_far, out),
        )
    result["model"] = _name(model, shape)
    columns = (*_GENERATE, *_XGRAMMAR) if compare else _GENERATE
    deliver(result, out, json_output, (result["figures"], columns))
    _draw(result, png)


@app.command("vllm", short_help="Milliseconds a step in vLLM, built-in and with the plugin.")
def vllm(
    model: Annotated[str, typer.Option(help="Folder of a model.", show_default="the demo's")] = str(
        MODEL_DIR
    ),
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer folder.", show_default="the model's")
    ] = None,
    rows: options.Rows = "8,64,256",
    schema: options.Schemas = "plain,maxlength",
    runner: Annotated[str, typer.Option(help="Model runners: v1, v2.")] = "v1,v2",
    steps: Annotated[int, typer.Option(min=8, help="Tokens a request.")] = 256,
    repetitions: options.Repetitions = 3,
    built_in: Annotated[bool, typer.Option(help="Measure vLLM's own structured output too.")] = True,
    device: options.Device = "cuda",
    mixed: Annotated[
        float, typer.Option(min=0, help="Seconds of requests at random moments, half of them guided.")
    ] = 0.0,
    rate: Annotated[float, typer.Option(min=0.1, help="How many of those come a second.")] = 60.0,
    engine: Annotated[str, typer.Option(help="More arguments of the engine, as a JSON object.")] = "{}",
    sample: Annotated[
        Path | None, typer.Option(help="Schemas of MaskBench, a folder or a tar archive: measured too.")
    ] = None,
    json_output: options.JsonOutput = False,
    out: options.Out = None,
    png: options.Png = None,
) -> None:
    """vLLM, an engine each without the plugin and with it: unguided, its own structured output, ours."""
    counts, schemas = _batch_sizes(rows), known_names(schema, SCHEMAS, "--schema")
    runners = known_names(runner, RUNNERS, "--runner")
    try:
        arguments = json.loads(engine)
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", where="--engine") from None
    if not isinstance(arguments, dict):
        raise InputError("must be a JSON object", where="--engine", hint='such as {"enforce_eager": true}')
    check_out(out, "--out")
    check_png(png)
    with progress("engines", 2 * len(runners)) as advance:
        result = bench_vllm(
            model,
            tokenizer or model,
            rows=counts,
            schemas=schemas,
            runners=runners,
            built_in=built_in,
            steps=steps,
            repetitions=repetitions,
            device=device,
            mixed=mixed,
            rate=rate,
            engine=arguments,
            sample=sample,
            progress=advance,
        )
    deliver(result, out, json_output, (result["figures"], _ENGINES), (result["mixed"], _MIXED))
    _draw(result, png)


def _batch_sizes(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise InputError(f"must be numbers separated by commas, not {text!r}", where="--rows", hint="8,64")
    return counts


def _draw(result: dict[str, Any], png: Path | None) -> None:
    if png is not None:
        from guided_plugin.bench.figures_plot import plot_ratios

        plot_ratios(result, png)


def _name(model: Path, shape: str | None) -> str:
    """What the JSON calls the model."""
    return shape or ("demo" if model == MODEL_DIR else model.resolve().name)
