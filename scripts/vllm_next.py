"""Unpack the Python files of vLLM releases, with the compiled parts of the CPU build
that is installed.

    .venv-vllm/bin/python scripts/vllm_next.py .vllm-next 0.31.0 0.33.0 newest

For releases that have no CPU build: with .vllm-next/0.33.0 first on PYTHONPATH, `import
vllm` is that release on the CPU. What needs compiled code of the release doesn't work
there. `newest` is the newest release. Folders of other releases are removed.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

PLATFORM = "manylinux_2_28_x86_64"

NEEDS = ("orjson==3.13.0",)
"""What 0.33 imports and the CPU build of 0.32 does not."""

PIP = (sys.executable, "-m", "pip")
QUIET = ("--quiet", "--disable-pip-version-check", "--no-deps")


NEWEST = "newest"


def download(version: str, folder: str) -> Path:
    """The release's wheel, which needs no installed package."""
    wanted = "vllm" if version == NEWEST else f"vllm=={version}"
    only = (
        "--only-binary",
        ":all:",
        "--platform",
        PLATFORM,
        "--python-version",
        "3.11",
    )
    subprocess.run(
        [
            *PIP,
            "download",
            *QUIET,
            *only,
            "--dest",
            folder,
            wanted,
        ],
        check=True,
    )
    return next(Path(folder).glob("vllm-*.whl"))


def unpack(wheel: Path, version: str, target: Path) -> None:
    """The wheel's Python files, and as much metadata as tells the version of a CPU
    build."""
    with zipfile.ZipFile(wheel) as archive:
        names = [
            name
            for name in archive.namelist()
            if name.startswith("vllm/") and name.endswith(".py")
        ]
        archive.extractall(target, names)
    metadata = target / f"vllm-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


UNPACKED = ".unpacked"


def link_compiled(target: Path) -> None:
    """The compiled parts of the installed build, at the same places."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "vLLM's CPU build is not installed here: run this with the Python of .venv-vllm"
        )
    installed = Path(spec.submodule_search_locations[0])
    for library in installed.rglob("*.so"):
        link = target / "vllm" / library.relative_to(installed)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(library)


def fetch(version: str, root: Path) -> Path:
    """The folder of a release, which is made if it is not there."""
    if version != NEWEST and (root / version / UNPACKED).exists():
        return root / version
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        wheel = download(version, folder)
        version = wheel.name.split("-")[1]
        target = root / version
        target.mkdir(parents=True, exist_ok=True)
        megabytes = wheel.stat().st_size >> 20
        unpack(wheel, version, target)
    link_compiled(target)
    subprocess.run(
        [
            *PIP,
            "install",
            *QUIET,
            "--upgrade",
            "--target",
            str(target),
            *NEEDS,
        ],
        check=True,
    )
    (target / UNPACKED).touch()
    print(f"vLLM {version}: {megabytes} MB, {time.monotonic() - start:.0f} s")
    return target


def main(root: Path, versions: list[str]) -> None:
    """Make the folders of these releases, and leave no other."""
    kept = {fetch(version, root) for version in versions}
    for folder in set(root.iterdir()) - kept:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
