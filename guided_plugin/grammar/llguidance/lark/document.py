"""A JSON Schema document as the standard reads it: drafts, references, which keywords count.

Depends on spec. Every subschema that is looked at gets a number, the same for equal ones, so
that demands on values can be compared and remembered by number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urldefrag, urljoin

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.constraints import Literals
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.keywords import ASSERTIONS, KEYWORDS, draft_of, idle_reason, names_draft
from guided_plugin.spec.schema import pointer, pointer_steps, walk

Path = tuple[str | int, ...]

_ROOT = "guided://schema"

EITHER = "either"
"""The keyword of schemas that are not in the document: its value lists conjunctions of numbers."""

# Beyond every double. Bounds are compared digit by digit.
_TOO_LARGE = 10**400


@dataclass(frozen=True, slots=True)
class Numbered:
    """A subschema: what it says, where it stands, and against what its references resolve."""

    schema: Any
    base: str
    path: Path
    keywords: Mapping[str, Any]
    """Those that count; of a schema that is true or false, none."""


class Document:
    """A schema with everything that its subschemas may refer to."""

    def __init__(self, root: Any, *, unenforced: Iterable[str] = ()) -> None:
        self.root = root
        self.draft = draft_of(root)
        self.nodes: list[Numbered] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._by_identity: dict[tuple[int, str], int] = {}
        self._unions: dict[tuple[Literals, ...], int] = {}
        self._kept: list[Any] = []
        self._enforced = ASSERTIONS - frozenset(unenforced)
        self._names_draft = names_draft(root)
        self._resources: dict[str, tuple[Any, Path]] = {_ROOT: (root, ())}
        self._anchors: dict[tuple[str, str], tuple[Any, Path]] = {}
        self._dynamic: dict[str, int] = {}
        self._bases: dict[int, str] = {}
        text = json.dumps(root)
        self._named = 0
        if any(mark in text for mark in ('"$id"', '"id"', 'nchor"')):
            self._find_anchors()
        self.unevaluated = "unevaluated" in text
        """Whether any keyword looks at what others have described."""

    def number(self, schema: Any, base: str = _ROOT, path: Path = ()) -> int:
        """The number of a subschema. A schema that is only a reference has its target's."""
        seen: set[tuple[str, str]] = set()
        while True:
            identity = (id(schema), base)
            if identity in self._by_identity:
                return self._by_identity[identity]
            base = self._base(schema, base)
            key = (base, json.dumps(schema))
            if key in seen:
                raise UnsupportedSpecError(
                    "refers to itself and to nothing else", where=pointer(path), hint="end the recursion"
                )
            seen.add(key)
            keywords = self._keywords(schema, path)
            if keywords.keys() != {"$ref"}:
                break
            schema, base, path = self.resolve(keywords["$ref"], base, (*path, "$ref"))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.nodes)
            self.nodes.append(Numbered(schema, base, path, keywords))
            self._kept.append(schema)
        self._by_identity[id(schema), base] = number
        self._kept.append(schema)
        return number

    def either(self, options: tuple[Literals, ...]) -> int:
        """The number of a schema that is not in the document: all of some conjunction must hold."""
        number = self._unions.get(options)
        if number is None:
            number = self._unions[options] = len(self.nodes)
            self.nodes.append(Numbered(None, _ROOT, (), {EITHER: options}))
        return number

    def resolve(self, reference: Any, base: str, path: Path) -> tuple[Any, str, Path]:
        """What a reference points at, with its own base and path."""
        if not isinstance(reference, str):
            raise UnsupportedSpecError("$ref must be a string", where=pointer(path))
        resource, fragment = urldefrag(urljoin(base, reference) if reference[:1] != "#" else base + reference)
        if (resource, fragment) in self._anchors:
            schema, found = self._anchors[resource, fragment]
            return schema, resource, found
        if resource not in self._resources:
            raise UnsupportedSpecError(
                f"$ref to another document is never fetched: {reference[:200]!r}",
                where=pointer(path),
                hint="copy what it points at into $defs",
            )
        schema, found = self._resources[resource]
        for start, prefix in ((schema, found), (self.root, ())):
            target = self._follow(start, fragment, resource, prefix)
            if target is not None:
                return target
        raise UnsupportedSpecError(f"$ref points at nothing: {reference[:200]!r}", where=pointer(path))

    def dynamic(self, reference: str, base: str, path: Path) -> tuple[Any, str, Path]:
        """What `$dynamicRef` and `$recursiveRef` point at, where that doesn't depend on the way there."""
        anchor = reference.partition("#")[2]
        if self._dynamic.get(anchor, 0) > 1 or (not anchor and len(self._resources) > 1 + self._named):
            raise UnsupportedSpecError(
                f"a dynamic reference with more than one possible target: {reference!r}",
                where=pointer(path),
                hint="use $ref",
            )
        return self.resolve(reference, base, path)

    @property
    def root_base(self) -> str:
        """What the references of the root resolve against."""
        return self._base(self.root, _ROOT)

    # Inside

    def _find_anchors(self) -> None:
        """Every `$id` and anchor, and the base of the document itself."""
        bases: dict[Path, str] = {}
        pending = sorted(walk(self.root), key=lambda step: len(step[0]))
        for path, node in pending:
            above = (path[:end] for end in range(len(path) - 1, -1, -1))
            parent = next((bases[prefix] for prefix in above if prefix in bases), _ROOT)
            if not isinstance(node, Mapping):
                continue
            base = self._base(node, parent)
            bases[path] = self._bases[id(node)] = base
            if base != parent:
                self._resources.setdefault(base, (node, path))
                if not path:
                    self._named = 1
            identity = self._identity(node)
            if identity is not None and identity.startswith("#") and len(identity) > 1:
                self._anchors.setdefault((parent, identity[1:]), (node, path))
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(keyword), str):
                    self._anchors.setdefault((base, node[keyword]), (node, path))
            if isinstance(node.get("$dynamicAnchor"), str):
                name = node["$dynamicAnchor"]
                self._dynamic[name] = self._dynamic.get(name, 0) + 1

    def _identity(self, node: Mapping[str, Any]) -> str | None:
        if self.draft <= 7 and "$ref" in node and node is not self.root:
            return None
        identity = node.get("$id", node.get("id") if self.draft <= 4 else None)
        return identity if isinstance(identity, str) else None

    def _base(self, schema: Any, base: str) -> str:
        if id(schema) in self._bases:
            return self._bases[id(schema)]
        identity = self._identity(schema) if isinstance(schema, Mapping) else None
        if identity is None or identity.startswith("#"):
            return base
        return urldefrag(urljoin(base, identity))[0]

    def _follow(self, start: Any, fragment: str, base: str, path: Path) -> tuple[Any, str, Path] | None:
        node = start
        try:
            for part, node in pointer_steps(start, fragment):
                path, base = (*path, part), self._base(node, base)
        except KeyError:
            return None
        return (node, base, path) if isinstance(node, Mapping | bool) else None

    def _keywords(self, schema: Any, path: Path) -> Mapping[str, Any]:
        """The keywords of a schema that decide what is valid: none that its draft or type leaves out."""
        if isinstance(schema, bool):
            return {}
        if not isinstance(schema, Mapping):
            raise UnsupportedSpecError(f"is not a schema: {schema!r}", where=pointer(path))
        enforced = {key: schema[key] for key in schema if key in self._enforced}
        if enforced.get("format", "") not in FORMATS:
            enforced.pop("format", None)
        kept = {}
        for key, value in enforced.items():
            # An `if` alone decides nothing, but what it describes is evaluated.
            lonely = key == "if" and self.unevaluated and self.draft >= 2019
            if idle_reason(enforced, key, self.draft, named=self._names_draft) and not lonely:
                continue
            if isinstance(value, int | float) and not abs(value) < _TOO_LARGE:
                raise UnsupportedSpecError("a number too large to compare", where=pointer((*path, key)))
            if isinstance(value, float):
                value = int(value) if KEYWORDS[key].value == "count" else value
            kept[key] = value
        return kept
