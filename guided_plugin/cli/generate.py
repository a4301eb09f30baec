"""`guided-plugin generate`: guided text from a local model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guided_plugin.cli.loading import (
    GRAMMARS,
    InputError,
    load_model,
    load_spec,
    load_tokenizer,
    model_vocabulary,
    show_error,
)
from guided_plugin.cli.results import (
    Device,
    JsonOutput,
    Layout,
    Seed,
    Temperature,
    print_json,
    working,
)
from guided_plugin.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from guided_plugin.config import Whitespace
    from guided_plugin.spec import OutputSpec


def generate(
    model: Annotated[
        Path,
        typer.Option(help="Folder of a transformers causal LM with its tokenizer."),
    ],
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    schema: Annotated[Path | None, typer.Option(help="JSON Schema file.")] = None,
    regex: Annotated[
        str | None, typer.Option(help="Regular expression for the whole output.")
    ] = None,
    choice: Annotated[
        str | None, typer.Option(help="Texts to choose from, separated by commas.")
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="Grammar file: .ebnf, .gbnf or .lark.")
    ] = None,
    n: Annotated[int, typer.Option("--n", min=1, help="Number of outputs.")] = 1,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Longest output, in tokens.")
    ] = 256,
    temperature: Temperature = 0.8,
    top_k: Annotated[
        int, typer.Option(min=0, help="Sample from the k likeliest tokens; 0: all.")
    ] = 0,
    top_p: Annotated[
        float, typer.Option(help="Sample from the likeliest tokens of this share.")
    ] = 1.0,
    seed: Seed = 0,
    device: Device = "cpu",
    whitespace: Layout = None,
    close_before_length: Annotated[
        bool,
        typer.Option(
            "--close-before-length", help="Outputs end valid, within their token limit."
        ),
    ] = False,
    json_output: JsonOutput = False,
) -> None:
    """Generate text from a local model, guided by a schema, regex, choice or
    grammar."""
    spec = _spec(schema, regex, choice, grammar, whitespace)
    if spec is not None and close_before_length:
        spec = replace(spec, close_before_length=True)
    with working("loading the model"):
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.hosts.loop import DecodeLoop, Sampling

        try:
            sampling = Sampling(
                temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
            )
        except ConfigError as error:
            raise InputError(
                error.what, where=f"--{error.where.replace('_', '-')}", hint=error.hint
            ) from None
        tokenizer = load_tokenizer(model)
        loaded = load_model(model, device)
        compiler = GrammarCompiler(model_vocabulary(tokenizer, loaded))
        loop = DecodeLoop(loaded, compiler, max_rows=n)
    if spec is not None:
        with working("compiling the spec"):
            compiler.compile(spec)
    with working("generating"):
        prompts = [tokenizer.encode(prompt)] * n
        outputs = loop.run(
            prompts, [spec] * n, max_new_tokens=max_new_tokens, sampling=sampling
        )
    texts = [
        tokenizer.decode(output.tokens, skip_special_tokens=True) for output in outputs
    ]
    if json_output:
        found = [
            {
                "text": text,
                "tokens": len(output.tokens),
                "stopped": output.stopped,
                "error": str(output.error) if output.error else None,
                "closed": output.closed,
            }
            for text, output in zip(texts, outputs, strict=True)
        ]
        print_json(
            {
                "prompt": prompt,
                "spec": spec.to_dict() if spec else None,
                "outputs": found,
            }
        )
    else:
        print("\n".join(texts))
    errors = [output.error for output in outputs if output.error is not None]
    if spec is not None and not all(output.stopped for output in outputs):
        cut = sum(not output.stopped for output in outputs)
        what = f"{cut} of {n} outputs reached --max-new-tokens and are incomplete"
        errors.append(
            RequestError(what, hint="raise it, or give --close-before-length")
        )
    if errors:
        raise typer.Exit(show_error(errors[0]))


def _spec(
    schema: Path | None,
    regex: str | None,
    choice: str | None,
    grammar: Path | None,
    whitespace: Whitespace | None,
) -> OutputSpec | None:
    from guided_plugin.spec import OutputSpec

    if sum(value is not None for value in (schema, regex, choice, grammar)) > 1:
        raise InputError("give only one of --schema, --regex, --choice and --grammar")
    if schema is not None:
        return load_spec(schema, whitespace=whitespace)
    if regex is not None:
        return OutputSpec.regex(regex)
    if choice is not None:
        texts = [text.strip() for text in choice.split(",")]
        if not all(texts):
            raise InputError(
                f"has an empty text: {choice!r}", where="--choice", hint="yes,no"
            )
        return OutputSpec.choice(texts)
    if grammar is not None and grammar.suffix.lower() not in GRAMMARS:
        hint = "name it " + ", ".join(GRAMMARS)
        raise InputError(
            "does not end like a grammar file", where=str(grammar), hint=hint
        )
    return load_spec(grammar) if grammar is not None else None
