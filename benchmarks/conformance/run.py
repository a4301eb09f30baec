"""Writes the raw files of docs/conformance.md: the official suite and formats, with both
backends and both libraries.

    python benchmarks/conformance/run.py --suite DIR_OR_TAR [--every 4] [--parts suite,formats]

Each part is written to a raw file of its own; `scripts/tables.py` names those that the
page shows.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import importlib.metadata
import json
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from engines import ENGINES  # noqa: E402
from suite_scores import formats, suite  # noqa: E402

PARTS = {"suite": suite, "formats": formats}
_MOST_NAMED = 25
"""So many faults of the libraries by themselves are kept by name; of this package all
are."""


def main() -> int:
    """Measure, and write the raw files."""
    options = _options()
    for part in options.parts:
        start = time.monotonic()
        _write(
            options,
            part,
            [_short(row) for row in PARTS[part](options.suite, ENGINES, options.every)],
        )
        print(f"{part}: {time.monotonic() - start:.0f} s", flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--suite",
        type=Path,
        required=True,
        help="the official suite: a folder or a tar archive",
    )
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="take each Nth schema"
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / "benchmarks" / "results",
        help="raw files",
    )
    parser.add_argument(
        "--date", default=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    )
    options = parser.parse_args()
    options.parts = [part for part in options.parts.split(",") if part]
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    return options


def _short(row: dict[str, Any]) -> dict[str, Any]:
    if row["engine"] != "auto":
        row["named"] = {
            kind: named[:_MOST_NAMED] for kind, named in row["named"].items()
        }
    return row


def _write(options: Any, part: str, rows: list[dict[str, Any]]) -> None:
    command = "python benchmarks/conformance/run.py --suite SUITE"
    packages = ("llguidance", "xgrammar", "jsonschema-rs")
    document = {
        "command": command
        + shlex.join(["", "--every", str(options.every), "--parts", part]),
        "date": options.date,
        "versions": {"Python": platform.python_version()}
        | {package: importlib.metadata.version(package) for package in packages},
        "every": options.every,
        part: rows,
    }
    _path(options, part).write_bytes(
        gzip.compress(json.dumps(document).encode(), 9, mtime=0)
    )


def _path(options: Any, part: str) -> Path:
    path: Path = options.results / f"{options.date}-conformance-{part}.json.gz"
    return path


if __name__ == "__main__":
    sys.exit(main())
