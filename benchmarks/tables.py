"""What the benchmarks print, and files that can be written."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Columns = Sequence[tuple[str, str]]
"""Of a table: headings, and format strings for the figure of a line."""

_WIDEST = 10_000
"""More characters than a line of any table has."""


def writable(text: str) -> Path:
    """The file of an option. Refuses one that can't be written, before anything is
    measured."""
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        what = f"can't write {path}: {error.strerror}"
        raise argparse.ArgumentTypeError(what) from None
    return path


def show_table(figures: Iterable[Mapping[str, Any]], columns: Columns) -> None:
    """A line for each figure; numbers are aligned to the right. No figure is cut: a
    line may be longer than the console is wide."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    lines = [[cell.format_map(figure) for _, cell in columns] for figure in figures]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for (heading, _), cells in zip(columns, zip(*lines, strict=True), strict=True):
        numbers = all(cell[:1].isdigit() or cell == "-" for cell in cells)
        table.add_column(heading, justify="right" if numbers else "left")
    for line in lines:
        table.add_row(*line)
    Console(highlight=False, width=_WIDEST).print(table)
