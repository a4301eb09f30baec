"""A JSON Schema document as the standard reads it: drafts, references, which keywords
count.

Depends on spec. Every subschema that is looked at gets a number, the same for equal
ones, so that demands on values can be compared and remembered by number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.grammar.llguidance.lark.constraints import TRUE, Literals
from guided_plugin.keywords import ASSERTIONS, KEYWORDS, REFUSED, draft_of, idle_reason
from guided_plugin.spec.formats import FORMATS
from guided_plugin.spec.references import Path, pointer, resolved

# Beyond every double. Bounds are compared digit by digit.
_TOO_LARGE = 10**400

# Stands for the number of a reference that is being followed.
_RESOLVING = -1


@dataclass(frozen=True, slots=True)
class Numbered:
    """A subschema: what it says, and where it stands."""

    schema: Any
    path: Path
    keywords: Mapping[str, Any]
    """The keywords that count; a schema that is true or false has none."""


class Document:
    """A schema with everything that its subschemas may refer to."""

    def __init__(
        self, root: Any, unenforced: Collection[str], left_out: set[str]
    ) -> None:
        """`left_out`: where those of `unenforced` go that it asks for."""
        self.root = root
        self.draft = draft_of(root)
        self.nodes: list[Numbered] = []
        self._numbers: dict[str, int] = {}
        self._by_identity: dict[int, int] = {}
        self._kept: list[Any] = []
        self._unenforced = unenforced
        self._left_out = left_out

    def number(self, schema: Any, path: Path = ()) -> int:
        """The number of a subschema. A schema that is only a reference has its
        target's."""
        number = self._by_identity.get(id(schema))
        if number is None:
            self._by_identity[id(schema)] = _RESOLVING
            keywords = self._keywords(schema, path)
            if keywords.keys() == {"$ref"}:
                place = (*path, "$ref")
                number = self.number(*resolved(self.root, keywords["$ref"], place))
            else:
                # Schemas that differ only in what decides nothing, as descriptions, are
                # equal.
                key = repr(schema if isinstance(schema, bool) else keywords)
                number = self._numbers.setdefault(key, len(self.nodes))
                if number == len(self.nodes):
                    self.nodes.append(Numbered(schema, path, keywords))
            self._by_identity[id(schema)] = number
            self._kept.append(schema)
        if number == _RESOLVING:
            raise UnsupportedSpecError(
                "refers to itself and to nothing else",
                where=pointer((*path, "$ref")),
                hint="end the recursion",
            )
        return number

    def place(
        self,
        *keywords: str,
        weigh: Callable[[Any], int] = lambda value: 0,
        first: Literals = TRUE,
    ) -> str:
        """The place of the value of these keywords that weighs most, the first of
        equals, those inside the schemas `first` before others; "#" for none."""
        most = -1
        place: Path = ()
        around = [self.nodes[number].path for number, _ in first]
        inside_first = sorted(
            self.nodes,
            key=lambda node: all(node.path[: len(path)] != path for path in around),
        )
        for node in inside_first:
            for keyword, value in node.keywords.items():
                if keyword in keywords and weigh(value) > most:
                    most = weigh(value)
                    place = (*node.path, keyword)
        return pointer(place)

    # Inside

    def _keywords(self, schema: Any, path: Path) -> Mapping[str, Any]:
        """The keywords of a schema that decide what is valid: none that its draft or
        type leaves out. Refuses those that no grammar can say."""
        if isinstance(schema, bool):
            return {}
        kept = {}
        for key, value in schema.items():
            if key not in ASSERTIONS or idle_reason(schema, key, self.draft):
                continue
            if key == "format" and value not in FORMATS:
                continue
            if key in self._unenforced:
                self._left_out.add(key)
                continue
            if isinstance(value, float) and KEYWORDS[key].value == "count":
                value = int(value)
            kept[key] = value
            place = (*path, key)
            if key in REFUSED:
                what = f"{key} is not supported"
                hint = REFUSED[key]
                raise UnsupportedSpecError(what, where=pointer(place), hint=hint)
            if isinstance(value, (int, float)) and not abs(value) < _TOO_LARGE:
                what = f"{key} is a number too large to compare"
                hint = "leave it out, or take a smaller one"
                raise UnsupportedSpecError(what, where=pointer(place), hint=hint)
            if key == "pattern":
                _check_pattern(value, place)
            if key == "patternProperties":
                for source in value:
                    _check_pattern(source, (*place, source))
        return kept


def _check_pattern(source: str, path: Path) -> None:
    """Refuse a pattern that is no regular expression, with its place."""
    try:
        patterns.pattern(source)
    except UnsupportedSpecError as error:
        raise UnsupportedSpecError(
            error.what, where=pointer(path), hint=error.hint
        ) from None
