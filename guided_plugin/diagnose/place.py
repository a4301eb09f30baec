"""Where in a JSON document the beginning of its text ends. Depends on nothing.

The text is one that a grammar of JSON took, so that nothing here checks it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

NUMBER_OR_WORD = "a number or a word"
"""What is in progress of a scalar without quotes."""
MOST_COMPLETE = 50
"""Complete values that are listed."""

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*(?P<end>"|\\?\Z)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


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
    stack: list[_Open] = []
    complete: list[str] = []
    what = "a value"
    for match in _PIECE.finditer(text):
        piece = match[0]
        inside = stack[-1] if stack else None
        naming = inside is not None and inside.is_object and inside.name is None
        ended = False
        if piece in ("{", "["):
            stack.append(_Open(piece == "{"))
            what = "a name or }" if piece == "{" else "a value or ]"
        elif piece in ("}", "]"):
            stack.pop()
            prefix = _pointer(stack) + "/"
            complete = [each for each in complete if not each.startswith(prefix)]
            ended = True
        elif piece == "," and inside is not None:
            inside.index, inside.name = inside.index + 1, None
            what = "a name" if inside.is_object else "a value"
        elif piece == ":":
            what = "a value"
        elif match["end"] is None:
            ended, what = match.end() < len(text), NUMBER_OR_WORD
        elif match["end"] != '"':
            what = "a name" if naming else "a string"
        elif naming and inside is not None:
            inside.name, what = json.loads(piece, strict=False), "a colon"
        else:
            ended = True
        if ended:
            complete.append(_pointer(stack))
            what = "nothing: the document is complete"
            if stack:
                what = "a comma or }" if stack[-1].is_object else "a comma or ]"
    path = _pointer(stack[:-1] if what == "a value or ]" else stack)
    return Place(path, what, tuple(complete[-MOST_COMPLETE:]))


def _pointer(stack: list[_Open]) -> str:
    parts = ["#"]
    for each in stack:
        if each.is_object and each.name is None:
            break
        part = str(each.index) if each.name is None else each.name
        parts.append(part.replace("~", "~0").replace("/", "~1"))
    return "/".join(parts)
