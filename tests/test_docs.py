"""Pages: links and citations lead somewhere, quoted figures have a source, YAML files
can be read."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from script_files import load_script

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "benchmarks").rglob("*.md"),
]
SOURCES = [
    *(
        file
        for folder in ("guided_plugin", "tests", "scripts", "benchmarks")
        for file in (ROOT / folder).rglob("*.py")
    ),
    *(ROOT / name for name in ("Makefile", "pyproject.toml")),
]
CITATION = re.compile(r"\b(?:docs|benchmarks)/[\w./-]+\.md(?:#[\w-]+)?")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


check_figures = load_script("scripts/check_figures.py")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(
        r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    ):
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return found


def links() -> Iterator[tuple[str, Path, str]]:
    """The link and where it stands, the file it leads to, and the anchor or an empty
    text."""
    for page in PAGES:
        for target in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            if "://" not in target:
                file, _, anchor = target.partition("#")
                yield (
                    f"{page.relative_to(ROOT)}: {target}",
                    page.parent / file if file else page,
                    anchor,
                )
    for source in [*SOURCES, *PAGES]:
        for target in CITATION.findall(source.read_text(encoding="utf-8")):
            file, _, anchor = target.partition("#")
            # A link of a page is relative to it, and was read above.
            if source.suffix != ".md" or (ROOT / file).exists():
                yield f"{source.relative_to(ROOT)}: {target}", ROOT / file, anchor


def test_links_and_citations_lead_somewhere() -> None:
    found = list(links())
    assert [place for place, file, _ in found if not file.exists()] == []
    assert [
        place for place, file, anchor in found if anchor and anchor not in anchors(file)
    ] == []
    assert sum(place.startswith("guided_plugin/") for place, _, _ in found) > 3


def test_every_quoted_figure_stands_in_a_raw_file() -> None:
    assert [
        error for page in check_figures.pages() for error in check_figures.errors(page)
    ] == []


def test_raw_files_name_their_command_date_and_versions() -> None:
    files = sorted((ROOT / "benchmarks/results").glob("*.json.gz"))
    assert files
    for file in files:
        text = gzip.decompress(file.read_bytes()).decode()
        assert list(json.loads(text))[:2] == ["command", "date"], file.name
        assert '"versions"' in text, file.name


LOOP = "2026-11-22-loop-h200-process-g"
TABLE = """
| rows | unguided, ms | ratio |
|---|---|---|
| 8 | {} | {} |
"""
COMMENT = f"""
<!-- figures {LOOP}
figures[rows=8 schema=plain]: .unguided_ms, .ratio
-->
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "page.md"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TABLE.format("4.75", "1.001") + COMMENT, []),
        (TABLE.format("4.8", "1.0") + COMMENT, []),
        (
            TABLE.format("4.75", "1.002") + COMMENT,
            ["1.002, but figures[rows=8 schema=plain].ratio is 1.001"],
        ),
        (
            TABLE.format("4.76", "1.001") + COMMENT,
            ["4.76, but figures[rows=8 schema=plain].unguided_ms is 4.7514"],
        ),
        (
            TABLE.format("4.75", "1.001 (2)") + COMMENT,
            ["3 numbers (4.75, 1.001, 2), but 2 sources"],
        ),
        (
            TABLE.format("4.75", "1.001") + COMMENT.replace("rows=8", "rows=9"),
            ["leads to nothing"],
        ),
        (
            TABLE.format("4.75", "1.001") + COMMENT.replace(LOOP, "other"),
            ["no raw file other.json.gz"],
        ),
        (TABLE.format("4.75", "1.001"), ["'4.75' has no source"]),
        ("Measured by hand, raw file not\nkept:\n" + TABLE.format("4.75", "1.001"), []),
        ("A step takes 4.75 ms.", ["'4.75 ms' has no source"]),
        ("Built-in takes 1.7 times as long.", ["'1.7 times' has no source"]),
        ("A step takes 4.75 ms (raw file not kept).", []),
        (
            "A step takes 4.75 ms (raw file not kept).\n\nAnother takes 5 ms.",
            ["'5 ms' has no source"],
        ),
        ("It waits for 50 ms.\n\n<!-- settings -->", []),
        ("| option | default |\n|---|---|\n| `row_ms` | 200 ms |", []),
        (
            "```\n4.75 ms\n```\n\nvLLM 0.32.0 and Python 3.11 on an H200, on 2026-11-22.",
            [],
        ),
        (
            f"From 1.001 to 1.004.\n\n<!-- figures {LOOP}\nmin(figures[*].ratio), max(figures[*].ratio)\n-->",
            [],
        ),
    ],
)
def test_figures_are_compared_with_their_sources(
    page: Path, text: str, expected: list[str]
) -> None:
    page.write_text(text)
    found = list(check_figures.errors(page))
    assert len(found) == len(expected)
    assert all(part in error for part, error in zip(expected, found, strict=True)), (
        found
    )


def test_the_pages_made_from_code_are_what_it_says() -> None:
    script = load_script("scripts/make_docs.py")
    for name, render in script.PAGES.items():
        page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
        assert page == render(), "run: python scripts/make_docs.py"


DESCRIBED = ("bench.py", "cli", "demo", "diagnose", "spec")
"""Folders of which every number says where it was measured, or that it was chosen."""


def test_numbers_say_where_they_come_from() -> None:
    found = list(load_script("scripts/make_docs.py").numbers())
    assert len(found) > 100
    mute = [
        (file, name) for file, name, _, text in found if not text and name != "_MIB"
    ]
    assert [one for one in mute if one[0].partition("/")[0] in DESCRIBED] == []


def test_every_page_has_its_place_on_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = {
        page.relative_to(ROOT / "docs").as_posix()
        for page in (ROOT / "docs").rglob("*.md")
    }
    assert pages <= set(re.findall(r"[\w./-]+\.md", nav))


@pytest.mark.parametrize(
    "file",
    [ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")],
    ids=str,
)
def test_yaml_files_can_be_read(file: Path) -> None:
    assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)


def test_ci_runs_what_make_test_runs() -> None:
    workflow = yaml.safe_load(
        (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    )
    commands = [
        step.get("run", "")
        for job in workflow["jobs"].values()
        for step in job["steps"]
    ]
    assert ".ci/run" in commands
