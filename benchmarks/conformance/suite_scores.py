"""The official JSON Schema Test Suite with each engine: one row a schema, and sums by
draft and keyword."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin

from engines import Engine, Json, refusal
from instances import near
from official_suite import DRAFTS, Group, groups
from oracle import OracleError, oracle, read_exactly
from stopping import Walker, is_json, special_vocabulary
from subjects import is_whole

from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.schema import walk

__all__ = ["formats", "suite"]


def suite(source: Path, names: Iterable[str], every: int) -> Iterator[Json]:
    """One document for each engine, draft and place: outside a tag and inside one."""
    yield from _scores(source, names, every, "")


def formats(source: Path, names: Iterable[str], every: int) -> Iterator[Json]:
    """The same of `optional/format`, for the formats that are enforced."""
    yield from _scores(
        source,
        names,
        1 if every < 3 else every,
        "optional/format",
    )


def _scores(
    source: Path, names: Iterable[str], every: int, folder: str
) -> Iterator[Json]:
    vocabulary = special_vocabulary(padded=True)
    for name in names:
        engine = Engine(name, vocabulary)
        walker = Walker(engine)  # type: ignore[arg-type]
        for draft in DRAFTS:
            chosen = list(groups(draft, source, folder))[::every]
            chosen = [
                group for group in chosen if not folder or group.keyword in FORMATS
            ]
            for tag in (False, True) if not folder else (False,):
                rows = [_row(engine, walker, group, tag) for group in chosen]
                own = {"engine": name, "draft": draft, "tag": tag}
                yield {
                    **own,
                    **_sums(rows),
                    "keywords": _by_keyword(rows),
                }


def _row(engine: Engine, walker: Walker, group: Group, tag: bool) -> Json:
    row: Json = {
        "keyword": group.keyword,
        "name": group.name,
        "refused": 0,
        "right": 0,
        "reason": "",
    }
    row |= {
        "valid_accepted": 0,
        "valid_refused": [],
        "invalid_refused": 0,
        "wrong_accepts": [],
    }
    row |= {"early_stops": 0}
    grammar, reason = refusal(engine, group.schema, tag=tag)
    if grammar is None:
        right = _right_to_refuse(group)
        return row | {
            "refused": 1,
            "right": int(bool(right)),
            "reason": reason,
            "why": right,
        }
    for text, valid in group.tests:
        walk = walker.walk(
            grammar, engine.text(text, tag=tag), is_whole if tag else is_json
        )
        row["early_stops"] += bool(walk.early or walk.leaks)
        if valid and walk.accepted:
            row["valid_accepted"] += 1
        elif valid:
            row["valid_refused"].append(text[:120])
        elif walk.accepted:
            row["wrong_accepts"].append(text[:120])
        else:
            row["invalid_refused"] += 1
    return row


def _right_to_refuse(group: Group) -> str:
    """Why a schema must be refused: it needs another document, or no instance is valid;
    empty otherwise."""
    if needs_remote(group.schema):
        return "needs another document"
    if any(valid for _, valid in group.tests):
        return ""
    try:
        allowed = oracle(group.schema)
        seeds = [read_exactly(text) for text, _ in group.tests]
        found = any(allowed(value) for value in near(group.schema, seeds, count=200))
    except OracleError:
        return ""
    return "" if found else "no instance is valid"


def needs_remote(schema: Any) -> bool:
    """Whether a reference of a schema leads out of it."""
    known = {""}
    wanted = set()
    for base, node in _with_bases(schema, ""):
        known.add(base)
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(node.get(keyword), str):
                wanted.add(urldefrag(urljoin(base, node[keyword]))[0])
    meta = isinstance(schema, dict) and "json-schema.org" not in str(
        schema.get("$schema", "json-schema.org")
    )
    return meta or bool(wanted - known)


def _with_bases(schema: Any, base: str) -> Iterator[tuple[str, Json]]:
    """Every object of a schema, with the address that its references are relative
    to."""
    bases: dict[tuple[str | int, ...], str] = {(): base}
    for path, node in sorted(walk(schema), key=lambda step: len(step[0])):
        above = next(
            (
                bases[path[:end]]
                for end in range(
                    len(path),
                    -1,
                    -1,
                )
                if path[:end] in bases
            ),
            base,
        )
        if isinstance(node, dict):
            own = node.get("$id", node.get("id"))
            if isinstance(own, str) and not own.startswith("#"):
                above = urldefrag(urljoin(above, own))[0]
            bases[path] = above
            yield above, node


def _sums(rows: list[Json]) -> Json:
    """What is counted, and each thing that is wrong by its name."""
    return {
        "schemas": len(rows),
        "valid_accepted": sum(row["valid_accepted"] for row in rows),
        "valid_refused": sum(len(row["valid_refused"]) for row in rows),
        "invalid_refused": sum(row["invalid_refused"] for row in rows),
        "wrong_accepts": sum(len(row["wrong_accepts"]) for row in rows),
        "early_stops": sum(row["early_stops"] for row in rows),
        "refused": sum(row["refused"] for row in rows),
        "refused_right": sum(row["right"] for row in rows),
        "refused_satisfiable": sum(row["refused"] - row["right"] for row in rows),
        "named": {
            "refused": [
                [
                    row["name"],
                    row["reason"],
                    row["why"],
                ]
                for row in rows
                if row["refused"]
            ],
            "valid_refused": [
                [row["name"], text] for row in rows for text in row["valid_refused"]
            ],
            "wrong_accepts": [
                [row["name"], text] for row in rows for text in row["wrong_accepts"]
            ],
        },
    }


def _by_keyword(rows: list[Json]) -> list[Json]:
    """The sums of each file of the suite."""
    found = []
    for keyword in sorted({row["keyword"] for row in rows}):
        sums = _sums([row for row in rows if row["keyword"] == keyword])
        del sums["named"]
        found.append({"keyword": keyword, **sums})
    return found
