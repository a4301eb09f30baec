"""What references in a JSON Schema point at, as the standard resolves them: `$id`s, anchors, dynamic anchors.

Depends on keywords and schema trees. Only the document itself is looked at: nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urldefrag, urljoin

from guided_plugin.keywords import Draft, subschemas

Path = tuple[str | int, ...]

_ROOT = "guided://schema"


class LostReferenceError(Exception):
    """A reference to nothing. `where`: whether it is the document or the place that isn't there."""

    def __init__(self, where: Literal["document", "place"]) -> None:
        super().__init__(where)
        self.where = where


@dataclass(frozen=True, slots=True)
class Scope:
    """What references in a place resolve against."""

    base: str = _ROOT
    """The address of the resource."""
    dynamic: tuple[tuple[str, str], ...] = ()
    """For each dynamic anchor, the outermost resource on the way here that has it."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a reference points at."""

    schema: Any
    scope: Scope
    path: Path


class References:
    """The resources of one document."""

    def __init__(self, root: Any, draft: Draft, *, plain: bool) -> None:
        """`plain`: the document is one resource, without anchors."""
        self.root = root
        self._draft = draft.number
        self._old_ids = draft.number <= 4 or not draft.named
        self._resources: dict[str, tuple[Any, Path]] = {_ROOT: (root, ())}
        self._anchors: dict[tuple[str, str], tuple[Any, Path]] = {}
        self._dynamic: dict[str, tuple[str, ...]] = {}
        self._bases: dict[int, str] = {}
        self._targets: dict[tuple[str, Scope], Target] = {}
        """What was found before: many references name one definition."""
        if not plain:
            self._find()
        self.root_scope = self._entered(Scope(), _ROOT)

    def enter(self, schema: Any, scope: Scope) -> Scope:
        """The scope inside a schema: its own where it has an `$id`."""
        if not self._bases:
            return scope
        return self._entered(scope, self._base(schema, scope.base))

    def bases(self, schema: Any) -> Scope:
        """The scope inside a schema of the document, without the way there."""
        return Scope(self._bases.get(id(schema), _ROOT))

    def resolve(self, reference: str, scope: Scope) -> Target:
        """What `$ref` points at. Raises LostReferenceError."""
        found = self._targets.get((reference, scope))
        if found is None:
            found = self._targets[reference, scope] = self._target(reference, scope)
        return found

    def _target(self, reference: str, scope: Scope) -> Target:
        address, fragment = _resolved(scope.base, reference)
        if (address, fragment) in self._anchors:
            schema, path = self._anchors[address, fragment]
            return Target(schema, self._entered(scope, address), path)
        if address not in self._resources:
            raise LostReferenceError("document")
        schema, path = self._resources[address]
        for start, base, prefix in ((schema, address, path), (self.root, _ROOT, ())):
            found = self._follow(start, fragment, self._base(start, base), prefix)
            if found is not None:
                target, base, place = found
                return Target(target, self._entered(scope, base), place)
        raise LostReferenceError("place")

    def dynamic(self, reference: str, scope: Scope) -> Target:
        """What `$dynamicRef` and `$recursiveRef` point at, which depends on the way here."""
        target = self.resolve(reference, scope)
        address, anchor = _resolved(scope.base, reference)
        outermost = dict(scope.dynamic).get(anchor)
        if outermost is None or anchor not in self._dynamic.get(address, ()):
            return target
        schema, path = self._anchors[outermost, anchor] if anchor else self._resources[outermost]
        return Target(schema, self._entered(scope, outermost), path)

    def _entered(self, scope: Scope, base: str) -> Scope:
        if base == scope.base and base not in self._dynamic:
            return scope
        found = dict.fromkeys(self._dynamic.get(base, ()), base) | dict(scope.dynamic)
        return Scope(base, tuple(sorted(found.items())))

    def _find(self) -> None:
        """Every `$id` and anchor, the outer ones first."""
        pending: list[tuple[Path, Any, str]] = [((), self.root, _ROOT)]
        for path, node, parent in pending:
            if not isinstance(node, Mapping):
                continue
            base = self._bases[id(node)] = self._base(node, parent)
            pending.extend(((*path, *step), child, base) for step, child in subschemas(node))
            if base != parent:
                self._resources.setdefault(base, (node, path))
            identity = self._identity(node)
            if identity is not None and identity.startswith("#") and len(identity) > 1:
                self._anchors.setdefault((parent, identity[1:]), (node, path))
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(keyword), str):
                    self._anchors.setdefault((base, node[keyword]), (node, path))
            if isinstance(node.get("$dynamicAnchor"), str):
                self._dynamic[base] = (*self._dynamic.get(base, ()), node["$dynamicAnchor"])
            if node.get("$recursiveAnchor") is True and (base != parent or not path):
                self._dynamic[base] = (*self._dynamic.get(base, ()), "")
        root = self._bases.get(id(self.root), _ROOT)
        if root != _ROOT:
            self._dynamic[_ROOT] = self._dynamic.get(root, ())
            for (address, anchor), found in list(self._anchors.items()):
                if address == root:
                    self._anchors.setdefault((_ROOT, anchor), found)

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

    def _follow(self, start: Any, fragment: str, base: str, path: Path) -> tuple[Any, str, Path] | None:
        node = start
        try:
            for part, node in pointer_steps(start, fragment):
                path, base = (*path, part), self._base(node, base)
        except KeyError:
            return None
        return (node, base, path) if isinstance(node, Mapping | bool) else None


def _resolved(base: str, reference: str) -> tuple[str, str]:
    """The address and the fragment that a reference means."""
    try:
        whole = base + reference if reference[:1] in ("#", "") else urljoin(base, reference)
        address, fragment = urldefrag(whole)
    except ValueError:  # it is no address, and stands for itself
        address, _, fragment = reference.partition("#")
    return address, fragment


def pointer_steps(document: Any, fragment: str) -> Iterator[tuple[str | int, Any]]:
    """Each step of a JSON pointer: its key or index, and what lies there. Raises KeyError at nothing."""
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
