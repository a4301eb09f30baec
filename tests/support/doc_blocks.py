"""The code blocks of the pages, and what a test does with each.

| fence | what is done |
|---|---|
| `python` | run, in the order of the page, in one namespace |
| `python title="PATH"` | an excerpt: its code stands in that file of the repository, in this order |
| `sh` | run by bash in a folder of the page's own |
| `json`, `toml`, `yaml`, with a title | a file of that name; read by the program that it is for |
| `text` | the output of what ran before it; `...` stands for any text |
| `drawing` | nothing: a picture |
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from script_files import ROOT

DATA = ("json", "toml", "yaml")
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.md"),
    ],
    key=lambda page: page.relative_to(ROOT).as_posix(),
)
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?(?P<rest>[^\n]*)\n"
    r"(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
_VLLM = re.compile(
    r"\bvllm serve\b|localhost:8000|^ *(?:from|import) (?:vllm|openai|prometheus_client)\b",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    title: str
    text: str

    @property
    def place(self):
        """For messages."""
        return f"{self.page}:{self.line}"

    @property
    def needs_vllm(self):
        """Whether it runs where vLLM is installed, next to a server."""
        return (
            self.language in ("python", "sh")
            and not self.title
            and bool(_VLLM.search(self.text))
        )


def blocks(page):
    """Of a page, in order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    found = []
    for match in _FENCE.finditer(text):
        language = match["language"]
        inside = match["text"]
        if match["indent"]:
            inside = re.sub(f"^{match['indent']}", "", inside, flags=re.MULTILINE)
        line = text.count("\n", 0, match.start("language")) + 1
        if match["rest"]:
            raise ValueError(
                f"{name}:{line}: what follows the language is no title: {match['rest']!r}"
            )
        found.append(Block(name, line, language, match["title"] or "", inside))
    if text.count("\n```") + text.startswith("```") > 2 * len(found) + text.count(
        "\n````"
    ):
        raise ValueError(
            f"{name}: a fence is not closed, or not at the start of its line"
        )
    return found
