"""Options that several commands take; what commands show while they work, how they
print what they found."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from guided_plugin.cli.loading import InputError
from guided_plugin.config import Whitespace

Tokenizer = Annotated[
    Path,
    typer.Option(help="Folder of a transformers tokenizer.", show_default="the demo's"),
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Layout = Annotated[
    Whitespace | None,
    typer.Option(
        "--whitespace",
        help="Whitespace of JSON; default: from the spec or the options.",
    ),
]
Open = Annotated[
    bool, typer.Option("--open", help="Objects are open unless the schema closes them.")
]
Temperature = Annotated[
    float, typer.Option(min=0.0, help="0 takes the likeliest token.")
]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.")]
JsonOutput = Annotated[
    bool, typer.Option("--json", help="One JSON document on stdout instead of text.")
]

Columns = Sequence[tuple[str, str]]
"""Of a table: headings, and format strings for the figure of a line."""

_WIDEST = 10_000
"""More characters than a line of any table has."""


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while something slow runs."""
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on stderr, on a terminal; call it after each of `total` steps, with a new
    text or without."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=total)

        def advance(text: str | None = None) -> None:
            bar.update(task, advance=1, description=text)

        yield advance


def check_out(path: Path | None, where: str) -> None:
    """Refuse a file that can't be written, before anything is measured."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise InputError(f"can't write {path}: {error.strerror}", where=where) from None


def write_json(document: Any, path: Path | None) -> None:
    """Write a result to a file, where one was asked for."""
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")


def json_object(text: str, where: str, hint: str) -> dict[str, Any]:
    """The value of an option that is a JSON object."""
    try:
        found = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise InputError(f"is not JSON: {error}", where=where, hint=hint) from None
    if not isinstance(found, dict):
        raise InputError("must be a JSON object", where=where, hint=hint)
    return found


def print_json(document: Any) -> None:
    """Machine-readable output: one JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def listed(bounds: Mapping[str, int]) -> str:
    """Bounds of a grammar, as one line."""
    return ", ".join(f"{name} {most}" for name, most in bounds.items())


def show_table(
    figures: Iterable[Mapping[str, Any]],
    columns: Columns,
    *,
    padding: Any = (0, 1, 0, 0),
) -> None:
    """A line for each figure; numbers are aligned to the right. No figure is cut: a
    line may be longer than the console is wide."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    lines = [[cell.format_map(figure) for _, cell in columns] for figure in figures]
    table = Table(box=SIMPLE_HEAD, padding=padding, show_edge=False)
    for (heading, _), cells in zip(columns, zip(*lines, strict=True), strict=True):
        numbers = all(cell[:1].isdigit() or cell == "-" for cell in cells)
        table.add_column(heading, justify="right" if numbers else "left")
    for line in lines:
        table.add_row(*line)
    console = Console(highlight=False)
    whole = console.measure(
        table, options=console.options.update(max_width=_WIDEST)
    ).maximum
    Console(highlight=False, width=max(console.width, whole)).print(table)
