"""`guided-plugin bench`: what guiding costs on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from guided_plugin.cli import options
from guided_plugin.cli.loading import InputError, known_names, load_model, load_tokenizer, model_vocabulary
from guided_plugin.cli.results import check_out, deliver, progress, working
from guided_plugin.demo import MODEL_DIR

app = typer.Typer(help="Measure what guiding costs.", no_args_is_help=True)

# Fits in 80 columns.
_COLUMNS = (
    *(("rows", "{rows}"), ("schema", "{schema}"), ("backend", "{backend}")),
    *(("unguided ms", "{unguided_ms:.3f}"), ("guided ms", "{guided_ms:.3f}"), ("ratio", "{ratio:.3f}")),
)
_PLUGIN = ("plugin us", "{main_thread_us:.0f}")

Rows = Annotated[str, typer.Option(help="Batch sizes, separated by commas.")]
Schemas = Annotated[str, typer.Option(help="Schemas: plain, maxlength.")]
Steps = Annotated[int, typer.Option(min=8, help="Measured steps a run.")]
Repetitions = Annotated[int, typer.Option(min=1, help="Measured runs a figure.")]
Out = Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")]


@app.callback()
def _group() -> None:
    """Measure what guiding costs."""


@app.command("loop", short_help="Milliseconds a step of the reference loop.")
def loop(
    model: options.Model = MODEL_DIR,
    rows: Rows = "1,8,32",
    schema: Schemas = "plain",
    steps: Steps = 64,
    repetitions: Repetitions = 3,
    device: options.Device = "cpu",
    json_output: options.JsonOutput = False,
    out: Out = None,
) -> None:
    """The reference loop: milliseconds a step unguided and guided, and what the plugin takes of it."""
    counts, schemas = _asked(rows, schema, out)
    with working("loading the model"):
        from guided_plugin.bench.loop import bench_loop

        loaded = load_model(model, device)
        vocabulary = model_vocabulary(load_tokenizer(model), loaded)
    with progress("decoding", 2 * (repetitions + 1) * len(counts) * len(schemas)) as advance:
        result = bench_loop(
            loaded,
            vocabulary,
            rows=counts,
            schemas=schemas,
            steps=steps,
            repetitions=repetitions,
            progress=advance,
        )
    deliver({**result, "model": _name(model)}, out, json_output, (result["figures"], (*_COLUMNS, _PLUGIN)))


@app.command("transformers", short_help="Milliseconds a step of generate.")
def transformers(
    model: options.Model = MODEL_DIR,
    rows: Rows = "8,64",
    schema: Schemas = "plain",
    forward: Annotated[
        str, typer.Option(help="How the model runs: eager, static (static cache; compiled on a GPU).")
    ] = "eager",
    steps: Steps = 64,
    repetitions: Repetitions = 4,
    device: options.Device = "cpu",
    json_output: options.JsonOutput = False,
    out: Out = None,
) -> None:
    """transformers' generate: milliseconds a step unguided and guided."""
    counts, schemas = _asked(rows, schema, out)
    with working("loading the model"):
        from guided_plugin.bench.transformers import FORWARDS, bench_transformers

        forwards = known_names(forward, FORWARDS, "--forward")
        loaded = load_model(model, device)
        vocabulary = model_vocabulary(load_tokenizer(model), loaded)
    runs = 2 * (repetitions + 2) * len(counts) * len(schemas) * len(forwards)
    with progress("generating", runs) as advance:
        result = bench_transformers(
            loaded,
            vocabulary,
            rows=counts,
            schemas=schemas,
            forwards=forwards,
            steps=steps,
            repetitions=repetitions,
            progress=advance,
        )
    columns = (("forward", "{forward}"), *_COLUMNS, _PLUGIN)
    deliver({**result, "model": _name(model)}, out, json_output, (result["figures"], columns))


@app.command("vllm", short_help="Milliseconds a step of a vLLM engine.")
def vllm(
    model: Annotated[str, typer.Option(help="Folder or name of a model.", show_default="the demo's")] = str(
        MODEL_DIR
    ),
    rows: Rows = "8,64",
    schema: Schemas = "plain",
    steps: Steps = 256,
    repetitions: Repetitions = 3,
    engine: Annotated[str, typer.Option(help="More arguments of the engine, as a JSON object.")] = "{}",
    json_output: options.JsonOutput = False,
    out: Out = None,
) -> None:
    """A vLLM engine with `take_over`: milliseconds a step unguided, and with structured outputs."""
    counts, schemas = _asked(rows, schema, out)
    try:
        arguments = json.loads(engine)
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", where="--engine") from None
    if not isinstance(arguments, dict):
        raise InputError("must be a JSON object", where="--engine", hint='such as {"enforce_eager": true}')
    with working("starting the engine"):
        from guided_plugin.bench.vllm import bench_vllm, start_engine

        started: Any = start_engine(model, max(counts), steps, arguments)
    with progress("generating", 2 * (repetitions + 1) * len(counts) * len(schemas)) as advance:
        result = bench_vllm(
            started, rows=counts, schemas=schemas, steps=steps, repetitions=repetitions, progress=advance
        )
    deliver({**result, "model": _name(Path(model))}, out, json_output, (result["figures"], _COLUMNS))


def _asked(rows: str, schema: str, out: Path | None) -> tuple[list[int], list[str]]:
    """Batch sizes and names of schemas; refuses a file that can't be written before anything is measured."""
    from guided_plugin.bench.measuring import SCHEMAS

    schemas = known_names(schema, SCHEMAS, "--schema")
    try:
        counts = [int(part) for part in rows.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise InputError(f"must be numbers separated by commas, not {rows!r}", where="--rows", hint="8,64")
    check_out(out, "--out")
    return counts, schemas


def _name(model: Path) -> str:
    """What the JSON calls the model."""
    return "demo" if model == MODEL_DIR else model.resolve().name
