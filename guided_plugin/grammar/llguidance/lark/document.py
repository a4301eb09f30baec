"""A JSON Schema document as the standard reads it: drafts, references, which keywords
count.

Depends on spec. Every subschema that is looked at gets a number, the same for equal
ones, so that demands on values can be compared and remembered by number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.lark.constraints import Literals
from guided_plugin.keywords import ASSERTIONS, KEYWORDS, REFUSED, draft_of, idle_reason
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.references import ROOT, LostReferenceError, Path, Target
from guided_plugin.spec.schema import pointer, references_of

EITHER = "either"
"""The keyword of schemas that are not in the document: its value lists conjunctions of
numbers."""

# Beyond every double. Bounds are compared digit by digit.
_TOO_LARGE = 10**400


@dataclass(frozen=True, slots=True)
class Numbered:
    """A subschema: what it says, where it stands, and against what its references
    resolve."""

    schema: Any
    base: str
    path: Path
    keywords: Mapping[str, Any]
    """Those that count; of a schema that is true or false, none."""


class Document:
    """A schema with everything that its subschemas may refer to."""

    def __init__(self, root: Any, *, unenforced: Iterable[str] = ()) -> None:
        self.root = root
        self._written = draft_of(root)
        self.draft = self._written.number
        self.nodes: list[Numbered] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._by_identity: dict[tuple[int, str], int] = {}
        self._unions: dict[tuple[Literals, ...], int] = {}
        self._kept: list[Any] = []
        self._enforced = ASSERTIONS - frozenset(unenforced)
        self._references = references_of(root)
        text = json.dumps(root)
        self.formats = '"format"' in text
        """Whether any format may count, of which there are several readings."""

    def number(self, schema: Any, base: str = ROOT, path: Path = ()) -> int:
        """The number of a subschema. A schema that is only a reference has its
        target's."""
        seen: set[tuple[str, str]] = set()
        while True:
            identity = (id(schema), base)
            if identity in self._by_identity:
                return self._by_identity[identity]
            base = self._references.enter(schema, base)
            keywords = self._keywords(schema, path)
            # Schemas that differ only in what decides nothing, as descriptions, are
            # equal.
            key = (base, repr(schema if isinstance(schema, bool) else keywords))
            if key in seen:
                raise UnsupportedSpecError(
                    "refers to itself and to nothing else",
                    where=pointer((*path, "$ref")),
                    hint="end the recursion",
                )
            seen.add(key)
            if keywords.keys() != {"$ref"}:
                break
            target = self.resolve(keywords["$ref"], base, (*path, "$ref"))
            schema = target.schema
            base = target.base
            path = target.path
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.nodes)
            self.nodes.append(Numbered(schema, base, path, keywords))
        self._by_identity[id(schema), base] = number
        self._kept.append(schema)
        return number

    def either(self, options: tuple[Literals, ...]) -> int:
        """The number of a schema that is not in the document: all of some conjunction
        must hold."""
        number = self._unions.get(options)
        if number is None:
            number = self._unions[options] = len(self.nodes)
            self.nodes.append(Numbered(None, ROOT, (), {EITHER: options}))
        return number

    def resolve(self, reference: Any, base: str, path: Path) -> Target:
        """What a reference points at. `path`: where it stands."""
        try:
            return self._references.resolve(reference, base)
        except LostReferenceError as error:
            what = f"to another document is never fetched: {shown(reference)}"
            hint = "copy it into $defs"
            if error.where == "place":
                what, hint = (
                    f"points at nothing: {shown(reference)}",
                    "write it as #/$defs/Name",
                )
            raise UnsupportedSpecError(
                f"$ref {what}", where=pointer(path), hint=hint
            ) from None

    def place(
        self, *keywords: str, weigh: Callable[[Any], int] = lambda value: 0
    ) -> str:
        """The place of the value of these keywords that weighs most, the first of
        equals; "#" for none."""
        used = [(n, key) for n in self.nodes for key in n.keywords if key in keywords]
        found = max(used, key=lambda use: weigh(use[0].keywords[use[1]]), default=None)
        return pointer((*found[0].path, found[1])) if found else "#"

    @property
    def root_base(self) -> str:
        """What the references of the root resolve against."""
        return self._references.enter(self.root, ROOT)

    # Inside

    def _keywords(self, schema: Any, path: Path) -> Mapping[str, Any]:
        """The keywords of a schema that decide what is valid: none that its draft or
        type leaves out."""
        if isinstance(schema, bool):
            return {}
        if not isinstance(schema, Mapping):
            raise UnsupportedSpecError(
                f"is not a schema: {shown(schema)}",
                where=pointer(path),
                hint="a schema is an object or true/false",
            )
        enforced = {key: schema[key] for key in schema if key in self._enforced}
        if enforced.get("format", "") not in FORMATS:
            enforced.pop("format", None)
        kept = {}
        for key, value in enforced.items():
            if idle_reason(enforced, key, self._written):
                continue
            if key in REFUSED:
                raise UnsupportedSpecError(
                    f"{key} is not supported",
                    where=pointer((*path, key)),
                    hint=REFUSED[key],
                )
            if isinstance(value, int | float) and not abs(value) < _TOO_LARGE:
                raise UnsupportedSpecError(
                    f"{key} is a number too large to compare",
                    where=pointer((*path, key)),
                    hint="leave it out, or take a smaller one",
                )
            if isinstance(value, float):
                value = int(value) if KEYWORDS[key].value == "count" else value
            kept[key] = value
        return kept
