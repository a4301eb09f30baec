"""Build the release and use it as its users do. `make release-check` runs this.

1. Two builds in two folders give the same bytes. SOURCE_DATE_EPOCH is the time of the
   last commit.
2. twine accepts both files; the wheel is small, and holds the package and nothing else.
3. The wheel runs the demo in a clean environment, with all that it depends on.
4. On every other supported Python that is found, the wheel runs what needs no torch.

What was built and passed lies in dist/ afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MINORS = (11, 12, 13, 14)
FULL = 11
"""The Python that gets every dependency; `constraints.txt` was made for it."""
MOST_BYTES = 3_000_000
MOST_IMPORT_MS = 100.0

CHECKS = (
    ("--version", 0, r"\d"),
    ("check schema.json --instance good.json --json", 0, '"accepted": true'),
    ("explain schema.json --text [1,", 0, "integer|0-9"),
    ("doctor", 0, "no host is installed.*llguidance compiles"),
)
"""Commands that need no torch, their exit codes, and what they say."""
DEMO = (("demo", 0, "valid.*valid.*valid"),)

_IMPORT = """
import sys, time
start = time.process_time()  # of the processor: CI may share its machine
import guided_plugin
print((time.process_time() - start) * 1e3, *sorted({"torch", "numpy", "xgrammar"} & set(sys.modules)))
"""


class CheckError(Exception):
    """What keeps this from being released."""


def main() -> int:
    """Run all checks; the exit status is 1 if one fails."""
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="release-") as folder:
            check(Path(folder))
    except CheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"release-check passed in {time.monotonic() - start:.0f} s; the files are in dist/"
    )
    return 0


def check(folder: Path) -> None:
    """Everything, in a folder of its own."""
    sdist, wheel = build_twice(folder)
    run([sys.executable, *["-m", "twine", "check", "--strict"], sdist, wheel])
    check_contents(wheel)
    pythons = dict(find_pythons())
    if FULL not in pythons:
        raise CheckError(f"no python3.{FULL} is found: the demo cannot be tried")
    try_wheel(f"{wheel}[transformers]", pythons[FULL], folder / "full", DEMO)
    for minor in MINORS:
        if minor not in pythons:
            print(f"Python 3.{minor}: not found here, not tried")
        elif minor != FULL:
            try_wheel(str(wheel), pythons[minor], folder / f"light-{minor}", CHECKS)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    (ROOT / "dist").mkdir()
    for file in (sdist, wheel):
        shutil.copy(file, ROOT / "dist")
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  dist/{file.name}")


def build_twice(folder: Path) -> tuple[Path, Path]:
    """The source archive and the wheel, which the unpacked source archive gives
    again."""
    epoch = (
        os.environ.get("SOURCE_DATE_EPOCH")
        or run(["git", "log", "-1", "--format=%ct"]).strip()
    )
    first = build(ROOT, folder / "first", epoch)
    with tarfile.open(first[0]) as archive:
        archive.extractall(folder / "sources", filter="data")
    (unpacked,) = (folder / "sources").iterdir()
    second = build(unpacked, folder / "second", epoch)
    for one, other in zip(first, second, strict=True):
        if one.read_bytes() != other.read_bytes():
            raise CheckError(
                f"{one.name}: the unpacked source archive builds other bytes than the checkout"
            )
    print(f"two builds agree byte for byte, SOURCE_DATE_EPOCH={epoch}")
    return first


def build(source: Path, out: Path, epoch: str) -> tuple[Path, Path]:
    """One source archive, and the wheel that is made from it."""
    command = [
        sys.executable,
        *["-m", "build", "--no-isolation", "--outdir"],
        out,
        source,
    ]
    run(command, SOURCE_DATE_EPOCH=epoch)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def check_contents(wheel: Path) -> None:
    """Size, and whose files there are."""
    size = wheel.stat().st_size
    if size >= MOST_BYTES:
        raise CheckError(
            f"{wheel.name} has {size:,} bytes; fewer than {MOST_BYTES:,} are allowed"
        )
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.partition("/")[0] for name in names}
    if {root.partition("-")[0] for root in roots} != {"guided_plugin"}:
        raise CheckError(
            f"{wheel.name} holds more than the package: {', '.join(sorted(roots))}"
        )
    tracked = set(run(["git", "ls-files", "guided_plugin"]).split())
    if {name for name in names if name.startswith("guided_plugin/")} != tracked:
        raise CheckError(f"{wheel.name} and the tracked files of guided_plugin/ differ")
    print(f"{wheel.name}: {size:,} bytes, {len(names)} files")


def find_pythons() -> Iterator[tuple[int, str]]:
    """The newest interpreter of each supported minor version, on PATH or in pyenv's
    folder."""
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    for minor in MINORS:
        places = [
            shutil.which(f"python3.{minor}"),
            *sorted(versions.glob(f"3.{minor}.*/bin/python"))[::-1],
        ]
        for place in map(str, filter(None, places)):
            # pyenv's shims exist for versions that are not switched on, and fail.
            code = (
                f"import sys, ensurepip; sys.exit(sys.version_info[:2] != (3, {minor}))"
            )
            if not subprocess.run(
                [place, "-c", code], capture_output=True, check=False
            ).returncode:
                yield minor, place
                break


def try_wheel(
    wheel: str, python: str, venv: Path, checks: Sequence[tuple[str, int, str]]
) -> None:
    """Install it in a clean environment, and look at what its commands say."""
    run([python, "-m", "venv", venv])
    bin_folder = venv / "bin"
    pip = [bin_folder / "pip", *["install", "--quiet", "--no-compile"]]
    pip += ["--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    if checks is DEMO:
        # torch first and alone: a resolver that sees an open range would take the CUDA
        # build.
        run([*pip, "torch"])
    run([*pip, wheel])
    schema = {"type": "array", "items": {"type": "integer"}}
    (venv / "schema.json").write_text(json.dumps(schema))
    (venv / "good.json").write_text("[1, 2]")
    for words, code, said in checks:
        command = [bin_folder / "guided-plugin", *words.split()]
        told = run(command, code=code, folder=venv)
        if not re.search(said, told, re.DOTALL):
            raise CheckError(f"{python}: guided-plugin {words} gives\n{told}")
    version = run([bin_folder / "python", "-V"]).strip()
    commands = ", ".join(dict.fromkeys(words.split()[0] for words, *_ in checks))
    took = import_ms(bin_folder)
    print(f"{version}: {commands} work, import in {took:.1f} ms")


def import_ms(bin_folder: Path) -> float:
    """Milliseconds that `import guided_plugin` takes, the best of three; it loads no
    heavy package."""
    found = [
        run([bin_folder / "python", "-I", "-c", _IMPORT]).split() for _ in range(3)
    ]
    if any(loaded := names[1:] for names in found):
        raise CheckError(f"import guided_plugin imports {', '.join(loaded)}")
    best = min(float(names[0]) for names in found)
    if best >= MOST_IMPORT_MS:
        raise CheckError(
            f"import guided_plugin takes {best:.0f} ms; it must stay below {MOST_IMPORT_MS:.0f}"
        )
    return best


def run(
    command: Sequence[str | Path], code: int = 0, folder: Path = ROOT, **more: str
) -> str:
    """A command's output; an error for another exit status."""
    environment = {**os.environ, **more}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )
    if done.returncode != code:
        said = (done.stdout + done.stderr).strip()
        raise CheckError(
            f"{' '.join(map(str, command))} ended with {done.returncode}:\n{said}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
