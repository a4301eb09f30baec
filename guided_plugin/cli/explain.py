"""`guided-plugin explain`: where an output stands in its grammar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guided_plugin.cli.loading import load_spec, load_vocabulary
from guided_plugin.cli.terminal import (
    JsonOutput,
    Tokenizer,
    listed,
    print_json,
    working,
)
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import printable

if TYPE_CHECKING:
    from guided_plugin.diagnose.explain import Explanation


def explain(
    spec_file: Annotated[
        Path, typer.Argument(help="A spec, as for `check`; -: stdin.")
    ],
    tokenizer: Tokenizer = MODEL_DIR,
    text: Annotated[str, typer.Option(help="The output so far, exactly.")] = "",
    json_output: JsonOutput = False,
) -> None:
    """Show what may come next in an output, why a text is refused, and how the output
    could end.

    The exit code is 1 if the text is refused.
    """
    spec = load_spec(spec_file)
    with working("compiling"):
        from guided_plugin.compiling.compiler import GrammarCompiler
        from guided_plugin.diagnose.explain import explain_output

        compiler = GrammarCompiler(load_vocabulary(tokenizer))
        found = explain_output(compiler, spec, text)
    if json_output:
        print_json(found.to_dict())
    else:
        _show(found)
    if not found.ok:
        raise typer.Exit(1)


def _show(found: Explanation) -> None:
    from guided_plugin.diagnose.position import ranges

    fits = f"fits, {len(found.text)} characters"
    ending = found.ending
    lines = [
        ("text", found.refused.reason if found.refused else fits),
        ("may stop", "yes" if found.may_stop else "no"),
        ("characters", ranges(list(found.characters))),
        ("forced", repr(found.forced) if found.forced else ""),
        ("could end", ending.why if ending.text is None else repr(ending.text)),
        ("bounds", listed(found.bounds)),
    ]
    for name, value in lines:
        if value:
            print(f"{name:11} {printable(value, 4_000)}")
