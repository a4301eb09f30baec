"""What becomes of each keyword of a JSON Schema: enforced, a mere annotation, or refused.

Depends on the compiler and on spec. A schema that is refused is compiled again
without what was refused, so that one report names all of it and not the first keyword alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GrammarError, GuidedError
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.keywords import (
    ANNOTATIONS,
    ASSERTIONS,
    STRUCTURE,
    draft_of,
    idle_reason,
    names_draft,
)
from guided_plugin.spec.schema import pointer, subschemas, walk

__all__ = ["Coverage", "CoverageGroup", "KeywordUse", "Status", "coverage"]

Status = Literal["refused", "undecided", "enforced", "annotation", "structure"]
_ORDER: tuple[Status, ...] = ("refused", "undecided", "enforced", "annotation", "structure")

_Path = tuple[str | int, ...]

# One compile each: what a report may cost where nearly every keyword is refused.
_MOST_REFUSALS = 12


@dataclass(frozen=True, slots=True)
class KeywordUse:
    """One keyword at one place."""

    keyword: str
    where: str
    """Its JSON pointer."""
    status: Status
    note: str = ""
    """Why, where the status alone doesn't say it."""


@dataclass(frozen=True, slots=True)
class CoverageGroup:
    """All uses of a keyword with the same fate."""

    keyword: str
    status: Status
    count: int
    first: KeywordUse


@dataclass(frozen=True, slots=True)
class Coverage:
    """Every keyword of a schema, and the backend that takes it."""

    keywords: tuple[KeywordUse, ...]
    backend: str | None
    """What enforces it, or what is left of it without the refused keywords; None where no backend does."""
    reason: str
    """Why this backend."""
    refusals: tuple[str, ...] = ()
    """Why the schema as it stands is refused."""

    def groups(self) -> list[CoverageGroup]:
        """By fate and keyword: what is refused first, else in the order of the schema."""
        found: dict[tuple[Status, str], list[KeywordUse]] = {}
        for use in self.keywords:
            found.setdefault((use.status, use.keyword), []).append(use)
        groups = [CoverageGroup(key[1], key[0], len(uses), uses[0]) for key, uses in found.items()]
        return sorted(groups, key=lambda group: _ORDER.index(group.status))

    def to_dict(self) -> dict[str, Any]:
        """With stable keys, for `--json`."""
        return {
            "backend": self.backend,
            "reason": self.reason,
            "refusals": list(self.refusals),
            "keywords": [
                {"keyword": use.keyword, "where": use.where, "status": use.status, "note": use.note}
                for use in self.keywords
            ],
        }


def coverage(spec: OutputSpec, compiler: GrammarCompiler) -> Coverage:
    """What becomes of each keyword of a `json_schema` spec."""
    document = spec.document()
    refused: dict[str, str] = {}
    refusals: list[str] = []
    backend, reason = None, ""
    remaining: OutputSpec | None = spec
    while remaining is not None and len(refusals) < _MOST_REFUSALS:
        try:
            grammar = compiler.compile(remaining)
        except GrammarError as error:
            refusals.append(str(error))
            place = _refused_keyword(remaining.document(), error)
            if place is not None:
                refused[pointer(place)] = error.what
            remaining = _without(remaining, place) if place is not None else None
        else:
            backend, reason = grammar.backend, grammar.reason
            break
    uses = []
    for use in _uses(document, compiler.config.unenforced_keywords):
        if use.where in refused:
            use = replace(use, status="refused", note=refused[use.where])
        elif use.status == "enforced" and backend is None:
            use = replace(
                use, status="undecided", note="the schema is refused for a reason that names no keyword"
            )
        elif use.status == "enforced":
            use = replace(use, note=f"by {backend}")
        uses.append(use)
    return Coverage(tuple(uses), backend, reason, tuple(dict.fromkeys(refusals)))


def _refused_keyword(document: Any, error: GuidedError) -> _Path | None:
    """The keyword that an error is about, if it says where it stands."""
    places = [error.where]
    holder = error.where.rpartition("/")[0]
    if holder.endswith("/patternProperties"):
        # One pattern of many.
        places.append(holder)
    for path, node in walk(document):
        for keyword in node if isinstance(node, Mapping) else ():
            if keyword in ASSERTIONS and pointer((*path, keyword)) in places:
                return (*path, keyword)
    return None


def _without(spec: OutputSpec, path: _Path) -> OutputSpec | None:
    """The spec without one keyword; None where that leaves no schema."""
    document = spec.document()
    node = document
    for part in path[:-1]:
        node = node[part]
    del node[path[-1]]
    try:
        return OutputSpec.json_schema(
            document, strict=spec.strict, whitespace=spec.whitespace, backend=spec.backend
        )
    except GuidedError:
        return None


def _uses(document: Any, unenforced: Iterable[str]) -> list[KeywordUse]:
    """Every keyword in a document's order, as the standard and the configuration have it."""
    draft, named = draft_of(document), names_draft(document)
    left_out = frozenset(unenforced)
    found: list[KeywordUse] = []
    # With why nothing inside counts, if so.
    pending: list[tuple[_Path, Any, str]] = [((), document, "")]
    while pending:
        path, node, dead = pending.pop()
        if not isinstance(node, Mapping):
            continue
        idle: dict[str, str] = {}
        for keyword in node:
            status, note = _status(node, keyword, draft, named, left_out)
            if dead and status == "enforced":
                status, note = "annotation", dead
            if status == "annotation":
                idle[keyword] = note or dead
            found.append(KeywordUse(keyword, pointer((*path, keyword)), status, note))
        children = []
        for step, child in subschemas(node):
            keyword = str(step[0])
            why = f"inside `{keyword}`, which doesn't count" if keyword in idle else dead
            # What only names schemas keeps them alive for those who refer to them.
            children.append(((*path, *step), child, "" if keyword in STRUCTURE else why))
        pending.extend(reversed(children))
    return found


def _status(
    node: Mapping[str, Any], keyword: str, draft: int, named: bool, unenforced: frozenset[str]
) -> tuple[Status, str]:
    if keyword in STRUCTURE:
        return "structure", ""
    if keyword in ANNOTATIONS:
        return "annotation", ""
    note = _idle(node, keyword, draft, named)
    if note:
        return "annotation", note
    if keyword in unenforced:
        return "annotation", "left unenforced by the configuration"
    return "enforced", ""


def _idle(node: Mapping[str, Any], keyword: str, draft: int, named: bool) -> str:
    """Why a keyword decides nothing here, or nothing."""
    if keyword not in ASSERTIONS:
        return "no keyword of the standard"
    why = idle_reason(node, keyword, draft, named=named)
    if keyword == "format" and node[keyword] not in FORMATS:
        return why or f"the format {node[keyword]!r} is none that is enforced"
    return why
