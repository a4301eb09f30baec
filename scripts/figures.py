"""Write the measured tables of `scripts/tables.py` into the pages, and check them.

    python scripts/figures.py            # fails where a page is not what it should be
    python scripts/figures.py --write    # writes the tables

A page says where a table stands, and everything between these two lines is generated:

    <!-- table NAME -->
    <!-- end -->

In README.md, performance.md and figures.md, a number in the text must stand in a table of that
page. These are no figures: what is code or part of a link or a fenced block, versions
right behind a name of `_NAMED` (vLLM 0.31 to 0.33), a size that is written with its unit
in one word (8B), whole numbers up to ten, and paragraphs that say "raw file not kept".
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tables import TABLES, Row

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CHECKED = ("README.md", "docs/performance.md", "docs/figures.md")
NOT_KEPT = "raw file not kept"
STALE = "a table is not what its raw file says: run python scripts/figures.py --write"
PLACE = re.compile(r"<!-- table ([\w-]+) -->\n.*?<!-- end -->\n", re.DOTALL)
_NO_TEXT = re.compile(
    r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL | re.MULTILINE
)
_NUMBERS = r"\d[\d,]*(?:\.\d+)*"
_NAMED = re.compile(
    rf"\b(?:vLLM|Python|PyTorch|LMDeploy|llguidance|xgrammar|Qwen|Llama|status|draft)"
    rf" {_NUMBERS}(?:(?:,| to| and| or) {_NUMBERS})*"
)
_NUMBER = re.compile(rf"(?<![\w.,-]){_NUMBERS}(?![\w-])")


def pages() -> list[Path]:
    """Every page that may have tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def load(name: str) -> Any:
    """A raw file."""
    return json.loads(gzip.decompress((RESULTS / f"{name}.json.gz").read_bytes()))


def render(name: str, page: Path) -> str:
    """A table for a page, with the two lines around it."""
    table = TABLES[name]
    hosts: list[str] = []
    rows: list[Row] = []
    for file in (table.file, *table.more):
        raw = load(file)
        link = os.path.relpath(RESULTS / f"{file}.json.gz", page.parent)
        hosts.append(f"{_host(raw)}, {raw['date']} ([raw file]({link}))")
        head, *own = table.rows(raw)
        if table.more:
            rows.append((f"*{hosts[-1]}*", *[""] * (len(head) - 1)))
        rows += own
    said = table.said if table.more else f"{hosts[0]}. {table.said}"
    lines = [
        f"<!-- table {name} -->",
        "",
        f"*{said}*",
        "",
        _line(head),
        "|" + "---|" * len(head),
        *map(_line, rows),
        "",
        "<!-- end -->",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Row) -> str:
    shown = [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells]
    return f"| {' | '.join(shown)} |"


def _host(raw: Any) -> str:
    """The machine, and the versions of what was measured."""
    environment = raw.get("environment", {"versions": raw.get("versions", {})})
    device = environment.get("device", "cpu")
    processors = environment.get("cpus")
    gpus = max((one.get("gpus", 1) for one in raw.get("figures", ())), default=1)
    host = "CPU" if device == "cpu" else f"{gpus} x {device}"
    if processors:
        host += f", {processors} processors"
    versions = environment["versions"]
    named = [
        f"{name} {versions[name]}"
        for name in ("vllm", "llguidance")
        if isinstance(versions.get(name), str)
    ]
    times = raw.get("repetitions")
    return ", ".join([host, *named, *[f"{times} repetitions"] * bool(times)])


def written(page: Path) -> str:
    """The page with its tables as they should be."""
    text = page.read_text(encoding="utf-8")
    return PLACE.sub(lambda place: render(place[1], page), text)


def errors(page: Path) -> Iterator[str]:
    """What is wrong with the figures of a page."""
    text = page.read_text(encoding="utf-8")
    if text != written(page):
        yield STALE
    if "<!-- figures" in text:
        yield "a comment proves figures: show them in a table of scripts/tables.py"
    if page.relative_to(ROOT).as_posix() in CHECKED:
        yield from unproven(text)


def unproven(text: str) -> Iterator[str]:
    """Numbers of the text that no table of the page shows."""
    shown = {
        number
        for place in PLACE.finditer(text)
        for number in re.findall(_NUMBERS, place[0])
    }
    for paragraph in _NO_TEXT.sub("", PLACE.sub("", text)).split("\n\n"):
        if NOT_KEPT in " ".join(paragraph.split()):
            continue
        for number in _NUMBER.findall(_NAMED.sub("", paragraph)):
            if number not in shown and not (number.isdigit() and int(number) <= 10):
                yield f"{number} stands in no table of the page: {paragraph.strip()[:60]!r}"


def main() -> int:
    """Write the tables, or print what is wrong; the exit status is 1 if anything is."""
    if "--write" in sys.argv[1:]:
        for page in pages():
            page.write_text(written(page), encoding="utf-8")
    found = [
        f"{page.relative_to(ROOT)}: {error}"
        for page in pages()
        for error in errors(page)
    ]
    sys.stderr.write("".join(f"{error}\n" for error in found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
