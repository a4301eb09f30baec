"""`guided-plugin demo`: prompts unguided and guided, side by side, and what one keyword
more does."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guided_plugin.cli.loading import load_model, load_tokenizer, model_vocabulary
from guided_plugin.cli.results import (
    Device,
    JsonOutput,
    Temperature,
    print_json,
    working,
)
from guided_plugin.demo import DEMOS, KEYWORDS, MODEL_DIR

if TYPE_CHECKING:
    from guided_plugin.spec import OutputSpec

_NEXT = (
    "{this} generate --model {model} --prompt 'Order number: ' --regex 'ORD-[0-9]{{5}}' --n 3",
    "echo {age} | {this} check -",
    "echo {age} | {this} explain - --text 3",
)


def demo(
    seed: Annotated[int, typer.Option(help="Another seed gives other outputs.")] = 0,
    temperature: Temperature = 0.8,
    device: Device = "cpu",
    json_output: JsonOutput = False,
) -> None:
    """Decode three prompts with the tiny model that ships with the package, unguided
    and guided.

    Then decode one of them again from the same seed, each time with one more keyword in
    its schema.
    """
    with working("loading the demo model"):
        import torch

        # More gain nothing with so small a model, and they wait for each other where
        # processors are shared.
        torch.set_num_threads(1)
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.hosts.loop import DecodeLoop, Sampling
        from guided_plugin.spec import OutputSpec

        tokenizer = load_tokenizer(MODEL_DIR)
        model = load_model(MODEL_DIR, device)
        compiler = GrammarCompiler(model_vocabulary(tokenizer, model))
        loop = DecodeLoop(model, compiler)
    # else hardly anything is forced
    compact = partial(OutputSpec.json_schema, whitespace="compact")
    specs = [compact(entry.schema) for entry in DEMOS]
    free = [None] * len(specs)
    prompts = [tokenizer.encode(entry.prompt) for entry in DEMOS]
    sampling = Sampling(temperature=temperature, seed=seed)

    def text_of(output: Any) -> str:
        return str(tokenizer.decode(output.tokens, skip_special_tokens=True))

    def decode(asked: list[Any]) -> tuple[list[Any], float]:
        """The outputs, and milliseconds a step."""
        start = time.perf_counter()
        outputs = loop.run(prompts, asked, sampling=sampling)
        steps = max(len(output.tokens) + output.stopped for output in outputs)
        milliseconds = round((time.perf_counter() - start) * 1e3 / steps, 3)
        return outputs, milliseconds

    with working("decoding"):
        for warm_up in (specs, free):
            decode(warm_up)
        unguided, unguided_ms = decode(free)
        guided, guided_ms = decode(specs)
        # Each alone: rows of one batch draw different random numbers.
        changed = [
            loop.run(prompts[:1], [compact(keyword.schema)], sampling=sampling)[0]
            for keyword in KEYWORDS
        ]
    shown: list[dict[str, Any]] = []
    for entry, spec, *outputs in zip(DEMOS, specs, unguided, guided, strict=True):
        texts = list(map(text_of, outputs))
        reasons = [_verdict(compiler, spec, text) for text in texts]
        both: list[dict[str, Any]] = [
            {"text": text, "valid": not why, "why": why}
            for text, why in zip(texts, reasons, strict=True)
        ]
        shown.append(
            {
                "name": entry.name,
                "prompt": entry.prompt,
                "unguided": both[0],
                "guided": both[1],
            }
        )
    keywords = [
        {
            "added": {keyword.member: keyword.added} if keyword.member else {},
            "text": text_of(output),
        }
        for keyword, output in zip(KEYWORDS, changed, strict=True)
    ]
    if json_output:
        milliseconds = {"unguided": unguided_ms, "guided": guided_ms}
        print_json(
            {
                "seed": seed,
                "ms_per_step": milliseconds,
                "demos": shown,
                "keywords": keywords,
            }
        )
    else:
        _show(shown, keywords)
        print(
            f"A step took {unguided_ms:.2f} ms unguided and {guided_ms:.2f} ms guided on this machine."
        )
        print("\nNext, try these commands:\n")
        print("\n".join(_next_commands()))
    if not all(entry["guided"]["valid"] for entry in shown):
        raise typer.Exit(1)


def _verdict(compiler: Any, spec: OutputSpec, text: str) -> str | None:
    """None when a fresh matcher takes the text, or where and why not."""
    from guided_plugin.diagnose.check import match_text
    from guided_plugin.diagnose.position import Position

    instance = match_text(Position.start(compiler, spec), "output", text)
    return None if instance.accepted else instance.reason


def _show(shown: list[dict[str, Any]], keywords: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    for demo, entry in zip(DEMOS, shown, strict=True):
        table = Table(title=f"{demo.title} - prompt: {demo.prompt!r}", expand=True)
        cells = []
        for way, heading in (("unguided", "unguided"), ("guided", "guided, compact")):
            table.add_column(heading, ratio=1, overflow="fold")
            one = entry[way]
            told = (
                "[green]valid[/green]"
                if one["valid"]
                else f"[red]{escape(one['why'])}[/red]"
            )
            cells.append((escape(one["text"]), told))
        for row in zip(*cells, strict=True):
            table.add_row(*row)
        console.print(table)
    table = Table(title="One more keyword - the same prompt and seed", expand=True)
    table.add_column("added to the schema", ratio=1, overflow="fold")
    table.add_column(
        f"guided, compact - prompt: {DEMOS[0].prompt!r}", ratio=2, overflow="fold"
    )
    for entry in keywords:
        added = json.dumps(entry["added"]).removeprefix("{").removesuffix("}")
        table.add_row(escape(added or "nothing"), escape(entry["text"]))
    console.print(table)


def _next_commands() -> list[str]:
    """Three commands that work as they are in the shell that the demo was started
    from."""
    age = shlex.quote(json.dumps(KEYWORDS[1].schema["properties"]["age"]))
    parts = {"this": _this_program(), "model": shlex.quote(str(MODEL_DIR)), "age": age}
    return [command.format_map(parts) for command in _NEXT]


def _this_program() -> str:
    """The command that runs this program: a virtual environment need not be on the
    PATH."""
    script = Path(sys.argv[0])
    if script.name != "guided-plugin":
        return f"{shlex.quote(sys.executable)} -m guided_plugin.cli"
    on_path = shutil.which(script.name)
    same = on_path is not None and os.path.realpath(on_path) == os.path.realpath(script)
    return script.name if same else shlex.quote(str(script))
