"""Options that several commands take, as annotated types: `from guided_plugin.cli import options`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Tokenizer = Annotated[
    Path, typer.Option(help="Folder of a transformers tokenizer.", show_default="the demo's")
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Flexible = Annotated[bool, typer.Option("--flexible", help="Allow whitespace in JSON.")]
Open = Annotated[bool, typer.Option("--open", help="Objects are open unless the schema closes them.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of text.")]
