"""`guided-plugin demo`: the same prompts, unguided and guided, side by side."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from guided_plugin.cli.loading import load_model, load_tokenizer, model_vocabulary, print_json, working
from guided_plugin.demo import DEMOS, MODEL_DIR
from guided_plugin.spec import OutputSpec

__all__ = ["demo"]


def demo(
    seed: Annotated[int, typer.Option(help="Another seed, other outputs.")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")] = 0.8,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json_output: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """Decode three prompts with the tiny model that ships with the package, unguided and guided."""
    with working("loading the demo model"):
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.hosts.loop import DecodeLoop, Sampling

        tokenizer = load_tokenizer(MODEL_DIR)
        model = load_model(MODEL_DIR, device)
        compiler = GrammarCompiler(model_vocabulary(tokenizer, model))
        loop = DecodeLoop(model, compiler)
    specs = [OutputSpec.json_schema(entry.schema) for entry in DEMOS]
    prompts = [tokenizer.encode(entry.prompt) for entry in DEMOS]
    sampling = Sampling(temperature=temperature, seed=seed)
    with working("decoding"):
        for spec in specs:
            compiler.compile(spec)
        for warm_up in (specs, [None] * len(specs)):
            loop.run(prompts, warm_up, sampling=sampling)
        unguided, unguided_ms = _timed(lambda: loop.run(prompts, [None] * len(specs), sampling=sampling))
        guided, guided_ms = _timed(lambda: loop.run(prompts, specs, sampling=sampling))
    results = []
    for entry, spec, free, bound in zip(DEMOS, specs, unguided, guided, strict=True):
        texts = [tokenizer.decode(output.tokens, skip_special_tokens=True) for output in (free, bound)]
        verdicts = [_verdict(compiler, spec, text) for text in texts]
        results.append((entry, texts, verdicts))
    if json_output:
        print_json(
            {
                "seed": seed,
                "ms_per_token": {"unguided": unguided_ms, "guided": guided_ms},
                "demos": [
                    {
                        "name": entry.name,
                        "prompt": entry.prompt,
                        "unguided": {"text": texts[0], "valid": verdicts[0] is None, "why": verdicts[0]},
                        "guided": {"text": texts[1], "valid": verdicts[1] is None, "why": verdicts[1]},
                    }
                    for entry, texts, verdicts in results
                ],
            }
        )
    else:
        _show(results, unguided_ms, guided_ms)
    if not all(verdicts[1] is None for _, _, verdicts in results):
        raise typer.Exit(1)


def _timed(run: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    outputs = run()
    steps = max(len(output.tokens) + output.stopped for output in outputs)
    return outputs, round((time.perf_counter() - start) * 1e3 / steps, 3)


def _verdict(compiler: Any, spec: OutputSpec, text: str) -> str | None:
    """None when a fresh matcher takes the text, or where and why not."""
    from guided_plugin.check.report import check_spec

    instance = check_spec(compiler, spec, [("output", text)], raw=True).instances[0]
    return None if instance.accepted else instance.reason


def _show(results: list[Any], unguided_ms: float, guided_ms: float) -> None:
    console = Console(highlight=False)
    for entry, texts, verdicts in results:
        table = Table(title=f"{entry.title} - prompt: {entry.prompt!r}", expand=True)
        for heading in ("unguided", "guided"):
            table.add_column(heading, ratio=1, overflow="fold")
        table.add_row(*(escape(text) for text in texts))
        table.add_row(*(_coloured(verdict) for verdict in verdicts))
        console.print(table)
    console.print(f"A step took {unguided_ms:.2f} ms unguided and {guided_ms:.2f} ms guided on this machine.")
    console.print("Next: guided-plugin generate --help, check --help, bench loop", markup=False)


def _coloured(verdict: str | None) -> str:
    return "[green]valid[/green]" if verdict is None else f"[red]{escape(verdict)}[/red]"
