"""`guided-plugin demo`: prompts unguided and guided, side by side."""

from __future__ import annotations

import json
import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guided_plugin.cli.loading import load_tokenizer
from guided_plugin.cli.terminal import JsonOutput, print_json, working
from guided_plugin.demo import DEMOS, MODEL_DIR
from guided_plugin.errors import printable

if TYPE_CHECKING:
    from guided_plugin.spec import OutputSpec

_WAYS = ("unguided", "guided")


def demo(
    seed: Annotated[int, typer.Option(help="Another seed gives other outputs.")] = 0,
    json_output: JsonOutput = False,
) -> None:
    """Decode three prompts with the tiny model that ships with the package, unguided
    and guided."""
    with working("loading the demo model"):
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        # More gain nothing with so small a model, and they wait for each other where
        # processors are shared.
        torch.set_num_threads(1)
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.grammar.vocabulary import Vocabulary
        from guided_plugin.hosts.loop import DecodeLoop
        from guided_plugin.spec import OutputSpec

        tokenizer = load_tokenizer(MODEL_DIR)
        logging.disable_progress_bar()
        model: Any = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
        compiler = GrammarCompiler(Vocabulary.from_tokenizer(tokenizer))
        loop = DecodeLoop(model.eval(), compiler)
    # else hardly anything is forced
    compact = partial(OutputSpec.json_schema, whitespace="compact")
    specs = [compact(entry.schema) for entry in DEMOS]
    prompts = [tokenizer.encode(entry.prompt) for entry in DEMOS]
    shown: list[dict[str, Any]] = [
        {"name": entry.name, "prompt": entry.prompt} for entry in DEMOS
    ]
    with working("decoding"):
        for way in _WAYS:
            asked = specs if way == "guided" else [None] * len(specs)
            outputs = loop.run(prompts, asked, temperature=0.8, seed=seed)
            for entry, spec, output in zip(shown, specs, outputs, strict=True):
                text = str(tokenizer.decode(output.tokens, skip_special_tokens=True))
                why = _verdict(compiler, spec, text)
                entry[way] = {"text": text, "valid": not why, "why": why}
    if json_output:
        print_json({"seed": seed, "demos": shown})
    else:
        _show(shown)
        cost = loop.pipeline.metrics().main_thread
        print(
            f"\nGuiding took {1e3 * cost:.2f} ms of a step here. On a GPU, masks are made while the forward pass "
            "runs:\ndocs/performance.md says how much longer guided runs of an 8B model take."
        )
    if not all(entry["guided"]["valid"] for entry in shown):
        raise typer.Exit(1)


def _verdict(compiler: Any, spec: OutputSpec, text: str) -> str | None:
    """None when a fresh matcher takes the text, or where and why not."""
    from guided_plugin.diagnose.check import match_text
    from guided_plugin.diagnose.position import Position

    instance = match_text(Position.start(compiler, spec), "output", text)
    return None if instance.accepted else instance.reason


def _show(shown: list[dict[str, Any]]) -> None:
    for demo, entry in zip(DEMOS, shown, strict=True):
        typer.secho(f"{demo.title} - prompt: {demo.prompt!r}", bold=True)
        for way in _WAYS:
            one = entry[way]
            print(f"  {way:9} {printable(one['text'], 4_000)}")
            colour = "green" if one["valid"] else "red"
            typer.secho(f"  {'':9} {one['why'] or 'valid'}", fg=colour)
    # a virtual environment need not be on the PATH
    program = f"{shlex.quote(sys.executable)} -m guided_plugin.cli"
    age = shlex.quote(json.dumps(DEMOS[0].schema["properties"]["age"]))
    print(f"\nNext, try these commands:\n\necho {age} | {program} check -")
    print(f"echo {age} | {program} explain - --text 3")
