"""Pages: links and citations lead somewhere, quoted figures have a source, YAML files
can be read."""

import gzip
import json
import re
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
CODE = re.compile(r"`[^`\n]*`")


figures = load_script("scripts/figures.py")


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(
        r"^#+ (.+)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.MULTILINE
    ):
        found.add(re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-"))
    return found


def links():
    """The link and where it stands, the file it leads to, and the anchor or an empty
    text."""
    for page in PAGES:
        for target in LINK.findall(
            CODE.sub("", FENCED.sub("", page.read_text(encoding="utf-8")))
        ):
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


def test_links_and_citations_lead_somewhere():
    found = list(links())
    assert [place for place, file, _ in found if not file.exists()] == []
    assert [
        place for place, file, anchor in found if anchor and anchor not in anchors(file)
    ] == []
    assert sum(place.startswith("guided_plugin/") for place, _, _ in found) > 3


def test_docstrings_begin_as_sentences_do():
    refused = re.compile(r'"""(Of|Those|Whether|What|Where|How)\b')
    for file in (ROOT / "guided_plugin").rglob("*.py"):
        assert not refused.search(file.read_text()), file


def test_every_table_is_what_its_raw_file_says():
    assert [error for page in figures.pages() for error in figures.errors(page)] == []


def test_raw_files_name_their_command_date_and_versions():
    files = sorted(figures.RESULTS.glob("*.json.gz"))
    assert files
    for file in files:
        text = gzip.decompress(file.read_bytes()).decode()
        assert list(json.loads(text))[:2] == ["command", "date"]
        assert '"versions"' in text


RAW = {
    "date": "2026-11-29",
    "environment": {"versions": {}},
    "runs": [
        {
            "tokenizer": "one",
            "counts": {"schemas": 1133, "valid": 63, "cut by length": 1},
            "told": [],
        }
    ],
}
TABLE = "<!-- table closing -->\n<!-- end -->\n"


@pytest.fixture
def readme(tmp_path, monkeypatch):
    """A README of its own, whose raw files all say the same."""
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "load", lambda name: RAW)
    return tmp_path / "README.md"


def test_a_table_is_written_from_its_raw_file(readme):
    readme.write_text(f"Before.\n\n{TABLE}\nBehind.\n")
    for old, new in (("", ""), ("| 63 |", "| 62 |")):
        readme.write_text(readme.read_text().replace(old, new))
        assert list(figures.errors(readme)) == [figures.STALE]
        readme.write_text(figures.written(readme))
        assert "\n| one | 1,133 | 64 | 63 | 0 |\n" in readme.read_text()
        assert list(figures.errors(readme)) == []


def test_every_raw_file_is_quoted():
    """By a table, or by name on a page, or where a constant says how it was chosen."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in [*SOURCES, *PAGES])
    quoted = re.findall(r"[\"`](20\d\d-\d\d-\d\d-[\w.-]+)[\"`]", text)
    files = figures.RESULTS.glob("*.json.gz")
    assert {file.name.removesuffix(".json.gz") for file in files} - {*quoted} == set()


def test_the_pages_made_from_code_are_what_it_says():
    script = load_script("scripts/make_docs.py")
    for name, render in script.PAGES.items():
        page = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
        assert page == render(), "run: python scripts/make_docs.py"


def test_every_page_has_its_place_on_the_site():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    pages = {
        page.relative_to(ROOT / "docs").as_posix()
        for page in (ROOT / "docs").rglob("*.md")
    }
    assert pages <= set(re.findall(r"[\w./-]+\.md", nav))


@pytest.mark.parametrize(
    "file",
    [
        ROOT / ".pre-commit-config.yaml",
        ROOT / "examples/check_tools.yml",
        *(ROOT / ".github").rglob("*.yml"),
    ],
    ids=str,
)
def test_yaml_files_can_be_read(file):
    assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)


def test_ci_runs_what_make_test_runs():
    workflow = yaml.safe_load(
        (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    )
    commands = [
        step.get("run", "")
        for job in workflow["jobs"].values()
        for step in job["steps"]
    ]
    assert ".ci/run" in commands
