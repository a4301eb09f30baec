"""`explain_output`: where an output stands. Depends on the compiler."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.diagnose.ending import Ending, shortest_ending
from guided_plugin.diagnose.position import Position, Refusal
from guided_plugin.spec import OutputSpec

_MOST_TOKENS = 20
"""Tokens that are listed: a line or two of a terminal. Chosen, not measured."""
_MOST_FORCED = 200
"""Bytes of forced text that are followed: a line or two of a terminal. Chosen, not measured."""
_MANY_SPACES = 4
"""Whitespace that is noted; indented JSON has fewer in most places. Chosen, not measured."""
_MANY_DIGITS = 12
"""Digits that are noted; few numbers that people write have as many. Chosen, not measured."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where an output stands."""

    text: str
    """The part of the text that fits."""
    refused: Refusal | None
    """Where the text stops fitting, if it does; all else is told of the place before."""
    may_stop: bool
    """Whether the output may end here."""
    place: Place | None
    """In the JSON document; None for other kinds of specs."""
    characters: tuple[str, ...]
    """What may come next; bytes beyond ASCII as `\\xc3`."""
    token_count: int
    """How many tokens may come next, without those that end the output."""
    tokens: tuple[str, ...]
    """Some of them."""
    forced: str
    """What must come next, whatever a model prefers."""
    next_refused: Refusal | None
    """Where the continuation that was asked about is refused."""
    ending: Ending
    """A short completion."""
    notes: tuple[str, ...]
    """What may explain an output that does not end."""

    @property
    def ok(self) -> bool:
        """Whether nothing was refused."""
        return self.refused is None and self.next_refused is None

    def to_dict(self) -> dict[str, Any]:
        """With stable keys, for `--json`."""
        return {"ok": self.ok, **asdict(self)}


def explain_output(
    compiler: GrammarCompiler,
    spec: OutputSpec,
    text: str,
    *,
    next_text: str | None = None,
    seconds: float = 2.0,
) -> Explanation:
    """Where an output that begins with `text` stands, and whether `next_text` could follow.

    The text is matched to the letter. A spec's `start_after` is not waited for: the text is the constrained
    part. `seconds` bound the search for a completion. Raises a GrammarError for a spec that does not compile.
    """
    position = Position.start(compiler, spec)
    count = position.move(text)
    refused = position.refusal("", text, count) if count < len(text) else None
    next_refused = None
    if next_text is not None:
        ahead = position.fork()
        taken = ahead.move(next_text)
        next_refused = ahead.refusal(text[:count], next_text, taken) if taken < len(next_text) else None
    characters = position.characters()
    place = place_of(text[:count]) if spec.is_json else None
    return Explanation(
        text=text[:count],
        refused=refused,
        may_stop=position.may_stop,
        place=place,
        characters=tuple(characters),
        token_count=len(position.allowed()),
        tokens=tuple(position.examples(_MOST_TOKENS)),
        forced=_forced(position),
        next_refused=next_refused,
        ending=shortest_ending(position, seconds),
        notes=tuple(_notes(spec, text[:count], place, characters)),
    )


def _forced(position: Position) -> str:
    """What must come next: as long as one byte alone may follow, and no end."""
    written = b""
    while len(written) < _MOST_FORCED and not position.may_stop:
        allowed = position.allowed()
        if not allowed or any(token in position.names.controls for token in allowed):
            break
        heads = {position.names.tokens[token][0] for token in allowed}
        shortest = min(allowed, key=lambda token: len(position.names.tokens[token]))
        if len(heads) > 1 or len(position.names.tokens[shortest]) > 1:
            break
        ahead = position.moved(shortest)
        if ahead is None:
            break
        position, written = ahead, written + position.names.tokens[shortest]
    return written.decode(errors="ignore")


def _notes(spec: OutputSpec, text: str, place: Place | None, characters: list[str]) -> list[str]:
    notes = []
    digits = len(text) - len(text.rstrip("0123456789"))
    in_number = place is not None and place.what == NUMBER_OR_WORD
    if in_number and digits >= _MANY_DIGITS and not set("0123456789").isdisjoint(characters):
        notes.append(
            f"{digits} digits, and more are allowed: 'minimum' and 'maximum' bound those of an integer, "
            "'multipleOf' those of a fraction"
        )
    spaces = len(text) - len(text.rstrip(" \t\r\n"))
    if spec.is_json and spec.whitespace != "compact" and spaces >= _MANY_SPACES and " " in characters:
        notes.append(
            f"{spaces} characters of whitespace, and more are allowed: whitespace is {spec.whitespace!r}; "
            "with 'compact' there is none between JSON's parts"
        )
    if spec.start_after:
        notes.append("the spec constrains what follows its start_after: the text is read as that part")
    return notes


# Where in a JSON document the beginning of its text ends. The text is one that a grammar of JSON took.

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
