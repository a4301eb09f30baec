"""What becomes of each keyword of a JSON Schema: enforced, an annotation only, or refused.

Depends on the compiler and on spec. A schema that is refused is compiled again without the refused keyword,
so that one report names all refused keywords and not only the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GrammarError, GuidedError
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.keywords import ASSERTIONS
from guided_plugin.spec.schema import pointer, schemas_of_tag, walk
from guided_plugin.spec.uses import KeywordUse, Path, Status, uses_of

_ORDER: tuple[Status, ...] = ("refused", "undecided", "enforced", "annotation", "structure")

_MOST_REFUSALS = 12
"""Each costs a compile."""


@dataclass(frozen=True, slots=True)
class CoverageGroup:
    """All uses of a keyword with the same status."""

    keyword: str
    status: Status
    count: int
    first: KeywordUse


@dataclass(frozen=True, slots=True)
class Coverage:
    """Every keyword of a schema, and the backend that enforces them."""

    keywords: tuple[KeywordUse, ...]
    backend: str | None
    """It enforces the schema, or the rest without the refused keywords; None if no backend does."""
    reason: str
    """Why this backend."""
    refusals: tuple[str, ...] = ()
    """Why the whole schema is refused."""

    def groups(self) -> list[CoverageGroup]:
        """By status and keyword: refused ones first, else in the order of the schema."""
        found: dict[tuple[Status, str], list[KeywordUse]] = {}
        for use in self.keywords:
            found.setdefault((use.status, use.keyword), []).append(use)
        groups = [CoverageGroup(key[1], key[0], len(uses), uses[0]) for key, uses in found.items()]
        return sorted(groups, key=lambda group: _ORDER.index(group.status))


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
    for use in uses_of(document, compiler.config.unenforced_keywords):
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


def tag_coverage(spec: OutputSpec, compiler: GrammarCompiler) -> Coverage:
    """What becomes of each keyword of the schemas inside a `structural_tag` spec."""
    backend, reason = None, ""
    uses: list[KeywordUse] = []
    refusals: list[str] = []
    place_refused, why = "", ""
    try:
        grammar = compiler.compile(spec)
        backend, reason = grammar.backend, grammar.reason
    except GuidedError as error:
        # Each schema tells more of why, where it would be refused alone.
        place_refused, why = error.where, error.what
        refusals.append(str(error))
    for place, schema in schemas_of_tag(spec.document()):
        if not place.endswith(("/json_schema", "/schema")):
            continue
        options: dict[str, Any] = {"strict": spec.strict, "whitespace": spec.whitespace}
        try:
            alone = OutputSpec.json_schema(schema, backend=backend or spec.backend, **options)
        except GuidedError:
            continue  # Malformed: the tag's own error says so.
        found = coverage(alone, compiler)
        for use in found.keywords:
            where = place + use.where.removeprefix("#")
            refused = where == place_refused
            uses.append(
                replace(use, where=where, status="refused", note=why)
                if refused
                else replace(use, where=where)
            )
        refusals += [place + (each[1:] if each[:1] == "#" else f": {each}") for each in found.refusals]
    return Coverage(tuple(uses), backend, reason, tuple(dict.fromkeys(refusals)))


def _refused_keyword(document: Any, error: GuidedError) -> Path | None:
    """The path of the keyword that an error names, if it does."""
    places = [error.where]
    holder = error.where.rpartition("/")[0]
    if holder.endswith("/patternProperties"):
        # The error is about one pattern of several.
        places.append(holder)
    for path, node in walk(document):
        for keyword in node if isinstance(node, Mapping) else ():
            if keyword in ASSERTIONS and pointer((*path, keyword)) in places:
                return (*path, keyword)
    return None


def _without(spec: OutputSpec, path: Path) -> OutputSpec | None:
    """The spec without one keyword; None if the rest is not a valid schema."""
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
