"""`Outline`: a place in JSON, reduced to what decides which text may follow.

Two outputs of one spec that come to the same outline allow the same continuations.
Values are left out of it, except where a schema may tell branches apart by values.
Depends on the keywords of JSON Schema.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from guided_plugin.keywords import KEYWORDS
from guided_plugin.spec.memo import remembered, texts_bytes

_STRING = r'"(?:[^"\\]|\\.)*+"'

_PART = re.compile(
    rb'(%b|[{}\[\],:])|([^{}\[\],:"]++|".*)' % _STRING.encode(), re.DOTALL
)
"""In an output: a part that is complete, or one that goes on until another part
follows."""

_LONG = 256
"""An open text of more bytes is a part of the name: all of it is looked at with each
token."""

FREE = b'"\0'
"""In place of an open text of which the spec says nothing."""

_READ_BYTES = 1 << 16
"""Specs with more text are not read: a batch waits. One of 1 MiB takes up to 130 ms."""

_BEGINS = 64
"""Of a structural tag that are looked for: in 50 us, if no two have a letter in
common."""

_BRANCHES = (
    *("allOf", "anyOf", "oneOf", "not", "if", "contains", "uniqueItems"),
    *("dependencies", "dependentSchemas"),
)
"""Keywords by which a value may decide what follows behind it."""

_NESTED = re.compile(
    rf'"const":[\[{{]|"enum":\[(?:(?:{_STRING}|[^\[\]{{}}",]++),?)*+[\[{{]'
)
"""An array or an object that a schema names: values inside of it decide too."""

_SCALARS = {"number", "integer", "string"}
_MEASURES = [
    name for name, one in KEYWORDS.items() if one.types and one.types <= _SCALARS
]
"""Keywords that tell values apart without naming them: bounds, patterns, formats."""


@dataclass(frozen=True, slots=True)
class SpecWords:
    """What the text of a spec says of names and values."""

    text: bytes
    """The spec, with its strings as outputs write them."""
    begins: re.Pattern[bytes] | None
    """What stands before JSON in its outputs; None if they are JSON."""
    branches: bool
    """Whether a value may decide what follows behind it,"""
    measures: bool
    """or how the text goes on in which it stands, without being named."""


@remembered(lambda text, words: texts_bytes(text, words.text))
def words_of(text: str, kind: str) -> SpecWords:
    """What a spec says; nothing where no JSON is written, or where its text is too long
    to be read."""
    is_json = kind in ("json_schema", "json_object")
    if len(text) > _READ_BYTES or not (is_json or kind == "structural_tag"):
        is_json = False
        text = ""
    begins = re.findall(rf'"begin":({_STRING})', text)[:_BEGINS]
    texts = [
        re.escape(json.loads(one).encode(errors="surrogatepass")) for one in begins
    ]
    return SpecWords(
        # Half a surrogate pair is a string for JSON; no output holds its bytes.
        text.encode().decode("unicode_escape").encode(errors="surrogatepass"),
        None if is_json else re.compile(b"|".join(texts) or rb"(?!)"),
        _NESTED.search(text) is not None
        or any(f'"{name}"' in text for name in _BRANCHES),
        any(f'"{name}"' in text for name in _MEASURES),
    )


@dataclass(slots=True, eq=False)
class Outline:
    """A place. `after` makes another one."""

    words: SpecWords
    name: int
    """What is complete, as a hash."""
    begun: bytes = b""
    """What is not: a string, a number, a word or whitespace; or what stands behind the
    document."""
    key: bytes = b""
    """The last name that the spec has,"""
    since: bytes = b""
    """and what is complete since then or since a value."""
    at_name: bool = False
    """Whether a string would be a name."""
    in_text: bool = False
    """Whether it is in the middle of a text that is no name."""
    ended: bool = False
    """Whether the document is complete."""
    found: Any = None
    """What follows, once that is known."""
    _named: bytes = b""
    _in_object: bool = False
    _around: Any = None
    """What came before the innermost open container, whether that is in an object, and
    what is around it."""

    def after(self, text: bytes) -> tuple[Outline, list[tuple[bytes, bytes]]]:
        """The place behind a text. And what was completed: each name of the spec, as
        the name before it and the text since that or since a value, and the end of the
        document likewise."""
        place = replace(self, begun=b"", found=None)
        learnt = list[tuple[bytes, bytes]]()
        parts = iter(_PART.findall(self.begun + text))
        for part, rest in parts:
            if value := place.begun.strip():
                place._take(value)
            else:
                place.since += place.begun
            place.begun = rest
            if part and place._take(part):
                learnt.append((place.key, place.since))
                place.key = place._named
                place.since = b""
            if place.ended:
                place.begun = b"".join(map(b"".join, parts))
        place._settle()
        return place, learnt

    def _take(self, part: bytes) -> bool:
        """A part is complete. Returns whether a name of the spec is, or the
        document."""
        decides: bytes | int = part
        self.since += part
        if part == b",":
            self.at_name = self._in_object
        elif part in (b"{", b"["):
            self._around = self.name, self._in_object, self._around
            self._in_object = self.at_name = part == b"{"
        elif part in (b"}", b"]") and self._around:
            decides = self.name if self.words.branches else b""
            self.name, self._in_object, self._around = self._around
            self.at_name = False
            self.ended = self._around is None
            if b"{" in self.since or b"[" in self.since:
                self.since = part  # that it is empty is a value
        elif self.at_name:
            self._named = part
            self.at_name = False
        elif part != b":":
            self.since = b""
            self.ended = self._around is None
            decides = part if self.ended or self.words.branches else b""
        self.name = hash((self.name, decides))
        if part == b":" and self._named + part not in self.words.text:
            self.since = b""  # an output made up this name
        return self.ended or (part == b":" and self.since != b"")

    def _settle(self) -> None:
        """Leave out what does not decide of the part that has begun."""
        begun = self.begun
        words = self.words
        escape = b"\\" * ((len(begun) - len(begun.rstrip(b"\\"))) % 2)
        self.in_text = begun.startswith(b'"') and not self.at_name
        if (
            self.in_text
            and begun not in words.text
            and not words.branches
            and not words.measures
        ):
            self.begun = FREE + escape
        elif len(begun) > _LONG:
            self.name = hash((self.name, begun))
            self.begun = begun[:1] + escape

    def rest_of(self, text: bytes) -> bytes:
        """What is left of a text that stands between two values; nothing in the middle
        of a value, or if the output has begun another text."""
        begun = self.since + self.begun
        if not self.at_name and self.begun.strip():
            if self.begun.startswith(b'"'):
                return b""
            begun = b""  # a number or a word may end here
        return text[len(begun) :] if text.startswith(begun) else b""
