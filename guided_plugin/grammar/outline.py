"""`Outline`: a place in JSON, reduced to what decides which text may follow.

Two outputs of one spec that come to the same outline allow the same continuations.
Values are left out of it, except where a schema may tell branches apart by values. The
whitespace of the containers around the place is a part of it. Depends on the keywords
of JSON Schema.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from guided_plugin.keywords import KEYWORDS
from guided_plugin.spec.memo import remembered, texts_bytes

_STRING = r'"(?:[^"\\]|\\.)*+"'

_PART = re.compile(
    rb'(?P<whole>%b|[{}\[\],:])|(?P<spaces>[ \t\r\n]++)|[^{}\[\],:" \t\r\n]++|".*'
    % _STRING.encode(),
    re.DOTALL,
)
"""A part of an output. One that is neither whole nor whitespace goes on until another
part follows."""

_LONG = 256
"""An open text of more bytes is a part of the name: all of it is looked at with each
token."""

FREE = b'"\0'
"""In place of an open text of which the spec says nothing."""

_READ_BYTES = 1 << 16
"""Specs with more text are not read: a batch waits. One of 1 MiB takes up to 130 ms."""

_BEGINS = 64
"""Begins of a structural tag that are looked for, at most: in 50 us, if no two have a
letter in common."""

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
    """The facts about names and values in the text of a spec."""

    text: bytes
    """The spec, with its strings as outputs write them."""
    begins: re.Pattern[bytes] | None
    """The pattern of what stands before JSON in its outputs; None if they are JSON."""
    branches: bool
    """True if a value may decide what follows behind it."""
    measures: bool
    """True if one may decide how the text goes on in which it stands, without being
    named."""


@remembered(lambda text, words: texts_bytes(text, words.text))
def words_of(text: str, kind: str) -> SpecWords:
    """Return the words of a spec; none where no JSON is written, or where its text is
    too long to be read."""
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


class Container(NamedTuple):
    """An open array or object."""

    name: int
    """The name of the place before it."""
    opening: bytes
    indent: bytes
    """The indentation of the line on which it opened."""
    around: Container | None
    broken: bool = False
    """True if it began with a line's end."""


class Gap(NamedTuple):
    """Whitespace, perhaps none, between two parts of JSON."""

    before: bytes
    """The last byte of the part before it."""
    after: bytes
    """The first byte of the part behind it."""
    spaces: bytes
    container: Container
    """The innermost one, as it was before the gap."""


@dataclass(slots=True)
class Step:
    """A text was read."""

    place: Outline
    """The place behind it."""
    names: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Each name of the spec that was completed, as the name before it and the text
    since that or since a value; and the end of the document likewise."""
    gaps: list[Gap] = field(default_factory=list)
    """The whitespace that was completed."""


@dataclass(slots=True, eq=False)
class Outline:
    """A place. `after` makes another one."""

    words: SpecWords
    name: int
    """The hash of what is complete."""
    begun: bytes = b""
    """The part that is not: a string, a number, a word or whitespace; or what stands
    behind the document."""
    key: bytes = b""
    """The last name that the spec has."""
    since: bytes = b""
    """The text that is complete since then or since a value."""
    at_name: bool = False
    """True if a string would be a name."""
    ended: bool = False
    """True if the document is complete."""
    found: Any = None
    """The continuation, once that is known."""
    before: bytes = b""
    """The last byte of the last complete part that is no whitespace."""
    indent: bytes = b""
    """The indentation of the current line."""
    container: Container | None = None
    """The innermost open container."""
    _named: bytes = b""

    @property
    def identity(self) -> int:
        """Return a hash that equal places share."""
        return hash((self.name, self.begun, self.key, self.since, self.indent))

    @property
    def in_value(self) -> bool:
        """True if it is in the middle of a string, a number or a word."""
        return bool(self.begun.strip())

    def after(self, text: bytes) -> Step:
        """Return the step that the output makes with a text."""
        place = replace(self, begun=b"", found=None)
        step = Step(place)
        goes_on = self.in_value
        text = self.begun + text
        for found in _PART.finditer(text):
            part = found[0]
            if place.ended:
                place.begun = text[found.start() :]
                break
            if found["spaces"]:
                place.begun = part
                continue
            if not goes_on:
                place._end_gap(part, step)
            goes_on = False
            if found.end() == len(text) and not found["whole"]:
                place.begun = part
            elif place._take(part):
                step.names.append((place.key, place.since))
                place.key = place._named
                place.since = b""
        place._settle()
        return step

    def _end_gap(self, part: bytes, step: Step) -> None:
        """Whitespace ends before a part."""
        spaces = self.begun
        self.begun = b""
        self.since += spaces
        container = self.container
        broken = b"\n" in spaces
        if container is not None:
            step.gaps.append(Gap(self.before, part[:1], spaces, container))
            if self.before in (b"{", b"["):
                self.container = container._replace(broken=broken)
                self.name = hash((self.name, broken))
        if broken:
            self.indent = spaces.rpartition(b"\n")[2]

    def _take(self, part: bytes) -> bool:
        """A part is complete. Returns whether a name of the spec is, or the
        document."""
        decides: bytes | int = part
        self.since += part
        self.before = part[-1:]
        container = self.container
        if part == b",":
            self.at_name = container is not None and container.opening == b"{"
        elif part in (b"{", b"["):
            self.container = Container(self.name, part, self.indent, container)
            self.at_name = part == b"{"
            self.name = hash((self.name, self.indent))
        elif part in (b"}", b"]") and container is not None:
            decides = self.name if self.words.branches else b""
            self.name = container.name
            self.container = container.around
            self.at_name = False
            self.ended = self.container is None
            if b"{" in self.since or b"[" in self.since:
                self.since = part  # that it is empty is a value
        elif self.at_name:
            self._named = part
            self.at_name = False
        elif part != b":":
            self.since = b""
            self.ended = container is None
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
        decides = self.at_name or words.branches or words.measures
        if begun.startswith(b'"') and not decides and begun not in words.text:
            self.begun = FREE + escape
        elif len(begun) > _LONG:
            self.name = hash((self.name, begun))
            self.begun = begun[:1] + escape

    def rest_of(self, text: bytes) -> bytes:
        """Return the rest of a text that stands between two values; empty in the middle
        of a value, or if the output has begun another text."""
        begun = self.since + self.begun
        if not self.at_name and self.in_value:
            if self.begun.startswith(b'"'):
                return b""
            begun = b""  # a number or a word may end here
        return text[len(begun) :] if text.startswith(begun) else b""
