"""Options that several commands take; what commands show while they work, how they
print what they found."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

T = TypeVar("T")

Tokenizer = Annotated[
    Path,
    typer.Option(help="Folder of a transformers tokenizer.", show_default="the demo's"),
]
JsonOutput = Annotated[
    bool, typer.Option("--json", help="One JSON document on stdout instead of text.")
]


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while something slow runs."""
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def counted(items: Sequence[T], what: str) -> Iterable[T]:
    """The items, with a bar on stderr that tells how many have been worked on."""
    if not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, what, console=Console(stderr=True), transient=True)


def print_json(document: Any) -> None:
    """Machine-readable output: one JSON document on stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def listed(bounds: Mapping[str, int]) -> str:
    """Bounds of a grammar, as one line."""
    return ", ".join(f"{name} {most}" for name, most in bounds.items())
