"""What the site needs beyond the pages in docs/: pages of the repository's root, raw
files, and lists as they are written.

mkdocs calls these functions (`hooks` in mkdocs.yml). A link that leaves docs/ leads to
the page's copy here, or the build fails.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).resolve().parents[1]

_RESULTS = "benchmarks/results"
# File of the repository -> page or file of the site.
_COPIED = {
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "SECURITY.md",
    f"{_RESULTS}/README.md": "results.md",
    **{
        f"{_RESULTS}/{file.name}": f"results/{file.name}"
        for file in (_ROOT / _RESULTS).glob("*.json.gz")
    },
}
_PAGES = {**_COPIED, "README.md": "index.md"}
_HEADINGS = {
    "Which of my 50 tools breaks the server?": "specs.html#which-of-my-50-tools-breaks-the-server"
}
"""Headings that are asked for by their name, next to the pages of the guides."""
_LINK = re.compile(
    r"^ *```.*?^ *```|(?<=\]\()([^)\s#:]+)(?=[)#])", re.DOTALL | re.MULTILINE
)
"""A fenced block, which stays as it is, or the target of a link."""
_LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)|<link[^>]+stylesheet[^>]+href=\"(https?:[^\"]+)"
)


class _TwoSpaces(Extension):
    """Lists continue at an indent of two spaces, as in the repository's own view."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.tab_length = 2


def on_config(config: MkDocsConfig) -> None:
    config.markdown_extensions.append(_TwoSpaces())  # type: ignore[arg-type]


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add the pages and raw files that are not in docs/."""
    for source, page in _COPIED.items():
        files.append(File.generated(config, page, abs_src_path=str(_ROOT / source)))


def on_nav(nav: Navigation, **_: Any) -> None:
    """`nav` of mkdocs.yml takes pages only."""
    (guides,) = (one for one in nav.items if one.title == "Guides")
    guides.children += [Link(*heading) for heading in _HEADINGS.items()]


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Links from file to file of the repository become links from page to page."""
    here = page.file.src_uri
    source = next(
        (source for source, copy in _COPIED.items() if copy == here), f"docs/{here}"
    )

    def moved(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if target in _PAGES:
            target = _PAGES[target]
        elif target.startswith("docs/"):
            target = target.removeprefix("docs/")
        else:
            return match[0]
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    return _LINK.sub(moved, markdown)


def on_post_page(output: str, *, page: Page, **_: Any) -> None:
    """A page loads nothing from another host."""
    foreign = _LOADED.search(output)
    if foreign:
        raise PluginError(f"{page.file.src_uri} loads {foreign[1] or foreign[2]}")
