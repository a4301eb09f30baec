"""Applies rewrites to every subschema of a document. Depends on spec."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from guided_plugin.spec.keywords import draft_of
from guided_plugin.spec.schema import walk

_NAMES = ("$id", "id", "$anchor", "$dynamicAnchor")


@dataclass(frozen=True, slots=True)
class Context:
    """The document around a subschema."""

    document: Any
    strict: bool
    """Whether objects are closed unless they say otherwise."""
    draft: int
    targets: frozenset[tuple[str, ...]]
    """Every place that a reference points at or through."""
    path: tuple[str | int, ...] = ()
    """Where the subschema stands."""

    def is_target(self, keyword: str) -> bool:
        """Whether a reference leads through a keyword of the subschema: then it must stay where it is."""
        return (*map(str, self.path), keyword) in self.targets


Rewrite = Callable[[dict[str, Any], Context], Any]
"""Returns a subschema with the same valid values: the object it was given, maybe changed, or another one."""


def rewritten(document: Any, rewrites: Iterable[Rewrite], *, strict: bool) -> Any:
    """A copy of a schema after some rewrites, one after the other, each from the inside out.

    A schema with named parts stays as it is, because references by name would have to be followed.
    """
    for rewrite in rewrites:
        # Subschemas are replaced in place, and the last rewrite may have put one of them in two places.
        document = json.loads(json.dumps(document))
        nodes = [(path, node) for path, node in walk(document) if isinstance(node, dict)]
        if any(path and any(isinstance(node.get(name), str) for name in _NAMES) for path, node in nodes):
            return document
        targets = frozenset(target for _, node in nodes for target in _targets(node.get("$ref")))
        context = Context(document, strict, draft_of(document), targets)
        for path, node in reversed(nodes):
            new = rewrite(node, dataclasses.replace(context, path=path))
            if new is node:
                continue
            if not path:
                document = new
                continue
            holder = document
            for part in path[:-1]:
                holder = holder[part]
            holder[path[-1]] = new
    return document


def _targets(reference: Any) -> list[tuple[str, ...]]:
    """The place that a reference points at, and every place on the way there."""
    if not isinstance(reference, str):
        return []
    fragment = unquote(reference.partition("#")[2])
    parts = tuple(part.replace("~1", "/").replace("~0", "~") for part in fragment.split("/")[1:])
    return [parts[:end] for end in range(1, len(parts) + 1)]
