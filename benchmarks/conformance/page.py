"""docs/conformance.md, from the raw files of a run: tables, and the comments that name their sources."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from suite_scores import reasons

__all__ = ["page"]

_TITLES = {
    "auto": "auto",
    "llguidance": "llguidance, through this package",
    "xgrammar": "xgrammar, through this package",
    "raw-llguidance": "llguidance by itself",
    "raw-xgrammar": "xgrammar by itself",
}
_COUNTS = ("schemas", "valid_accepted", "valid_refused", "invalid_refused", "wrong_accepts", "refused")
_COUNTS += ("refused_right",)
_HEADINGS = ("schemas", "valid accepted", "valid refused", "invalid refused", "wrong accepts", "refused")
_HEADINGS += ("of them rightly",)
_FILES = (
    "files",
    "passing",
    "wrong_accepts",
    "wrong_refusals",
    "refused",
    "died",
    "early_stops",
    "dead_ends",
)

_INTRODUCTION = """# Conformance: what is accepted, what is refused, and what is wrong

`make conformance SUITE=... SAMPLE=... TOKENIZER=...` makes this page and its raw files. `make fuzz` looks for
what no collection holds. Words that the tables use:

- **valid refused**: a valid instance that can't be written. **wrong accept**: an invalid one that can.
- **refused**: a schema that is not compiled; the error says what, where and why. **rightly**: no instance is
  valid, or the schema needs another document (references are never fetched).
- **early stop**: a position where a stop token is allowed before the output is whole, or missing when it is,
  or where another special token is allowed. **dead end**: a position where no token is allowed.
- **by itself**: the library with no check, rewrite or limit of this package in between. xgrammar is called as
  vLLM calls it, with `strict_mode`, which closes objects; llguidance with `no_forcing`, since it otherwise
  insists on the tokenizer's own tokens. Neither is configured further.

What says nothing about validity is an annotation, by the standard: `title`, `description`, `default`,
`examples`, `$comment`, `readOnly`, `writeOnly`, `deprecated`, `contentEncoding`, `contentMediaType`,
`contentSchema`, and every `format` that is not in the table of formats. Keywords of a later draft than the
schema names, and keywords next to `$ref` before 2019-09, are annotations too. Warnings name them when a
request is admitted.
"""


def page(parts: dict[str, tuple[str, dict[str, Any]]]) -> str:
    """The page: each part as its raw file's name and content."""
    makers = {"suite": _suite, "formats": _formats, "maskbench": _maskbench, "differences": _differences}
    makers["fuzz"] = _fuzz
    sections = [
        makers[part](name, parts[part][1]) for part in makers if part in parts for name in [parts[part][0]]
    ]
    return "\n".join([_INTRODUCTION, *sections]).rstrip() + "\n"


def _table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _figures(name: str, lines: Iterable[str]) -> str:
    return "\n".join(["", f"<!-- figures {name}", *lines, "-->", ""])


def _made(document: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in document["versions"].items())
    every = document.get("every", 1)
    sample = f" A one-in-{every} sample of the schemas." if every > 1 else ""
    return f"{document['date']}; {versions}.{sample}\n"


def _suite(name: str, document: dict[str, Any]) -> str:
    parts = ["## The official JSON Schema Test Suite\n", "The core files of each draft. " + _made(document)]
    for tag, title in ((False, "Each schema by itself"), (True, "The same schemas inside a structural tag")):
        rows = [row for row in document["suite"] if row["tag"] is tag]
        parts.append(f"### {title}\n")
        parts.append(
            _table(
                ("engine", "draft", *_HEADINGS),
                [(_TITLES[row["engine"]], row["draft"], *(row[key] for key in _COUNTS)) for row in rows],
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
    ours = [row for row in document["suite"] if row["engine"] == "auto" and not row["tag"]]
    parts += ["### By keyword, with `auto`\n"]
    for row in ours:
        parts += _keywords(name, row)
    return "\n".join([*parts, *_named(ours)])


def _keywords(name: str, row: dict[str, Any]) -> list[str]:
    wrong = ("valid_refused", "wrong_accepts", "refused")
    faulty = [keyword for keyword in row["keywords"] if any(keyword[key] for key in wrong)]
    clean = [f"`{keyword['keyword']}`" for keyword in row["keywords"] if keyword not in faulty]
    where = f"suite[engine=auto draft={row['draft']} tag=False].keywords"
    return [
        f"**{row['draft']}**. Nothing refused and nothing wrong: {', '.join(clean)}.\n",
        _table(
            (f"other files of {row['draft']}", *_HEADINGS),
            [(keyword["keyword"], *(keyword[key] for key in _COUNTS)) for keyword in faulty],
        ),
        _figures(
            name,
            [
                f"{where}[keyword={keyword['keyword']}]: " + ", ".join("." + key for key in _COUNTS)
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
        listed = [f"- {line} ({', '.join(dict.fromkeys(found))})" for line, found in drafts.items()]
        parts += [f"### {title}\n", "\n".join(listed or ["None."]) + "\n"]
    return parts


def _lines(named: dict[str, Any], kind: str) -> list[str]:
    if kind in named:
        return [f"{_plain(name)}: {_code(text)}" for name, text in named[kind]]
    refused = [entry for entry in named["refused"] if bool(entry[2]) is (kind == "right")]
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
            for keyword in row["keywords"] if engine == "auto" and row is found[-1] else ():
                rows.append(
                    (f"`{keyword['keyword']}`", _TITLES[engine], *(keyword[key] for key in _COUNTS[1:5]))
                )
                lines.append(
                    f"formats[engine={engine} draft={row['draft']}].keywords[keyword={keyword['keyword']}]: "
                    + ", ".join("." + key for key in _COUNTS[1:5])
                )
        rows += [
            (f"all, {row['draft']}", _TITLES[engine], *(row[key] for key in _COUNTS[1:5]))
            for row in found[-1:]
        ]
        lines += [
            f"formats[engine={engine} draft={row['draft']}]: " + ", ".join("." + key for key in _COUNTS[1:5])
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
            *(f"- wrong accept: {_plain(n)}: {_code(t)}" for n, t in newest[0]["named"]["wrong_accepts"]),
            "",
        ]
    )


def _maskbench(name: str, document: dict[str, Any]) -> str:
    runs = document["runs"]
    keys = ("masks.avg_us", "masks.p99_us", 'masks["p99.9_us"]', "first_mask.p50_ms", "first_mask.p99_ms")
    parts = [
        "## MaskBench: real schemas\n",
        f"{document['vocabulary']:,} tokens, {document['walks']} outputs at random a schema, one thread "
        f"of {document['processor'] or 'a CPU'}, {_made(document)}"
        f"xgrammar compiles for seconds: its rows are of a one-in-{document['slow_every']} sample.\n",
        f"<!-- figures {name}\nvocabulary, walks\n-->\n",
    ]
    for tag, title in ((False, "Each schema by itself"), (True, "Inside a structural tag")):
        rows, lines = [], []
        for index, run in enumerate(runs):
            if run["tag"] is not tag:
                continue
            masks, first = run["masks"], run["first_mask"]
            times = [masks.get("avg_us"), masks.get("p99_us"), masks.get("p99.9_us")]
            times += [first.get("p50_ms"), first.get("p99_ms")]
            share = 100 * run["passing"] / max(1, run["files"])
            known = [
                f"{value:.3g}" if value < 100 else f"{value:,.0f}" for value in times if value is not None
            ]
            shown = [run[key] for key in _FILES]
            shown[1] = f"{run['passing']:,} ({share:.1f}%)"
            rows.append((_TITLES[run["engine"]], *shown, " / ".join(known[:3]), " / ".join(known[3:])))
            counts = [f"runs[{index}].{key}" for key in _FILES]
            counts.insert(2, f"runs[{index}].passing * 100 / runs[{index}].files")
            lines.append(", ".join([*counts, *(f"runs[{index}].{key}" for key in keys)]))
        heading = [key.replace("_", " ") for key in _FILES]
        times_heading = ["mask avg / p99 / p99.9 us", "first mask p50 / p99 ms"]
        parts += [f"### {title} (MaskBench)\n", _table(["engine", *heading, *times_heading], rows)]
        parts.append(_figures(name, lines))
    parts += _maskbench_named(runs)
    return "\n".join(parts)


def _maskbench_named(runs: list[dict[str, Any]]) -> list[str]:
    parts = []
    for run in (run for run in runs if run["engine"] == "auto"):
        place = "inside a tag" if run["tag"] else "by itself"
        parts.append(f"What does not pass with `auto`, {place}:\n")
        for kind in ("wrong_accepts", "wrong_refusals", "early_stops", "dead_ends", "died"):
            parts += [f"- {kind.replace('_', ' ')}: {_code(entry[0])}" for entry in run["named"][kind]]
        parts += [
            f"- refused, {count} files: {_code(reason)}" for reason, count in reasons(run["named"]["refused"])
        ]
        parts.append("" if run["passing"] < run["files"] else "- nothing\n")
    return parts


def _differences(name: str, document: dict[str, Any]) -> str:
    found = document["differences"]
    keys = ("schemas", "schemas of both", "positions", "equal positions", "tokens tried")
    tried = Counter()  # type: ignore[var-annotated]
    verdicts = sorted({row["verdict"] for row in found["causes"]})
    for row in found["causes"]:
        tried[row["only"], row["cause"], row["verdict"]] += row["tokens"]
    pairs = sorted({(row["only"], row["cause"]) for row in found["causes"]})
    index = {(row["only"], row["cause"], row["verdict"]): n for n, row in enumerate(found["causes"])}
    lines = []
    for only, cause in pairs:
        at = [index.get((only, cause, verdict)) for verdict in verdicts]
        lines.append(", ".join("-" if n is None else f"differences.causes[{n}].tokens" for n in at))
    return "\n".join(
        [
            "## Masks of the two backends at the same positions\n",
            "Along valid instances of MaskBench schemas that both backends take, at positions at random. Of "
            "the tokens that one backend alone allows, some are tried: that backend writes an output to its "
            "end, and the oracle judges it. " + _made(document),
            _table(("what", "count"), [(key, found[key]) for key in keys]),
            _figures(name, [f'differences["{key}"]' for key in keys]),
            _table(
                ("allowed by one alone", "kind of token", *(f"{verdict}" for verdict in verdicts)),
                [
                    (only, cause, *(tried[only, cause, verdict] for verdict in verdicts))
                    for only, cause in pairs
                ],
            ),
            _figures(name, lines),
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
            f"`make fuzz COUNT={totals['schemas']} SEED={document['seed']}`: {_made(document)}",
            _table(("what", "count"), list(totals.items())),
            _figures(name, [f'totals["{key}"]' for key in keys]),
        ]
    )
