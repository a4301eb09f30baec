"""Check that every figure quoted in README.md and docs/ stands in a raw file of
benchmarks/results/.

    python scripts/check_figures.py

A table or paragraph with figures is followed by a comment that names their sources, one
for each number in reading order (in a table: each number outside the first column):

    <!-- figures 2026-11-22-loop-h200-process-g
    figures[rows=8 schema=plain]: .unguided_ms, .ratio
    figures[rows=8 schema=maxlength]: .ratio
    max(figures[*].ratio)
    figures[0].guided_ms / figures[0].unguided_ms, -
    file 2026-11-21-soak-h200-*
    sum([*].tokens)
    -->

The words after `figures` and `file` name raw files without `.json.gz`; a pattern gives
a list of the files that match. Text before a colon is put in front of each path that
starts with a dot. `-` stands for a number that is no figure, such as a number of rows.
A figure must equal its source, rounded to the digits that are quoted.

Times, ratios and MiB without a source are errors, unless they are options (a table
whose first heading is `option...`), the block is followed by `<!-- settings -->`, or it
says "raw file not kept" (of a table: the paragraph next to it).
"""

from __future__ import annotations

import functools
import gzip
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NOT_KEPT = "raw file not kept"
# Numbers that stand alone: no dates, versions or names such as H200, 0.32.0 and
# Qwen3-8B.
_NUMBER = re.compile(
    r"(?<![\w.,-])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\w-])|\d+(?:\.\d+)?(?![\w-]|[.,]\d))",
)
_MEASURED = re.compile(
    r"\d[\d.,]* (?:us|µs|ms|s|MiB)\b|(?<![\w.])\d\.\d{3}(?![\w.])|\d[\d.,]* times\b|\d\.\d+x\b",
)
_MEASURED_COLUMN = re.compile(r"\b(?:us|µs|ms|MiB|ratio)\b")
_MEASURED_CELL = re.compile(r"[\d.,()/ x-]*\d\.\d[\d.,()/ x-]*")
_STEP = re.compile(r'\.?(\w+)|\["([^"]*)"\]|\[([^\]]*)\]')
_FUNCTIONS: dict[str, Callable[[Sequence[Any]], float]] = {
    "min": min,
    "max": max,
    "sum": sum,
    "median": statistics.median,
    "count": len,
}


class FigureError(Exception):
    """A source that cannot be read."""


class Block(NamedTuple):
    """Consecutive lines of a page: a table, a paragraph or a comment."""

    line: int
    text: str

    @property
    def kept(self) -> bool:
        """Whether the text does not say that its raw file is gone."""
        return NOT_KEPT not in " ".join(self.text.split())


def pages() -> list[Path]:
    """The pages that are checked: all but those that have no number of their own."""
    generated = {ROOT / "docs/cli.md", ROOT / "docs/figures.md"}
    return [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - generated)]


def errors(page: Path) -> Iterator[str]:
    """What is wrong with the figures of a page."""
    blocks = list(_blocks(page.read_text(encoding="utf-8")))
    padded = [Block(0, ""), *blocks, Block(0, "")]
    for before, block, after in zip(padded, blocks, padded[2:], strict=False):
        if block.text.startswith("<!--"):
            continue
        place = f"{page.relative_to(ROOT) if page.is_relative_to(ROOT) else page}:{block.line}"
        if after.text.startswith("<!-- figures "):
            for error in _mismatches(block.text, after.text):
                yield f"{place}: {error}"
        elif after.text != "<!-- settings -->" and block.kept:
            found = _unsourced(block.text)
            if found and not (
                block.text.startswith("|") and not (before.kept and after.kept)
            ):
                yield f"{place}: {found!r} has no source: add `<!-- figures FILE ... -->` or say {NOT_KEPT!r}"


def _blocks(text: str) -> Iterator[Block]:
    """The blocks of a page, without fenced code. Headings and list items are blocks of
    their own."""
    current: list[str] = []
    start = 0
    fenced = False
    comment = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        ends = fence or (
            not comment and (not line.strip() or line.startswith(("#", "- ", "<!--")))
        )
        if ends and current:
            yield Block(start, "\n".join(current))
            current.clear()
        fenced ^= fence
        if line.strip() and not (fence or fenced):
            start = start if current else number
            current.append(line)
        comment = (comment or line.startswith("<!--")) and "-->" not in line


def _cells(text: str) -> Iterator[str]:
    """Where figures may stand: cells of a table's rows but the first of each, or the
    whole paragraph."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", lambda found: " " * len(found[0]), text)
    if not text.startswith("|"):
        yield text
        return
    for row in text.splitlines()[2:]:
        yield from row.strip().strip("|").split("|")[1:]


def _unsourced(text: str) -> str:
    """The first number of a block without a source that looks measured."""
    header = text.splitlines()[0].lower()
    if text.startswith("|"):
        if header.startswith("| option"):
            return ""
        cells = list(_cells(text))
        if _MEASURED_COLUMN.search(header) or any(map(_MEASURED_CELL.fullmatch, cells)):
            return next(
                (number for cell in cells for number in _NUMBER.findall(cell)), ""
            )
    found = next(filter(None, map(_MEASURED.search, _cells(text))), None)
    return found[0] if found else ""


def _mismatches(text: str, comment: str) -> Iterator[str]:
    quoted = [number for cell in _cells(text) for number in _NUMBER.findall(cell)]
    try:
        sources = list(_sources(comment))
    except (FigureError, OSError) as error:
        yield str(error)
        return
    if len(quoted) != len(sources):
        yield f"{len(quoted)} numbers ({', '.join(quoted)}), but {len(sources)} sources"
        return
    for number, (source, value) in zip(quoted, sources, strict=True):
        digits = len(number.partition(".")[2])
        if (
            value is not None
            and abs(float(number.replace(",", "")) - value) > 0.500001 * 10**-digits
        ):
            yield f"{number}, but {source} is {value:.6g}"


def _sources(comment: str) -> Iterator[tuple[str, float | None]]:
    """Each source of a comment and its value: None for `-`."""
    first, *lines = (
        comment.removeprefix("<!-- figures ").replace("-->", "").strip().splitlines()
    )
    document = load(first.strip())
    for line in filter(None, map(str.strip, lines)):
        if line.startswith("file "):
            document = load(line.removeprefix("file ").strip())
            continue
        prefix, colon, terms = line.rpartition(": ")
        for term in re.split(r",(?![^\[]*\])", terms):
            source = (
                re.sub(r"(?<![\w\])*])\.(?=\w)", prefix + ".", term.strip())
                if colon
                else term.strip()
            )
            yield source, None if source == "-" else value(document, source)


@functools.cache
def load(name: str) -> Any:
    """A raw file; a list of them for a pattern."""
    files = sorted(RESULTS.glob(f"{name}.json.gz"))
    if not files:
        raise FigureError(f"no raw file {name}.json.gz in {RESULTS.relative_to(ROOT)}/")
    documents = [json.loads(gzip.decompress(file.read_bytes())) for file in files]
    return documents if "*" in name else documents[0]


def value(document: Any, source: str) -> float:
    """What a source stands for in a raw file."""
    function = re.fullmatch(r"(\w+)\((.*)\)", source)
    if function:
        if function[1] not in _FUNCTIONS:
            raise FigureError(
                f"{source}: no function {function[1]}; there are {', '.join(_FUNCTIONS)}"
            )
        return float(_FUNCTIONS[function[1]](_found(document, function[2])))
    first, *rest = re.split(r"\s+([*/])\s+", source)
    value = _operand(document, first)
    for operator, operand in zip(rest[::2], rest[1::2], strict=True):
        other = _operand(document, operand)
        value = value * other if operator == "*" else value / other
    return value


def _operand(document: Any, text: str) -> float:
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return float(text)
    found = _found(document, text)
    if len(found) != 1 or not isinstance(found[0], int | float):
        raise FigureError(f"{text} stands for {len(found)} values, or for no number")
    return float(found[0])


def _found(document: Any, path: str) -> list[Any]:
    """All values that a path leads to; `[*]` takes each item, `[key=text ...]` those
    that match."""
    values = [document]
    end = 0
    for step in _STEP.finditer(path):
        if step.start() != end:
            break
        end = step.end()
        values = [
            found
            for value in values
            for found in _step(value, step[1] or step[2], step[3])
        ]
    if end != len(path) or not values:
        raise FigureError(f"{path} leads to nothing")
    return values


def _step(value: Any, key: str | None, items: str | None) -> list[Any]:
    if key is not None:
        return [value[key]] if isinstance(value, dict) and key in value else []
    if not isinstance(value, list):
        return []
    if items == "*":
        return value
    if items and items.isdigit():
        return value[int(items) : int(items) + 1]
    wanted = [part.split("=", 1) for part in (items or "").split()]
    return [
        item
        for item in value
        if all(str(item.get(name)) == text for name, text in wanted)
    ]


def main() -> int:
    """Print what is wrong; the exit status is 1 if anything is."""
    found = [error for page in pages() for error in errors(page)]
    for error in found:
        print(error, file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
