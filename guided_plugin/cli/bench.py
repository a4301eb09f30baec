"""`guided-plugin bench`: the figures this project quotes, on your machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from guided_plugin.cli.loading import (
    InputError,
    check_device,
    load_model,
    load_tokenizer,
    model_vocabulary,
    print_json,
    working,
)
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import did_you_mean

if TYPE_CHECKING:
    from guided_plugin.grammar.vocabulary import Vocabulary

__all__ = ["app", "check_out", "model_or_shape"]

app = typer.Typer(help="Measure what guiding costs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Measure what guiding costs."""


@app.command("loop", short_help="Milliseconds a step, unguided and guided.")
def loop(
    model: Annotated[
        Path, typer.Option(help="Folder of a model with its tokenizer.", show_default="the demo's")
    ] = MODEL_DIR,
    shape: Annotated[
        str | None, typer.Option(help="Random weights of this shape instead: qwen3-0.6b, qwen3-1.7b.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer folder to go with --shape.")] = None,
    width: Annotated[int, typer.Option(help="Logits width of the random model; 0: its tokenizer's.")] = 0,
    rows: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,8,32",
    schema: Annotated[str, typer.Option(help="Schemas: plain, maxlength.")] = "plain",
    steps: Annotated[int, typer.Option(min=8, help="Measured steps a run.")] = 64,
    repetitions: Annotated[int, typer.Option(min=1, help="Measured runs a figure.")] = 3,
    backend: Annotated[str, typer.Option(help="Grammar backend; auto chooses per spec.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    graph: Annotated[
        bool, typer.Option("--graph", help="Run the model's decode step as one CUDA graph.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of a table.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """The reference loop: milliseconds a step unguided and guided, and the plugin's share of it."""
    counts, schemas = _rows(rows), _schemas(schema)
    if graph and device == "cpu":
        raise InputError("graphs are CUDA's", where="--graph", hint="add --device cuda")
    if out is not None:
        check_out(out)
    with working("loading the model"):
        from guided_plugin.bench.loop import bench_loop

        loaded, vocabulary = model_or_shape(model, shape, tokenizer, width, device)
    runs = 2 * (repetitions + 1) * len(counts) * len(schemas)
    with _progress() as progress:
        task = progress.add_task("decoding", total=runs)
        result = bench_loop(
            loaded,
            vocabulary,
            rows=counts,
            schemas=schemas,
            steps=steps,
            repetitions=repetitions,
            backend=backend,
            graph=graph,
            progress=lambda: progress.advance(task),
        )
    result["model"] = shape or ("demo" if model == MODEL_DIR else model.resolve().name)
    if _told_as_json(result, out, json_output):
        return
    headings = ("rows", "schema", "backend", "unguided ms", "guided ms", "ratio", "plugin us", "share")
    table = Table(*headings, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # fits in 80 columns
    for figure in result["figures"]:
        table.add_row(
            str(figure["rows"]),
            figure["schema"],
            figure["backend"],
            f"{figure['unguided_ms']:.3f}",
            f"{figure['guided_ms']:.3f}",
            f"{figure['ratio']:.3f}",
            f"{figure['main_thread_us']:.0f}",
            f"{figure['share']:.1%}",
        )
    Console().print(table)


@app.command("transformers", short_help="Milliseconds a step of generate, beside xgrammar's processor.")
def transformers(
    model: Annotated[
        Path, typer.Option(help="Folder of a model with its tokenizer.", show_default="the demo's")
    ] = MODEL_DIR,
    shape: Annotated[
        str | None, typer.Option(help="Random weights of this shape instead: qwen3-0.6b, qwen3-1.7b.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer folder to go with --shape.")] = None,
    width: Annotated[int, typer.Option(help="Logits width of the random model; 0: its tokenizer's.")] = 0,
    rows: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "8,64",
    schema: Annotated[str, typer.Option(help="Schemas: plain, maxlength.")] = "plain,maxlength",
    forward: Annotated[
        str, typer.Option(help="How the model runs: eager, static (static cache; compiled on a GPU).")
    ] = "eager,static",
    steps: Annotated[int, typer.Option(min=8, help="Measured steps a run.")] = 64,
    repetitions: Annotated[int, typer.Option(min=1, help="Measured runs a figure.")] = 4,
    backend: Annotated[str, typer.Option(help="Grammar backend; auto chooses per spec.")] = "auto",
    compare: Annotated[bool, typer.Option(help="Measure xgrammar's own processor too.")] = True,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json_output: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of a table.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """transformers' generate: milliseconds a step unguided, guided, and with xgrammar's own processor."""
    counts, schemas, forwards = _rows(rows), _schemas(schema), forward.split(",")
    if out is not None:
        check_out(out)
    with working("loading the model"):
        from guided_plugin.bench.transformers import FORWARDS, bench_transformers

        for name in forwards:
            if name not in FORWARDS:
                hint = did_you_mean(name, FORWARDS)
                raise InputError(f"unknown forward {name!r}", where="--forward", hint=hint)
        loaded, vocabulary = model_or_shape(model, shape, tokenizer, width, device)
    runs = (2 + compare) * (repetitions + 2) * len(counts) * len(schemas) * len(forwards)
    with _progress() as progress:
        task = progress.add_task("generating", total=runs)
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
            progress=lambda: progress.advance(task),
            found=lambda so_far: _written(so_far, out),
        )
    result["model"] = shape or ("demo" if model == MODEL_DIR else model.resolve().name)
    if _told_as_json(result, out, json_output):
        return
    headings = ("rows", "schema", "forward", "unguided ms", "guided ms", "ratio", "xgrammar ms", "ratio")
    table = Table(*headings, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # fits in 80 columns
    for figure in result["figures"]:
        theirs = figure["xgrammar_ms"], figure["xgrammar_ratio"]
        table.add_row(
            str(figure["rows"]),
            figure["schema"],
            figure["forward"],
            f"{figure['unguided_ms']:.3f}",
            f"{figure['guided_ms']:.3f}",
            f"{figure['ratio']:.3f}",
            *("" if value is None else f"{value:.3f}" for value in theirs),
        )
    Console().print(table)


@app.command("kernel", short_help="The mask kernel and mask copies against their limits (CUDA).")
def kernel(
    rows: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "8,64,256",
    width: Annotated[int, typer.Option(min=32, help="Logits width.")] = 151_936,
    json_output: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of a table.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """The mask kernel against the bytes it must move, and copies of masks to the device."""
    counts = _rows(rows)
    if out is not None:
        check_out(out)
    check_device("cuda")
    from guided_plugin.bench.kernel import bench_kernel

    with _progress() as progress:
        task = progress.add_task("measuring", total=len(counts))
        result = bench_kernel(width=width, rows=counts, progress=lambda: progress.advance(task))
    if _told_as_json(result, out, json_output):
        return
    table = Table("what", "rows", "allowed", "MB", "us", "limit us", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for what in ("kernel", "copy"):
        for figure in result[what]:
            allowed = f"{figure['allowed']:.1%}" if "allowed" in figure else ""
            sizes = (str(figure[name]) for name in ("megabytes", "microseconds", "limit"))
            table.add_row(what, str(figure["rows"]), allowed, *sizes)
    Console().print(table)


@app.command("soak", short_help="Random requests for a while, every output checked again.")
def soak(
    seconds: Annotated[float, typer.Option(min=1, help="How long.")] = 60.0,
    slots: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 256,
    tokenizer: Annotated[Path, typer.Option(help="Tokenizer folder.", show_default="the demo's")] = MODEL_DIR,
    width: Annotated[int, typer.Option(help="Logits width; 0: the tokenizer's.")] = 0,
    mode: Annotated[str, typer.Option(help="auto, inline or process.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of all that is random.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json_output: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of text.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """Random adds, aborts, slot reuse and mixed specs; exit code 1 if a fresh matcher refuses any output."""
    if out is not None:
        check_out(out)
    with working("loading the tokenizer"):
        from guided_plugin.bench.soak import soak as run
        from guided_plugin.grammar.vocabulary import Vocabulary

        vocabulary = Vocabulary.from_tokenizer(load_tokenizer(tokenizer))
        check_device(device)
    with _progress() as progress:
        task = progress.add_task("decoding", total=seconds)
        result = run(
            vocabulary,
            seconds=seconds,
            slots=slots,
            device=device,
            width=width,
            mode=mode,  # type: ignore[arg-type]
            seed=seed,
            progress=lambda done: progress.update(task, completed=done),
        )
    if not _told_as_json(result, out, json_output):
        shown = Console(highlight=False, soft_wrap=True)
        for name in ("mode", "seconds", "steps", "added", "stopped", "ended", "aborted", "failed", "tokens"):
            shown.print(f"{name}: {result[name]}")
        for who, sizes in result["memory_mb"].items():
            shown.print(f"MiB of the {who}, by quarter: {' '.join(map(str, sizes))}")
        shown.print(f"mismatches: {len(result['mismatches'])}")
        for line in result["mismatches"]:
            shown.print(line, markup=False)
    if result["mismatches"]:
        raise typer.Exit(1)


@app.command("vllm", short_help="Milliseconds a step in vLLM, built-in and with the plugin.")
def vllm(
    model: Annotated[str, typer.Option(help="Folder of a model.", show_default="the demo's")] = str(
        MODEL_DIR
    ),
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer folder.", show_default="the model's")
    ] = None,
    rows: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "8,64,256",
    schema: Annotated[str, typer.Option(help="Schemas: plain, maxlength.")] = "plain,maxlength",
    runner: Annotated[str, typer.Option(help="Model runners: v1, v2.")] = "v1,v2",
    steps: Annotated[int, typer.Option(min=8, help="Tokens a request.")] = 256,
    repetitions: Annotated[int, typer.Option(min=1, help="Measured runs a figure.")] = 3,
    built_in: Annotated[bool, typer.Option(help="Measure vLLM's own structured output too.")] = True,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    mixed: Annotated[
        float, typer.Option(min=0, help="Seconds of requests at random moments, half of them guided.")
    ] = 0.0,
    rate: Annotated[float, typer.Option(min=0.1, help="How many of those come a second.")] = 60.0,
    engine: Annotated[str, typer.Option(help="More arguments of the engine, as a JSON object.")] = "{}",
    json_output: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of a table.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """vLLM, an engine each without the plugin and with it: unguided, its own structured output, ours."""
    counts, schemas = _rows(rows), _schemas(schema)
    from guided_plugin.bench.vllm import RUNNERS, bench_vllm

    runners = [name.strip() for name in runner.split(",")]
    for name in runners:
        if name not in RUNNERS:
            raise InputError(f"unknown runner {name!r}", where="--runner", hint=did_you_mean(name, RUNNERS))
    try:
        arguments = json.loads(engine)
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", where="--engine") from None
    if not isinstance(arguments, dict):
        raise InputError("must be a JSON object", where="--engine", hint='such as {"enforce_eager": true}')
    if out is not None:
        check_out(out)
    with _progress() as progress:
        task = progress.add_task("engines", total=2 * len(runners))
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
            progress=lambda: progress.advance(task),
        )
    if _told_as_json(result, out, json_output):
        return
    titles = "runner", "rows", "way", "schema", "ms", "ratio", "steady ms", "ratio", "wrong"
    table = Table(*titles, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for figure in result["figures"]:
        named = (str(figure[name]) for name in ("runner", "rows", "way", "schema"))
        times = (f"{figure[name]:.3f}" for name in ("ms_per_step", "ratio", "steady_ms", "steady_ratio"))
        table.add_row(*named, *times, str(figure["wrong_outputs"]))
    Console().print(table)
    if not result["mixed"]:
        return
    table = Table(
        "runner",
        "way",
        "tokens/s",
        *("between tokens p50 ms", "p99"),
        *("first token p50 ms", "p99"),
        "wrong",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for figure in result["mixed"]:
        between, first = figure["inter_token_ms"], figure["first_token_ms"]
        times = (f"{value:.2f}" for value in (between["p50"], between["p99"], first["p50"], first["p99"]))
        table.add_row(
            *(figure["runner"], figure["way"], str(figure["tokens_per_second"])),
            *times,
            str(figure["wrong_outputs"]),
        )
    Console().print(table)


def model_or_shape(
    folder: Path, shape: str | None, tokenizer: Path | None, width: int, device: str
) -> tuple[Any, Vocabulary]:
    """A model from a folder, or one of a shape with random weights; with its vocabulary."""
    from guided_plugin.bench.loop import SHAPES, random_model
    from guided_plugin.grammar.vocabulary import Vocabulary

    if shape is None:
        loaded = load_model(folder, device)
        return loaded, model_vocabulary(load_tokenizer(folder), loaded)
    if shape not in SHAPES:
        raise InputError(f"unknown shape {shape!r}", where="--shape", hint=did_you_mean(shape, SHAPES))
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(tokenizer or MODEL_DIR))
    check_device(device)
    return random_model(shape, width or vocabulary.size, device), vocabulary


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _told_as_json(result: dict[str, Any], out: Path | None, json_output: bool) -> bool:
    """Write the result to a file, and to stdout, where asked; whether nothing else belongs on stdout."""
    _written(result, out)
    if json_output:
        print_json(result)
    return json_output


def _written(result: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")


def check_out(path: Path, where: str = "--out") -> None:
    """Before anything is measured: nobody wants to lose the figures to a wrong path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror}", where=where) from None


def _rows(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise InputError(f"must be numbers separated by commas, not {text!r}", where="--rows", hint="8,64")
    return counts


def _schemas(text: str) -> list[str]:
    from guided_plugin.bench.schemas import SCHEMAS

    names = text.split(",")
    for name in names:
        if name not in SCHEMAS:
            raise InputError(f"unknown schema {name!r}", where="--schema", hint=did_you_mean(name, SCHEMAS))
    return names
