"""`guided-plugin vllm-contract`: does a vLLM have everything that the package relies on? Imports no vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guided_plugin.cli import options
from guided_plugin.cli.results import print_json
from guided_plugin.errors import ConfigError


def vllm_contract(
    sources: Annotated[
        Path | None,
        typer.Option(help="Folder with vLLM's Python files in `vllm/`.", show_default="the installed vLLM"),
    ] = None,
    json_output: options.JsonOutput = False,
) -> None:
    """Look for every name of vLLM's that is relied on, in its Python files: an unpacked wheel will do."""
    from guided_plugin.diagnose.vllm_sources import Sources
    from guided_plugin.hosts.vllm.names import NAMES, Part
    from guided_plugin.hosts.vllm.patches import differences

    folder = _installed() if sources is None else sources
    if not (folder / "vllm" / "__init__.py").is_file():
        raise ConfigError(
            f"no vllm/__init__.py in {folder}", where="--sources", hint="name the folder above `vllm`"
        )
    reader = Sources(folder)
    found = {part: differences(reader, part) for part in Part}
    if json_output:
        print_json({part.name.lower(): missing for part, missing in found.items()})
    else:
        typer.echo(f"{folder / 'vllm'}: {len(NAMES)} names")
        for part, missing in found.items():
            typer.echo(f"{part.name.lower():10} {'broken, refused: ' + part.value if missing else 'holds'}")
            for difference in missing:
                typer.echo(f"{'':10} {difference}")
    if any(found.values()):
        raise typer.Exit(1)


def _installed() -> Path:
    from guided_plugin.diagnose.vllm_sources import installed_folder

    folder = installed_folder()
    if folder is None:
        raise ConfigError("vLLM is not installed here", where="--sources", hint="name a folder")
    return folder
