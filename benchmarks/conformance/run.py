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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    suite = "the official suite: a folder or a tar archive"
    add("--suite", type=Path, required=True, help=suite)
    add("--every", type=int, default=1, help="take each Nth schema")
    add("--parts", default=",".join(PARTS), help="of suite, formats")
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    add("--date", default=today, help="of the raw files")
    options = parser.parse_args()
    for part in options.parts.split(","):
        start = time.monotonic()
        rows = list(
            PARTS[part](
                options.suite,
                ENGINES,
                options.every,
            )
        )
        for row in rows:
            if row["engine"] != "auto":
                named = row["named"]
                row["named"] = {kind: named[kind][:_MOST_NAMED] for kind in named}
        _write(options, part, rows)
        print(f"{part}: {time.monotonic() - start:.0f} s", flush=True)
    return 0


def _write(options: Any, part: str, rows: list[dict[str, Any]]) -> None:
    packages = ("llguidance", "xgrammar", "jsonschema-rs")
    versions = {package: importlib.metadata.version(package) for package in packages}
    document = {
        "command": f"python benchmarks/conformance/run.py --suite SUITE --every {options.every} --parts {part}",
        "date": options.date,
        "versions": {"Python": platform.python_version(), **versions},
        "every": options.every,
        part: rows,
    }
    name = f"{options.date}-conformance-{part}.json.gz"
    data = gzip.compress(
        json.dumps(document).encode(),
        9,
        mtime=0,
    )
    (ROOT / "benchmarks" / "results" / name).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
