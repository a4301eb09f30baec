"""The parts that every refusal of a spec names: a place in what the client wrote, and,
inside tools, which tool it is.

Depends on errors, references and specs. Backends know a schema or a grammar, not always
what is around it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from guided_plugin.errors import (
    CompileLimitError,
    GuidedError,
    SpecError,
    UnsatisfiableSpecError,
    UnsupportedSpecError,
)
from guided_plugin.spec.references import pointer_steps

_TREES = ("json_schema", "json_object", "structural_tag")

_REMEDIES: dict[type[GuidedError], str] = {
    UnsatisfiableSpecError: "look for parts that contradict each other, or for a recursion without an end",
    UnsupportedSpecError: "leave it out, or write it in another way: docs/specs.md lists what is enforced",
    CompileLimitError: "make the spec smaller",
    SpecError: "correct it: docs/specs.md lists the forms of specs",
}

_NAMES = (
    re.compile(r'"name"\s*:\s*"([^"]+)"'),
    re.compile(r"""name\s*=\s*["']?([\w.-]+)"""),
    re.compile(r"functions\.([\w-]+)"),
    re.compile(r"(?:function|tool|invoke|call)\s*[=:]\s*([\w.-]*[A-Za-z][\w.-]*)"),
)
"""The ways a tag's first text names the tool that it calls."""


def told(error: GuidedError, kind: str, document: Any) -> GuidedError:
    """An error about a spec of some kind with a place in its document, a remedy, and
    the tool it is about."""
    where = error.where
    what = error.what
    hint = error.hint
    if (
        kind in _TREES
        and "#" not in where
        and not where.startswith(("backend", "plugin"))
    ):
        where = "#"
    if not hint and kind in _TREES:
        kinds = (remedy for remedy in _REMEDIES if isinstance(error, remedy))
        hint = _REMEDIES[next(kinds, SpecError)]
    tool = tool_at(document, where) if where.startswith("#/") else None
    if tool is not None and tool not in what:
        what = f"{what}, in {tool}"
    if (where, what, hint) == (error.where, error.what, error.hint):
        return error
    return type(error)(what, where=where, hint=hint, request_id=error.request_id)


def tool_at(document: Any, where: str) -> str | None:
    """The tool in whose part of a spec's document a place is; None outside of tools."""
    found = _named(document)
    # the place may be of a schema as rewritten
    with suppress(KeyError, IndexError, TypeError, ValueError):
        for _, node in pointer_steps(document, where[1:]):
            found = _named(node) or found
    return f"tool {found[:80]!r}" if found else None


def _named(node: Any) -> str | None:
    """The tool that a tag calls, or whose call a schema describes: an object with its
    name and arguments."""
    match node:
        case {"begin": str(begin)} if begin.strip():
            return next(
                (found[1] for pattern in _NAMES if (found := pattern.search(begin))),
                None,
            )
        case {
            "properties": {
                "name": {"enum": [str(name)]} | {"const": str(name)}
            } as properties
        }:
            return name if {"parameters", "arguments"} & properties.keys() else None
    return None
