"""What references in a JSON Schema point at, as the standard resolves them: `$id`s and
anchors.

Depends on keywords and schema trees. Only the document itself is looked at: nothing is
ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from guided_plugin.keywords import Draft, subschemas

Path = tuple[str | int, ...]

ROOT = "guided://schema"
"""The address of a document that has none."""


class LostReferenceError(Exception):
    """A reference to nothing."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Target:
    """What a reference points at."""

    schema: Any
    base: str
    """The address of its resource."""
    path: Path


class References:
    """The resources of one document."""

    def __init__(self, root: Any, draft: Draft, *, plain: bool) -> None:
        """`plain`: the document is one resource, without anchors."""
        self.root = root
        self._draft = draft.number
        self._old_ids = draft.number <= 4 or not draft.named
        self._resources: dict[str, tuple[Any, Path]] = {ROOT: (root, ())}
        self._anchors: dict[tuple[str, str], tuple[Any, Path]] = {}
        self._bases: dict[int, str] = {}
        self._targets: dict[tuple[str, str], Target] = {}
        """What was found before: many references name one definition."""
        if not plain:
            self._find()

    def enter(self, schema: Any, base: str) -> str:
        """The address against which references inside a schema resolve: its own where
        it has an `$id`."""
        return self._base(schema, base) if self._bases else base

    def base_of(self, schema: Any) -> str:
        """The same for a schema of the document, without the way there."""
        return self._bases.get(id(schema), ROOT)

    def resolve(self, reference: str, base: str) -> Target:
        """What `$ref` points at. Raises LostReferenceError."""
        found = self._targets.get((reference, base))
        if found is None:
            found = self._targets[reference, base] = self._target(reference, base)
        return found

    def _target(self, reference: str, base: str) -> Target:
        address, fragment = _resolved(base, reference)
        if (address, fragment) in self._anchors:
            schema, path = self._anchors[address, fragment]
            return Target(schema, address, path)
        if address not in self._resources:
            raise LostReferenceError(
                "lies outside this schema, and references are never fetched",
                "put that schema under $defs and refer to it as #/$defs/Name",
            )
        schema, path = self._resources[address]
        for start, outer, prefix in ((schema, address, path), (self.root, ROOT, ())):
            found = self._follow(start, fragment, self._base(start, outer), prefix)
            if found is not None:
                return Target(*found)
        raise LostReferenceError(
            "points at nothing in this schema",
            "references start at the root, for example #/$defs/Name",
        )

    def _find(self) -> None:
        """Every `$id` and anchor, the outer ones first."""
        pending: list[tuple[Path, Any, str]] = [((), self.root, ROOT)]
        for path, node, parent in pending:
            if not isinstance(node, Mapping):
                continue
            base = self._bases[id(node)] = self._base(node, parent)
            pending.extend(
                ((*path, *step), child, base) for step, child in subschemas(node)
            )
            if base != parent:
                self._resources.setdefault(base, (node, path))
            identity = self._identity(node)
            if identity is not None and identity.startswith("#") and len(identity) > 1:
                self._anchors.setdefault((parent, identity[1:]), (node, path))
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(keyword), str):
                    self._anchors.setdefault((base, node[keyword]), (node, path))
        root = self._bases.get(id(self.root), ROOT)
        if root != ROOT:
            for (address, anchor), found in list(self._anchors.items()):
                if address == root:
                    self._anchors.setdefault((ROOT, anchor), found)

    def _identity(self, node: Mapping[str, Any]) -> str | None:
        if self._draft <= 7 and "$ref" in node and node is not self.root:
            return None
        identity = node.get("$id", node.get("id") if self._old_ids else None)
        return identity if isinstance(identity, str) else None

    def _base(self, schema: Any, base: str) -> str:
        if id(schema) in self._bases:
            return self._bases[id(schema)]
        identity = self._identity(schema) if isinstance(schema, Mapping) else None
        if identity is None or identity.startswith("#"):
            return base
        return _resolved(base, identity)[0]

    def _follow(
        self, start: Any, fragment: str, base: str, path: Path
    ) -> tuple[Any, str, Path] | None:
        node = start
        try:
            for part, node in pointer_steps(start, fragment):
                path = (*path, part)
                base = self._base(node, base)
        except KeyError:
            return None
        return (node, base, path) if isinstance(node, Mapping | bool) else None


def _resolved(base: str, reference: str) -> tuple[str, str]:
    """The address and the fragment that a reference means."""
    try:
        whole = (
            base + reference if reference[:1] in ("#", "") else urljoin(base, reference)
        )
        address, fragment = urldefrag(whole)
    except ValueError:  # it is no address, and stands for itself
        address, _, fragment = reference.partition("#")
    return address, fragment


def pointer_steps(document: Any, fragment: str) -> Iterator[tuple[str | int, Any]]:
    """Each step of a JSON pointer: its key or index, and what lies there. Raises
    KeyError at nothing."""
    first, *parts = unquote(fragment).split("/")
    if first:
        raise KeyError(f"#{fragment}")
    node = document
    for raw in parts:
        part: str | int = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and raw.isdecimal():
            part = int(raw)
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            raise KeyError(f"#{fragment}") from None
        yield part, node
