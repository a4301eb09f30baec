"""Options that several commands take, as annotated types: `from guided_plugin.cli import options`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[Path, typer.Option(help="Folder of a model with its tokenizer.", show_default="the demo's")]
Shape = Annotated[
    str | None, typer.Option(help="Random weights of this shape instead: qwen3-0.6b, qwen3-1.7b.")
]
ShapeTokenizer = Annotated[Path | None, typer.Option(help="Tokenizer folder to go with --shape.")]
Width = Annotated[int, typer.Option(help="Logits width of the random model; 0: its tokenizer's.")]
Rows = Annotated[str, typer.Option(help="Batch sizes, separated by commas.")]
Schemas = Annotated[str, typer.Option(help="Schemas: plain, maxlength.")]
Steps = Annotated[int, typer.Option(min=8, help="Measured steps a run.")]
Repetitions = Annotated[int, typer.Option(min=1, help="Measured runs a figure.")]
Backend = Annotated[str, typer.Option(help="Grammar backend; auto chooses per spec.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Flexible = Annotated[bool, typer.Option("--flexible", help="Allow whitespace in JSON.")]
Open = Annotated[bool, typer.Option("--open", help="Objects are open unless the schema closes them.")]
Temperature = Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of text.")]
Out = Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")]
Png = Annotated[Path | None, typer.Option(help="Also draw the ratios into this PNG (extra `plot`).")]
