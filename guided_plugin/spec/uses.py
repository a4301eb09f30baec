"""The keywords of a schema, one use at a time: which count, by the standard, and which
an operator left out.

Depends on keywords and formats. Whether a backend enforces one that counts is
for backends to say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from guided_plugin.keywords import KEYWORDS, draft_of, idle_reason, subschemas
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.references import Path, pointer

Status = Literal["refused", "undecided", "enforced", "annotation", "structure"]

LEFT_OUT = "left unenforced by the configuration"


@dataclass(frozen=True, slots=True)
class KeywordUse:
    """One keyword at one place."""

    keyword: str
    where: str
    """Its JSON pointer."""
    status: Status
    note: str = ""
    """The reason, where the status alone isn't one."""
    hint: str = ""
    """The way to fix it, where it is refused."""


def uses_of(document: Any, unenforced: Collection[str]) -> list[KeywordUse]:
    """Every keyword in the document's order, by the standard and the configuration."""
    draft = draft_of(document)
    found: list[KeywordUse] = []
    # path, schema, and why nothing inside it counts, if that is so
    pending: list[tuple[Path, Any, str]] = [((), document, "")]
    while pending:
        path, node, unused = pending.pop()
        if not isinstance(node, Mapping):
            continue
        annotations = set()
        for keyword in node:
            status, note = _status(node, keyword, draft, unenforced)
            if unused and status == "enforced":
                status = "annotation"
                note = unused
            if status == "annotation":
                annotations.add(keyword)
            found.append(KeywordUse(keyword, pointer((*path, keyword)), status, note))
        children = []
        for step, child in subschemas(node):
            keyword = str(step[0])
            why = (
                f"inside `{keyword}`, which has no effect"
                if keyword in annotations
                else unused
            )
            # Schemas that are only named here count where a reference uses them.
            children.append(
                (
                    (*path, *step),
                    child,
                    "" if KEYWORDS[keyword].role == "structure" else why,
                )
            )
        pending.extend(reversed(children))
    return found


def _status(
    node: Mapping[str, Any], keyword: str, draft: int, unenforced: Collection[str]
) -> tuple[Status, str]:
    if keyword not in KEYWORDS:
        return "annotation", "not a keyword of the standard"
    role = KEYWORDS[keyword].role
    if role != "assertion":
        return role, ""
    note = idle_reason(node, keyword, draft)
    if not note and keyword == "format" and node[keyword] not in FORMATS:
        note = f"the format {node[keyword]!r} is not enforced"
    if not note and keyword in unenforced:
        note = LEFT_OUT
    return ("annotation", note) if note else ("enforced", "")
