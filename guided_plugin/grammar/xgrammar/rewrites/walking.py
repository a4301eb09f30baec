"""What all rewrites share: visiting subschemas from the inside out, and leaving alone what is referred to.

Touches schema and spec. A rewrite gets a subschema that it may change or replace.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from guided_plugin.spec import OutputSpec
from guided_plugin.spec.keywords import draft_of
from guided_plugin.spec.schema import walk

__all__ = ["Context", "Rewrite", "SchemaRewrite", "rewritten"]

_NAMES = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")

_Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """What a rewrite may ask about the schema around a subschema."""

    document: Any
    strict: bool
    """Whether objects are closed unless they say otherwise."""
    draft: int
    targets: frozenset[tuple[str, ...]]
    """Every place that a reference points at or through."""
    path: _Path = ()
    """Where the subschema stands."""

    def is_referred(self, keyword: str) -> bool:
        """Whether a reference leads through a keyword of the subschema: then it must stay where it is."""
        return (*map(str, self.path), keyword) in self.targets


Rewrite = Callable[[dict[str, Any], Context], Any]
"""What becomes of a subschema: the same object, maybe changed, or another schema of the same language."""


class SchemaRewrite:
    """A rewrite as a lowering of specs."""

    def __init__(self, rewrite: Rewrite, backends: frozenset[str] = frozenset({"xgrammar"})) -> None:
        self._rewrite = rewrite
        self.backends = backends

    def __call__(self, spec: OutputSpec) -> OutputSpec:
        """The spec with every subschema rewritten."""
        if spec.kind != "json_schema":
            return spec
        document = rewritten(spec.document(), [self._rewrite], strict=spec.strict)
        text = json.dumps(document, separators=(",", ":"))
        return spec if text == spec.text else dataclasses.replace(spec, text=text)


def rewritten(document: Any, rewrites: list[Rewrite], *, strict: bool) -> Any:
    """A schema after some rewrites, one after the other. Changes it in place where it can."""
    for rewrite in rewrites:
        places = list(walk(document))
        if _has_names(places):
            return document
        targets = _targets(node for _, node in places)
        context = Context(document, strict, draft_of(document), targets)
        for path, node in reversed(places):
            if isinstance(node, dict):
                new = rewrite(node, dataclasses.replace(context, path=path))
                if new is not node:
                    document = _with(document, path, new)
    return document


def _has_names(places: list[tuple[_Path, Any]]) -> bool:
    """Whether parts have names of their own: what refers to what is more than pointers then."""
    return any(
        isinstance(node, dict) and any(isinstance(node.get(key), str) for key in _NAMES)
        for path, node in places
        if path
    )


def _targets(nodes: Any) -> frozenset[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for node in nodes:
        reference = node.get("$ref") if isinstance(node, dict) else None
        if isinstance(reference, str):
            fragment = unquote(reference.partition("#")[2])
            parts = tuple(part.replace("~1", "/").replace("~0", "~") for part in fragment.split("/")[1:])
            found.update(parts[:end] for end in range(1, len(parts) + 1))
    return frozenset(found)


def _with(document: Any, path: _Path, new: Any) -> Any:
    if not path:
        return new
    holder = document
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = new
    return document
