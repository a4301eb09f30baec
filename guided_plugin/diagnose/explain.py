"""`explain_output`: where an output stands. Depends on the compiler."""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.diagnose.position import Position, Refusal, bounds_of
from guided_plugin.errors import VocabularyError
from guided_plugin.grammar.base import Grammar
from guided_plugin.grammar.forced import DRAFTS, ForcedTokens
from guided_plugin.spec import OutputSpec, check_is_spec
from guided_plugin.spec.schema import pointer

_MOST_TOKENS = 20
"""Tokens that are listed: a line or two of a terminal. Chosen, not measured."""
_MOST_FORCED = 200
"""Bytes of forced text that are followed: a line or two of a terminal. Chosen, not
measured."""
_MANY_SPACES = 12
"""Whitespace that is noted; indented JSON has fewer in most places. Chosen, not
measured."""
_MANY_DIGITS = 12
"""Digits that are noted; few numbers that people write have as many. Chosen, not
measured."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where an output stands."""

    text: str
    """The part of the text that fits."""
    refused: Refusal | None
    """Where the text stops fitting, if it does; all else is told of the place
    before."""
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
    bounds: dict[str, int]
    """What bounds JSON where its schema does not, by option."""
    jump: Jump | None = None
    """Which parts of the text are forced, where that was asked for."""

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
    jump: bool = False,
) -> Explanation:
    """What may follow `text` in an output, how the output could end, and whether
    `next_text` could follow.

    The text is matched exactly. It is the constrained part: a spec's `start_after` is
    ignored. `jump` also marks the forced parts of the text. Raises a GrammarError for a
    spec that does not compile.
    """
    check_is_spec(spec)
    spec = spec.settled(compiler.config)
    position = Position.start(compiler, spec)
    count = position.move(text)
    refused = position.refusal("", text, count) if count < len(text) else None
    next_refused = None
    if next_text is not None:
        ahead = position.fork()
        taken = ahead.move(next_text)
        next_refused = (
            ahead.refusal(text[:count], next_text, taken)
            if taken < len(next_text)
            else None
        )
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
        forced=must_follow(position),
        next_refused=next_refused,
        ending=_ending(position, compiler.compile(spec), text[:count]),
        notes=tuple(_notes(spec, text[:count], place, characters)),
        bounds=bounds_of(compiler.compile(spec)),
        jump=jump_through(compiler, spec, _tokens_of(position, text[:count]))
        if jump
        else None,
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """A short completion."""

    text: str | None
    """None: nothing was found."""
    why: str = ""
    """Why nothing was found."""


def _ending(position: Position, grammar: Grammar, text: str) -> Ending:
    find = getattr(position.backend, "ending", None)
    tokens = (
        None
        if find is None
        else find(grammar, position.matcher, text.encode(errors="surrogatepass"))
    )
    if tokens is None:
        why = (
            f"{grammar.backend} can't complete outputs"
            if find is None
            else "nothing was found"
        )
        return Ending(None, why)
    return Ending(
        b"".join(position.names.tokens[token] for token in tokens).decode(
            errors="replace"
        )
    )


@dataclass(frozen=True, slots=True)
class Jump:
    """How an output comes about with `jump_forward`, where a model samples just these
    tokens."""

    pieces: tuple[tuple[str, bool], ...]
    """Its text in parts, and whether they took no forward pass of their own."""
    tokens: int
    """With the one that ended it, if it has ended."""
    forwards: int
    """Forward passes that all of them take."""


def jump_through(
    compiler: GrammarCompiler, spec: OutputSpec, tokens: Sequence[int]
) -> Jump:
    """Which of the tokens of an output that fits are verified, not sampled one by
    one."""
    position = Position.start(compiler, spec)
    forced = ForcedTokens(compiler.vocabulary)
    names = position.names
    at = 0
    forwards = 0
    free: list[bool] = []
    while at < len(tokens):
        drafts = forced.behind(position.matcher, DRAFTS)
        same = [
            draft == token for draft, token in zip(drafts, tokens[at:], strict=False)
        ]
        count = same.index(False) if False in same else len(same)
        for token in tokens[at : at + count + 1]:
            position.matcher.accept(token)
        free += [True] * count + [False]
        at += count + 1
        forwards += 1
    told = [
        (token, own)
        for token, own in zip(tokens, free, strict=False)
        if token not in names.stops
    ]
    parts = [(own, list(part)) for own, part in groupby(told, key=lambda one: one[1])]
    # a character is in the part that has its last byte
    decoder = getincrementaldecoder("utf-8")("replace")
    texts = (
        (decoder.decode(b"".join(names.tokens[token] for token, _ in part)), own)
        for own, part in parts
    )
    pieces = [
        (text, own)
        for text, own in [*texts, (decoder.decode(b"", True), False)]
        if text
    ]
    return Jump(tuple(pieces), len(tokens), forwards)


def _tokens_of(position: Position, text: str) -> list[int]:
    """The tokens that a tokenizer makes of an output, with the one that ends it where
    it may end."""
    names = position.names
    tokens = []
    if names.encode is None:
        what = "the vocabulary has no encoder for text"
        raise VocabularyError(what, hint="build it from a tokenizer to see jumps")
    for piece in names.pieces(text):
        control = names.by_name.get(piece)
        tokens += [control] if control is not None else names.encode(piece)
    return [*tokens, *names.stops[:1]] if position.may_stop else tokens


def must_follow(position: Position) -> str:
    """What must come next: as long as one byte alone may follow, and no end."""
    written = b""
    while (
        len(written) < _MOST_FORCED
        and not position.may_stop
        and len(position.characters()) == 1
    ):
        allowed = position.allowed()
        shortest = min(allowed, key=lambda token: len(position.names.tokens[token]))
        if (
            not position.names.controls.isdisjoint(allowed)
            or len(position.names.tokens[shortest]) > 1
        ):
            break
        ahead = position.fork()
        if not ahead.matcher.accept(shortest):
            break
        position, written = ahead, written + position.names.tokens[shortest]
    return written.decode(errors="ignore")


def _notes(
    spec: OutputSpec, text: str, place: Place | None, characters: list[str]
) -> list[str]:
    notes = []
    digits = len(text) - len(text.rstrip("0123456789"))
    in_number = place is not None and place.what == NUMBER_OR_WORD
    if (
        in_number
        and digits >= _MANY_DIGITS
        and not set("0123456789").isdisjoint(characters)
    ):
        notes.append(
            f"{digits} digits, and more are allowed: 'minimum' and 'maximum' bound those of an integer, "
            "'multipleOf' those of a fraction"
        )
    spaces = len(text) - len(text.rstrip(" \t\r\n"))
    if (
        spec.is_json
        and spec.layout == "flexible"
        and spaces >= _MANY_SPACES
        and " " in characters
    ):
        notes.append(
            f"{spaces} characters of whitespace, and more are allowed: whitespace is 'flexible'; "
            "with 'compact' there is none between JSON's parts, with 'spaced' one space"
        )
    if spec.start_after:
        notes.append(
            "the spec constrains what follows its start_after: the text is read as that part"
        )
    return notes


# Where in a JSON document the beginning of its text ends. The text is one that a
# grammar of JSON took.

NUMBER_OR_WORD = "a number or a word"
"""What is in progress of a scalar without quotes."""
MOST_COMPLETE = 50
"""Complete values that are listed."""

_PIECE = re.compile(
    r'"(?:[^"\\]|\\.)*(?P<end>"|\\?\Z)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Place:
    """The end of a text that begins a JSON document."""

    path: str
    """JSON pointer of the value that is in progress, or that was complete last."""
    what: str
    """What is in progress there, or may begin."""
    complete: tuple[str, ...]
    """Pointers of values that have ended, inside of those that have not; the last ones
    of many."""


def place_of(text: str) -> Place:
    """Where a text ends."""
    keys: list[str | int | None] = []
    """In each open value: the index of its item, the name of its member; None: a name
    has not ended."""
    complete: list[str] = []
    what = "a value"
    for match in _PIECE.finditer(text):
        piece = match[0]
        inside = keys[-1] if keys else 0
        ended = False
        match piece[0]:
            case "{" | "[":
                keys.append(None if piece == "{" else 0)
                what = "a name or }" if piece == "{" else "a value or ]"
            case "}" | "]":
                keys.pop()
                prefix = _pointer(keys) + "/"
                complete = [each for each in complete if not each.startswith(prefix)]
                ended = True
            case ",":
                keys[-1] = inside + 1 if isinstance(inside, int) else None
                what = "a value" if isinstance(inside, int) else "a name"
            case ":":
                what = "a value"
            case '"' if match["end"] != '"':
                what = "a name" if inside is None else "a string"
            case '"' if inside is None:
                keys[-1], what = json.loads(piece, strict=False), "a colon"
            case '"':
                ended = True
            case _:
                ended = match.end() < len(text)
                what = NUMBER_OR_WORD
        if ended:
            complete.append(_pointer(keys))
            what = "nothing: the document is complete"
            if keys:
                what = "a comma or ]" if isinstance(keys[-1], int) else "a comma or }"
    path = _pointer(keys[:-1] if what == "a value or ]" else keys)
    return Place(path, what, tuple(complete[-MOST_COMPLETE:]))


def _pointer(keys: list[str | int | None]) -> str:
    return pointer([key for key in keys if key is not None])
