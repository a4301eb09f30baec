"""Writes the raw files of docs/conformance.md: MaskBench, the official suite and its
formats, with this package and both libraries by themselves.

    python -m benchmarks.conformance --suite DIR_OR_TAR --sample DIR_OR_TAR [--every 4]

Each part is written to a raw file of its own in benchmarks/results; `scripts/tables.py`
names those that the page shows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Json, Options, given, head, names, write
from guided_plugin.cli.loading import load_vocabulary
from guided_plugin.demo import MODEL_DIR

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]

from benchmarks.conformance.engines import ENGINES  # noqa: E402
from benchmarks.conformance.sample import coverage  # noqa: E402
from benchmarks.conformance.suite_scores import scores  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"


def main(arguments: Sequence[str] | None = None, folder: Path = RESULTS) -> None:
    """Measure, and write the raw files."""
    parser = Options(__doc__)
    parser.add("--suite", None, "the official suite: a folder or a tar archive", Path)
    parser.add("--sample", None, "MaskBench files: a folder or a tar archive", Path)
    parser.add("--tokenizer", MODEL_DIR, "folder of a tokenizer, for --sample", Path)
    parser.add("--engines", list(ENGINES), "this package, and libraries alone", names)
    parser.add("--every", 1, "take each Nth schema")
    options = parser.parse_args(arguments)
    for part, found in _parts(options).items():
        result = head("benchmarks.conformance", given(arguments)) | found
        name = f"{result['date']}-conformance-{part}.json.gz"
        write(result, folder / name)
        print(f"{part}: {name}", flush=True)


def _parts(options: Any) -> dict[str, Json]:
    found: dict[str, Json] = {}
    if options.suite is not None:
        for part, folder in (("suite", ""), ("formats", "optional/format")):
            rows = scores(options.engines, options.suite, options.every, folder)
            found[part] = {part: list(rows)}
    if options.sample is not None:
        vocabulary = load_vocabulary(options.tokenizer)
        runs = [
            coverage(name, vocabulary, options.sample, options.every)
            for name in options.engines
        ]
        found["maskbench"] = {"runs": runs}
    return found


if __name__ == "__main__":
    main()
