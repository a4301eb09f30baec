"""`guided-plugin bench`: what guiding costs on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guided_plugin.cli.loading import (
    InputError,
    known_names,
    load_model,
    load_tokenizer,
    model_vocabulary,
)
from guided_plugin.cli.results import (
    JsonOutput,
    check_out,
    json_object,
    print_json,
    progress,
    show_table,
    working,
    write_json,
)
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import did_you_mean

if TYPE_CHECKING:
    from guided_plugin.bench import Plan

_HOSTS = ("loop", "transformers", "vllm")

_COLUMNS = (
    *(("rows", "{rows}"), ("schema", "{schema}"), ("backend", "{backend}")),
    *(
        ("unguided ms", "{unguided_ms:.3f}"),
        ("guided ms", "{guided_ms:.3f}"),
        ("ratio", "{ratio:.3f}"),
    ),
)


def bench(
    host: Annotated[
        str, typer.Argument(help="loop (the reference loop), transformers or vllm.")
    ],
    model: Annotated[
        str,
        typer.Option(
            help="Folder of a model and its tokenizer; vllm: or a name.",
            show_default="the demo's",
        ),
    ] = str(MODEL_DIR),
    rows: Annotated[
        str, typer.Option(help="Batch sizes, separated by commas.")
    ] = "8,64",
    schema: Annotated[str, typer.Option(help="Schemas: plain, maxlength.")] = "plain",
    steps: Annotated[int, typer.Option(min=8, help="Measured steps per run.")] = 128,
    repetitions: Annotated[
        int, typer.Option(min=1, help="Measured runs per figure.")
    ] = 3,
    device: Annotated[
        str, typer.Option(help="cpu or cuda; vllm chooses its own.")
    ] = "cpu",
    engine: Annotated[
        str, typer.Option(help="vllm: more engine arguments, as a JSON object.")
    ] = "{}",
    json_output: JsonOutput = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write the JSON to this file.")
    ] = None,
) -> None:
    """Measure what guiding costs: milliseconds per step, unguided and guided in turn,
    in one host."""
    if host not in _HOSTS:
        raise InputError(
            f"unknown host {host!r}", where="bench", hint=did_you_mean(host, _HOSTS)
        )
    from guided_plugin.bench import SCHEMAS, Plan

    schemas = known_names(schema, SCHEMAS, "--schema")
    plan = Plan(_counts(rows), schemas, steps, repetitions)
    check_out(out, "--out")
    name = "demo" if model == str(MODEL_DIR) else Path(model).resolve().name
    run = (
        _vllm(model, plan, engine)
        if host == "vllm"
        else _model(host, Path(model), device)
    )
    with progress("decoding", plan.runs()) as advance:
        result = {**run(replace(plan, progress=advance)), "model": name}
    write_json(result, out)
    if json_output:
        print_json(result)
    else:
        show_table(result["figures"], _COLUMNS)


def _model(host: str, model: Path, device: str) -> Callable[[Plan], dict[str, Any]]:
    with working("loading the model"):
        from guided_plugin.bench import bench_loop, bench_transformers

        loaded = load_model(model, device)
        vocabulary = model_vocabulary(load_tokenizer(model), loaded)
    return partial(
        bench_loop if host == "loop" else bench_transformers, loaded, vocabulary
    )


def _vllm(model: str, plan: Plan, engine: str) -> Callable[[Plan], dict[str, Any]]:
    arguments = json_object(engine, "--engine", 'such as {"enforce_eager": true}')
    with working("starting the engine"):
        from guided_plugin.bench import bench_vllm, start_engine

        return partial(bench_vllm, start_engine(model, plan, arguments))


def _counts(rows: str) -> list[int]:
    try:
        counts = [int(part) for part in rows.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise InputError(
            f"must be numbers separated by commas, not {rows!r}",
            where="--rows",
            hint="8,64",
        )
    return counts
