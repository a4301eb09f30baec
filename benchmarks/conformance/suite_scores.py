"""The official JSON Schema Test Suite with each engine: sums by draft and keyword, and
each thing that is wrong by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag, urljoin

from instances import near
from official_suite import DRAFTS, Group, groups
from oracle import OracleError, oracle, read_exactly
from stopping import Walker, is_json, special_vocabulary

from benchmarks.conformance.engines import Engine
from benchmarks.harness import Json
from guided_plugin.errors import GuidedError
from guided_plugin.spec.formats import FORMATS

_MOST_NAMED = 25
"""So many faults of the libraries by themselves are kept by name; of this package all
are."""


def scores(
    names: Sequence[str], source: Path, every: int, folder: str
) -> Iterator[Json]:
    """One document for each engine and draft. In a folder, only the files of formats
    that are enforced."""
    vocabulary = special_vocabulary(padded=True)
    for name in names:
        engine = Engine(name, vocabulary)
        for draft in DRAFTS:
            sums: dict[str, Counter[str]] = {}
            named: list[list[str]] = []
            for group in list(groups(draft, source, folder))[::every]:
                if not folder or group.keyword in FORMATS:
                    own = sums.setdefault(group.keyword, Counter())
                    own["schemas"] += 1
                    for what, text in _found(engine, group):
                        own[what] += 1
                        if text:
                            named.append([what, group.name, text])
            keywords = [{"keyword": one, **_counted(sums[one])} for one in sorted(sums)]
            yield {
                "engine": name,
                "draft": draft,
                **_counted(sum(sums.values(), Counter())),
                "keywords": keywords,
                "named": named if name == "auto" else named[:_MOST_NAMED],
            }


_COUNTED = (
    "schemas",
    "valid_accepted",
    "valid_refused",
    "invalid_refused",
    "wrong_accepts",
    "early_stops",
    "refused",
    "refused_right",
)


def _counted(sums: Counter[str]) -> Json:
    return {name: sums[name] for name in _COUNTED}


def _found(engine: Engine, group: Group) -> Iterator[tuple[str, str]]:
    """Each thing to count of a schema; with a text, it is kept by name."""
    try:
        grammar = engine.compile(group.schema)
    except GuidedError as error:
        yield "refused", str(error)[:160]
        if _right_to_refuse(group):
            yield "refused_right", ""
        return
    walker = Walker(engine)
    for text, valid in group.tests:
        walked = walker.walk(grammar, text, is_json)
        if walked.early or walked.leaks:
            yield "early_stops", text[:120]
        if valid:
            what = "valid_accepted" if walked.accepted else "valid_refused"
        else:
            what = "wrong_accepts" if walked.accepted else "invalid_refused"
        yield what, text[:120] if what in ("valid_refused", "wrong_accepts") else ""


def _right_to_refuse(group: Group) -> bool:
    """Tell whether a schema must be refused: it needs another document, or no instance
    is valid."""
    if needs_remote(group.schema):
        return True
    if any(valid for _, valid in group.tests):
        return False
    try:
        allowed = oracle(group.schema)
        seeds = [read_exactly(text) for text, _ in group.tests]
        found = any(allowed(value) for value in near(group.schema, seeds, count=200))
    except OracleError:
        return False
    return not found


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
    if isinstance(schema, list):
        for one in schema:
            yield from _with_bases(one, base)
    elif isinstance(schema, dict):
        own = schema.get("$id", schema.get("id"))
        if isinstance(own, str) and not own.startswith("#"):
            base = urldefrag(urljoin(base, own))[0]
        yield base, schema
        yield from _with_bases(list(schema.values()), base)
