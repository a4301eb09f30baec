"""Where in a JSON document the beginning of its text ends. Depends on nothing.

The text is one that a grammar of JSON took, so that nothing here checks it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

NUMBER_OR_WORD = "a number or a word"
"""What is in progress of a scalar without quotes."""

MOST_COMPLETE = 50
"""Complete values that are listed."""


@dataclass(slots=True)
class _Open:
    """An array or object that has not ended."""

    is_object: bool
    name: str | None = None
    """Of the member that is in progress; None before its name has ended."""
    index: int = 0
    """Of the item or member that is in progress."""


@dataclass(frozen=True, slots=True)
class Place:
    """The end of a text that begins a JSON document."""

    path: str
    """JSON pointer of the value that is in progress, or that was complete last."""
    what: str
    """What is in progress there, or may begin."""
    complete: tuple[str, ...]
    """Pointers of values that have ended, inside of those that have not; the last ones of many."""


def place_of(text: str) -> Place:
    """Where a text ends."""
    scan = _Scan()
    for character in text:
        scan.take(character)
    return scan.place()


@dataclass(slots=True)
class _Scan:
    open: list[_Open] = field(default_factory=list)
    state: str = "a value"
    """What may begin, or is in progress, behind the last character."""
    token: str = ""
    """What was read of a string, number or word."""
    complete: list[str] = field(default_factory=list)

    def take(self, character: str) -> None:
        if self.state in ("a name", "a string") and self.token:
            self.token += character
            if character == '"' and not _escaped(self.token):
                self._end_of_string()
            return
        if self.state == NUMBER_OR_WORD and character in ",]} \t\r\n":
            self._end_of_value()
        if character in " \t\r\n":
            return
        if character in "{[":
            self.open.append(_Open(character == "{"))
            self.state = "a name or }" if character == "{" else "a value or ]"
        elif character in "}]":
            self._close()
        elif character == ",":
            self.open[-1].index += 1
            self.open[-1].name = None
            self.state = "a name" if self.open[-1].is_object else "a value"
            self.token = ""
        elif character == ":":
            self.state = "a value"
        elif character == '"':
            naming = bool(self.open) and self.open[-1].is_object and self.open[-1].name is None
            self.state, self.token = "a name" if naming else "a string", '"'
        else:
            self.state = NUMBER_OR_WORD

    def place(self) -> Place:
        return Place(self._pointer(), self.state, tuple(self.complete[-MOST_COMPLETE:]))

    def _pointer(self) -> str:
        parts = []
        for each in self.open:
            if each.is_object and each.name is None:
                break
            parts.append(_escape(each.name) if each.name is not None else str(each.index))
        if self.open and not self.open[-1].is_object and self.state == "a value or ]":
            parts.pop()
        return "".join(["#", *(f"/{part}" for part in parts)])

    def _end_of_string(self) -> None:
        if self.state == "a name":
            try:
                self.open[-1].name = json.loads(self.token)
            except ValueError:
                self.open[-1].name = self.token.strip('"')
            self.state = "a colon"
        else:
            self._end_of_value()
        self.token = ""

    def _close(self) -> None:
        self.open.pop()
        self.state = ""  # what was expected inside is over
        prefix = self._pointer()
        self.complete = [each for each in self.complete if not each.startswith(f"{prefix}/")]
        self._end_of_value()

    def _end_of_value(self) -> None:
        self.complete.append(self._pointer())
        if not self.open:
            self.state = "nothing: the document is complete"
        else:
            self.state = "a comma or }" if self.open[-1].is_object else "a comma or ]"


def _escaped(token: str) -> bool:
    """Whether the last character of a string in progress is escaped."""
    before = token[1:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
