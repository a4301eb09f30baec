"""All that is refused of a schema, not only the first thing. Depends on keywords and
specs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from guided_plugin.errors import GuidedError
from guided_plugin.keywords import ASSERTIONS
from guided_plugin.spec.references import Path, pointer
from guided_plugin.spec.schema import walk

_MOST = 12
"""Refused keywords of one schema that are looked for: each may cost a compile."""

R = TypeVar("R")


def refusals(
    schema: Any, attempt: Callable[[Any], R]
) -> tuple[R | None, list[GuidedError]]:
    """Return the result of an attempt with a schema, and the errors that it raises
    before: for each the keyword that it names is taken out, and the rest is tried. None
    where an error names no keyword."""
    found: list[GuidedError] = []
    rest = schema
    while len(found) < _MOST:
        try:
            return attempt(rest), found
        except GuidedError as error:
            found.append(error)
            path = refused_keyword(rest, error)
        if path is None:
            break
        if len(found) == 1:
            rest = json.loads(json.dumps(schema))
        node = rest
        for step in path[:-1]:
            node = node[step]
        del node[path[-1]]
    return None, found


def refused_keyword(document: Any, error: GuidedError) -> Path | None:
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
