"""Makes docs/conformance.md: the official suite, formats, MaskBench, and both backends' masks compared.

    python benchmarks/conformance/run.py --suite DIR_OR_TAR --sample DIR_OR_TAR --tokenizer DIR

Each part is written to a raw file of its own, so that one can be made again; the page is made from all that
there are of the date. A run on two cores takes some 20 minutes, with `--every 4` about 6.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gzip
import importlib.metadata
import json
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import mask_files  # noqa: E402
from engines import ENGINES  # noqa: E402
from mask_difference import differences  # noqa: E402
from page import page  # noqa: E402
from suite_scores import formats, suite  # noqa: E402

from benchmarks.samples import open_sample  # noqa: E402
from guided_plugin.cli.loading import load_tokenizer  # noqa: E402
from guided_plugin.grammar.vocabulary import Vocabulary  # noqa: E402

PARTS = ("suite", "formats", "maskbench", "differences")
_MOST_NAMED = 25
"""So many faults of the libraries by themselves are kept by name; of this package all are."""
_SLOW = ("xgrammar", "raw-xgrammar")


def main() -> int:
    """Measure, write the raw files, write the page."""
    options = _options()
    with contextlib.ExitStack() as stack:
        files: list[Path] = []
        vocabulary: Vocabulary | None = None
        if {"maskbench", "differences"} & set(options.parts):
            if not options.sample or not options.tokenizer:
                raise SystemExit("maskbench and differences need --sample and --tokenizer")
            opened = stack.enter_context(open_sample(options.sample))
            files = list(opened.values())
            stack.enter_context(_named_files(opened))
            vocabulary = Vocabulary.from_tokenizer(load_tokenizer(options.tokenizer))
        for part in options.parts:
            start = time.monotonic()
            content = _content(part, options, files, vocabulary)
            _write(options, part, content)
            print(f"{part}: {time.monotonic() - start:.0f} s", flush=True)
    options.page.write_text(page(_read(options)), encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", type=Path, help="the official suite: a folder or a tar archive")
    parser.add_argument("--sample", type=Path, help="MaskBench files: a folder or a tar archive")
    parser.add_argument("--tokenizer", type=Path, help="folder of a transformers tokenizer")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take each Nth schema")
    parser.add_argument(
        "--slow-every", type=int, default=24, metavar="N", help="of that, for xgrammar: each Nth"
    )
    parser.add_argument("--walks", type=int, default=10, help="outputs at random for each MaskBench schema")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a MaskBench file may take")
    parser.add_argument(
        "--parts", type=lambda text: text.split(","), default=list(PARTS), help=",".join(PARTS)
    )
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "conformance.md", help="where to write")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results", help="raw files")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"))
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS) - {""}:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    options.parts = [part for part in options.parts if part]
    if {"suite", "formats"} & set(options.parts) and not options.suite:
        parser.error("suite and formats need --suite")
    return options


@contextlib.contextmanager
def _named_files(opened: dict[str, Path]) -> Iterator[None]:
    """Files of an archive are unpacked under numbers: give rows their names."""
    _NAMES.update({str(path): name for name, path in opened.items()})
    yield
    _NAMES.clear()


_NAMES: dict[str, str] = {}


def _content(part: str, options: Any, files: list[Path], vocabulary: Any) -> dict[str, Any]:
    if part == "suite":
        return {"suite": [_short(row) for row in suite(options.suite, ENGINES, options.every)]}
    if part == "formats":
        return {"formats": [_short(row) for row in formats(options.suite, ENGINES, options.every)]}
    if part == "maskbench":
        return _maskbench(options, files, vocabulary)
    return {"differences": differences(files[:: options.every * options.slow_every], vocabulary)}


def _maskbench(options: Any, files: list[Path], vocabulary: Vocabulary) -> dict[str, Any]:
    runs = []
    for engine in ENGINES:
        if engine == "llguidance":  # it is what `auto` takes
            continue
        chosen = files[:: options.every * (options.slow_every if engine in _SLOW else 1)]
        for tag in (False, True):
            start = time.monotonic()
            settings = mask_files.Settings(vocabulary, engine, tag, options.walks, options.limit)
            rows = list(mask_files.measured(chosen, settings))
            for row, path in zip(rows, chosen, strict=True):
                row["name"] = _NAMES.get(str(path), row["name"])
            runs.append(_short(mask_files.summary(rows, settings)))
            print(f"  {engine}, tag {tag}: {time.monotonic() - start:.0f} s", flush=True)
    return {
        "vocabulary": vocabulary.size,
        "walks": options.walks,
        "slow_every": options.slow_every,
        "processor": _processor(),
        "runs": runs,
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return ""


def _short(row: dict[str, Any]) -> dict[str, Any]:
    if row["engine"] != "auto":
        row["named"] = {kind: named[:_MOST_NAMED] for kind, named in row["named"].items()}
    return row


def _write(options: Any, part: str, content: dict[str, Any]) -> None:
    command = "python benchmarks/conformance/run.py --suite SUITE --sample SAMPLE --tokenizer QWEN"
    command += shlex.join(["", "--every", str(options.every), "--parts", part])
    packages = ("llguidance", "xgrammar", "jsonschema-rs")
    document = {
        "command": command,
        "date": options.date,
        "versions": {"Python": platform.python_version()}
        | {package: importlib.metadata.version(package) for package in packages},
        "every": options.every,
        **content,
    }
    data = gzip.compress(json.dumps(document).encode(), 9, mtime=0)
    _path(options, part).write_bytes(data)


def _path(options: Any, part: str) -> Path:
    path: Path = options.results / f"{options.date}-conformance-{part}.json.gz"
    return path


def _read(options: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """The raw files that there are of the date."""
    found = {}
    for part in (*PARTS, "fuzz"):
        path = _path(options, part)
        if path.is_file():
            name = path.name.removesuffix(".json.gz")
            found[part] = (name, json.loads(gzip.decompress(path.read_bytes())))
    return found


if __name__ == "__main__":
    sys.exit(main())
