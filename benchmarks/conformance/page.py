"""docs/conformance.md, from the raw files of a run: tables, and the comments that name
their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["page"]

_TITLES = {
    "auto": "auto",
    "llguidance": "llguidance, through this package",
    "xgrammar": "xgrammar, through this package",
    "raw-llguidance": "llguidance by itself",
    "raw-xgrammar": "xgrammar by itself",
}
_COUNTS = (
    "schemas",
    "valid_accepted",
    "valid_refused",
    "invalid_refused",
    "wrong_accepts",
    "refused",
)
_COUNTS += ("refused_right",)
_HEADINGS = (
    "schemas",
    "valid accepted",
    "valid refused",
    "invalid refused",
    "wrong accepts",
    "refused",
)
_HEADINGS += ("of them rightly",)
_INTRODUCTION = """# Conformance: what is accepted, what is refused, and what is wrong

`make conformance SUITE=...` makes this page and its raw files. `make fuzz` looks for
what no collection has, and [figures](figures.md#maskbench) have real schemas. Words that the tables use:

- **valid refused**: a valid instance that can't be written. **wrong accept**: an invalid one that can.
- **refused**: a schema that is not compiled; the error says what, where and why. **rightly**: no instance is
  valid, or the schema needs another document (references are never fetched).
- **early stop**: a position where a stop token is allowed before the output is whole, or missing when it is,
  or where another special token is allowed. **dead end**: a position where no token is allowed.
- **by itself**: the library with no check, rewrite or limit of this package in between. xgrammar is called as
  vLLM calls it, with `strict_mode`, which closes objects; llguidance with `no_forcing`, since it otherwise
  insists on the tokenizer's own tokens. Neither is configured further.

Each table was measured on the date that it names. Since then xgrammar, through this package, takes EBNF grammars
alone and refuses every schema, and [more is refused](specs.md#what-is-refused) with `auto`.

These keywords say nothing about validity, so they are annotations, as in the standard: `title`,
`description`, `default`, `examples`, `$comment`, `readOnly`, `writeOnly`, `deprecated`, `contentEncoding`,
`contentMediaType`, `contentSchema`, and every `format` that is not in the table of formats. Keywords of a
later draft than the schema names, and keywords next to `$ref` before 2019-09, are annotations too. Warnings
name them when a request is admitted.
"""


def page(parts: dict[str, tuple[str, dict[str, Any]]]) -> str:
    """The page: each part as its raw file's name and content."""
    makers = {"suite": _suite, "formats": _formats, "fuzz": _fuzz}
    sections = [
        makers[part](name, parts[part][1])
        for part in makers
        if part in parts
        for name in [parts[part][0]]
    ]
    return "\n".join([_INTRODUCTION, *sections]).rstrip() + "\n"


def _table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(
        [*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)]
    )


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _figures(name: str, lines: Iterable[str]) -> str:
    return "\n".join(["", f"<!-- figures {name}", *lines, "-->", ""])


def _made(document: dict[str, Any]) -> str:
    versions = ", ".join(
        f"{name} {version}" for name, version in document["versions"].items()
    )
    every = document.get("every", 1)
    sample = f" A one-in-{every} sample of the schemas." if every > 1 else ""
    return f"{document['date']}; {versions}.{sample}\n"


def _suite(name: str, document: dict[str, Any]) -> str:
    parts = [
        "## The official JSON Schema Test Suite\n",
        "The core files of each draft. " + _made(document),
    ]
    for tag, title in (
        (False, "Each schema by itself"),
        (True, "The same schemas inside a structural tag"),
    ):
        rows = [row for row in document["suite"] if row["tag"] is tag]
        parts.append(f"### {title}\n")
        parts.append(
            _table(
                ("engine", "draft", *_HEADINGS),
                [
                    (
                        _TITLES[row["engine"]],
                        row["draft"],
                        *(row[key] for key in _COUNTS),
                    )
                    for row in rows
                ],
            )
        )
        parts.append(
            _figures(
                name,
                [
                    f"suite[engine={row['engine']} draft={row['draft']} tag={tag}]: "
                    + ", ".join("." + key for key in _COUNTS)
                    for row in rows
                ],
            )
        )
    ours = [
        row for row in document["suite"] if row["engine"] == "auto" and not row["tag"]
    ]
    parts += ["### By keyword, with `auto`\n"]
    for row in ours:
        parts += _keywords(name, row)
    return "\n".join([*parts, *_named(ours)])


def _keywords(name: str, row: dict[str, Any]) -> list[str]:
    wrong = ("valid_refused", "wrong_accepts", "refused")
    faulty = [
        keyword for keyword in row["keywords"] if any(keyword[key] for key in wrong)
    ]
    clean = [
        f"`{keyword['keyword']}`"
        for keyword in row["keywords"]
        if keyword not in faulty
    ]
    where = f"suite[engine=auto draft={row['draft']} tag=False].keywords"
    return [
        f"**{row['draft']}**. Nothing refused and nothing wrong: {', '.join(clean)}.\n",
        _table(
            (f"other files of {row['draft']}", *_HEADINGS),
            [
                (keyword["keyword"], *(keyword[key] for key in _COUNTS))
                for keyword in faulty
            ],
        ),
        _figures(
            name,
            [
                f"{where}[keyword={keyword['keyword']}]: "
                + ", ".join("." + key for key in _COUNTS)
                for keyword in faulty
            ],
        ),
    ]


def _named(rows: list[dict[str, Any]]) -> list[str]:
    """Everything that is wrong, by name, with the drafts in which it is."""
    parts = []
    titles = {
        "wrong_accepts": "Wrong accepts",
        "valid_refused": "Valid instances that are refused",
        "unsuitable": "Schemas that are refused although an instance is valid",
        "right": "Schemas that are rightly refused",
    }
    for kind, title in titles.items():
        drafts: dict[str, list[str]] = {}
        for row in rows:
            for line in _lines(row["named"], kind):
                drafts.setdefault(line, []).append(row["draft"].removeprefix("draft"))
        listed = [
            f"- {line} ({', '.join(dict.fromkeys(found))})"
            for line, found in drafts.items()
        ]
        parts += [f"### {title}\n", "\n".join(listed or ["None."]) + "\n"]
    return parts


def _lines(named: dict[str, Any], kind: str) -> list[str]:
    if kind in named:
        return [f"{_plain(name)}: {_code(text)}" for name, text in named[kind]]
    refused = [
        entry for entry in named["refused"] if bool(entry[2]) is (kind == "right")
    ]
    return [f"{_plain(name)}: {why or _code(reason)}" for name, reason, why in refused]


def _code(text: str) -> str:
    """A text as code: figures in it are none."""
    return "`` " + text.replace("\n", " ") + " ``" if "`" in text else f"`{text}`"


def _plain(text: str) -> str:
    return re.sub(r"([$*_<>\[\]`|])", r"\\\1", text)


def _formats(name: str, document: dict[str, Any]) -> str:
    rows = []
    lines = []
    for engine in dict.fromkeys(row["engine"] for row in document["formats"]):
        found = [row for row in document["formats"] if row["engine"] == engine]
        for row in found:
            for keyword in (
                row["keywords"] if engine == "auto" and row is found[-1] else ()
            ):
                rows.append(
                    (
                        f"`{keyword['keyword']}`",
                        _TITLES[engine],
                        *(keyword[key] for key in _COUNTS[1:5]),
                    )
                )
                lines.append(
                    f"formats[engine={engine} draft={row['draft']}].keywords[keyword={keyword['keyword']}]: "
                    + ", ".join("." + key for key in _COUNTS[1:5])
                )
        rows += [
            (
                f"all, {row['draft']}",
                _TITLES[engine],
                *(row[key] for key in _COUNTS[1:5]),
            )
            for row in found[-1:]
        ]
        lines += [
            f"formats[engine={engine} draft={row['draft']}]: "
            + ", ".join("." + key for key in _COUNTS[1:5])
            for row in found[-1:]
        ]
    newest = [row for row in document["formats"] if row["engine"] == "auto"][-1:]
    return "\n".join(
        [
            "## Formats\n",
            "The formats that are enforced, with the suite's `optional/format` of the newest draft: "
            + _made(document),
            _table(("format", "engine", *_HEADINGS[1:5]), rows),
            _figures(name, lines),
            *(
                f"- refused, and valid: {_plain(n)}: {_code(t)}"
                for n, t in newest[0]["named"]["valid_refused"]
            ),
            *(
                f"- wrong accept: {_plain(n)}: {_code(t)}"
                for n, t in newest[0]["named"]["wrong_accepts"]
            ),
            "",
        ]
    )


def _fuzz(name: str, document: dict[str, Any]) -> str:
    keys = (
        "schemas",
        "checked",
        "refused",
        "refused, but satisfiable",
        "valid instances",
        "invalid instances",
    )
    keys += (
        "walks",
        "wrong accept",
        "dead end",
        "early stop",
        "crash",
        "wrong refusal",
        "called unsatisfiable",
    )
    totals = {key: document["totals"].get(key, 0) for key in keys}
    return "\n".join(
        [
            "## Random schemas\n",
            f"`{document['command']}`: {_made(document)}",
            _table(("what", "count"), list(totals.items())),
            _figures(name, [f'totals["{key}"]' for key in keys]),
        ]
    )
