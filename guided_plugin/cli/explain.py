"""`guided-plugin explain`: where an output stands in its grammar."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guided_plugin.cli.loading import (
    InputError,
    load_spec,
    load_vocabulary,
    read_once,
    read_text,
)
from guided_plugin.cli.results import (
    JsonOutput,
    Layout,
    Open,
    Tokenizer,
    check_out,
    listed,
    marked,
    print_json,
    working,
)
from guided_plugin.config import GuidedConfig
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import printable

if TYPE_CHECKING:
    from guided_plugin.diagnose.explain import Explanation


def explain(
    spec_file: Annotated[
        Path, typer.Argument(help="A spec, as for `check`; -: stdin.")
    ],
    tokenizer: Tokenizer = MODEL_DIR,
    text: Annotated[
        str | None, typer.Option(help="The output so far, exactly.")
    ] = None,
    text_file: Annotated[
        Path | None, typer.Option(help="The same from a file; -: stdin.")
    ] = None,
    next_text: Annotated[
        str | None, typer.Option("--next", help="Text that may follow.")
    ] = None,
    jump: Annotated[
        bool,
        typer.Option(
            "--jump",
            help="Mark the forced text, and count forward passes; what a server learns is not known here.",
        ),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write an HTML page: what could stand at each place."),
    ] = None,
    whitespace: Layout = None,
    open_objects: Open = False,
    json_output: JsonOutput = False,
) -> None:
    """Show what may come next in an output, why a text is refused, and how the output
    could end.

    The exit code is 1 if the text, or that of --next, is refused.
    """
    if text is not None and text_file is not None:
        raise InputError("give only one of --text and --text-file")
    check_out(html, "--html")
    read_once([spec_file, *([text_file] if text_file else [])])
    spec = load_spec(spec_file, whitespace=whitespace, open_objects=open_objects)
    written = read_text(text_file) if text_file is not None else text or ""
    with working("compiling"):
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.diagnose.explain import explain_output

        # some specs get no drafts then
        config = replace(GuidedConfig.from_environment(), jump_forward=jump)
        compiler = GrammarCompiler(load_vocabulary(tokenizer), config=config)
        compiler.compile(spec)
    with working("searching for a completion"):
        found = explain_output(compiler, spec, written, next_text=next_text, jump=jump)
    facts = _facts(found, next_text)
    if html is not None:
        from guided_plugin.diagnose.page import page

        with working("checking each place"):
            html.write_text(
                page(compiler, spec, written, found, facts), encoding="utf-8"
            )
    if json_output:
        print_json(found.to_dict())
    else:
        _show(found, facts)
    if not found.ok:
        raise typer.Exit(1)


def _facts(found: Explanation, next_text: str | None) -> list[tuple[str, str]]:
    from guided_plugin.diagnose.position import ranges

    lines = [
        (
            "text",
            found.refused.reason
            if found.refused
            else f"fits, {len(found.text)} characters",
        )
    ]
    if found.place is not None:
        lines.append(("place", f"{found.place.path}: {found.place.what}"))
        if found.place.complete:
            lines.append(("complete", ", ".join(found.place.complete)))
    lines.append(("may stop", "yes" if found.may_stop else "no"))
    lines.append(("characters", ranges(list(found.characters))))
    more = found.token_count - len(found.tokens)
    lines.append(
        (
            "tokens",
            (", ".join(found.tokens) or "none") + (f" and {more} more" if more else ""),
        )
    )
    if found.forced:
        lines.append(("forced", repr(found.forced)))
    if next_text is not None:
        lines.append(
            (
                "next",
                found.next_refused.reason
                if found.next_refused
                else f"{next_text!r} fits",
            )
        )
    ending = found.ending
    lines.append(
        ("could end", repr(ending.text) if ending.text is not None else ending.why)
    )
    if found.bounds:
        lines.append(("bounds", listed(found.bounds)))
    return lines + [("note", note) for note in found.notes]


def _show(found: Explanation, facts: list[tuple[str, str]]) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    for name, value in facts:
        console.print(f"{name:11} {printable(value, 4_000)}", markup=False)
    if found.jump is not None:
        pieces = [(printable(text, 4_000), free) for text, free in found.jump.pieces]
        console.print(f"{'jump':11} ", marked(pieces, console.is_terminal), sep="")
        passes = (
            f"{found.jump.forwards} for {found.jump.tokens} tokens, with jump_forward"
        )
        console.print(f"{'forwards':11} {passes}", markup=False)
