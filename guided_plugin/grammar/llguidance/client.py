"""Lark as clients write it, as Lark that enforces it: what llguidance would read
loosely is written out or refused, each with its line.

    %json {...}          becomes the grammar that the same schema has as a spec of its own
    <|name|>, <[id]>     must not be a token that ends an output: it would end in the middle
    %llguidance {...}    only `no_forcing`, which every grammar here has
    stop=, temperature=, %lark  not supported

Depends on lark, tokenizer and spec. Nothing here compiles.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from guided_plugin.config import no_constant
from guided_plugin.errors import (
    GrammarError,
    GuidedError,
    SpecError,
    UnsupportedSpecError,
    place_in,
    shown,
)
from guided_plugin.grammar.llguidance.lark import HEADER, Lowered, lower_schema
from guided_plugin.grammar.llguidance.lark.emitter import CONTROL
from guided_plugin.grammar.llguidance.lark.rules import Grammar, LarkGrammar
from guided_plugin.grammar.llguidance.tokenizer import Tokenizers
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.schema import check_schema

_PIECE = re.compile(
    r"""(?P<skip>(?:\#|//)[^\n]*|[ \t]+) | (?P<text>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    | (?P<directive>%[a-z]+) | (?P<token><[^<>\s]+>) | (?P<option>(?:stop|temperature|max_tokens)[ \t]*=)
    | (?P<word>[\w-]+) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
"""What llguidance's own lexer tells apart, as far as it matters here."""


class _Piece(NamedTuple):
    """A part of a grammar, with the value behind it where a directive has one."""

    kind: str
    text: str
    start: int
    end: int
    value: Any = None


def client_lark(
    spec: OutputSpec,
    tokens: Tokenizers,
    unenforced: Iterable[str] = (),
    *,
    marked: bool = False,
) -> LarkGrammar:
    """The grammar that llguidance is given: one line, then a client's own lines, then
    inner schemas.

    `marked`: with marks, for the check that items are distinct.
    """
    source = spec.text
    parts = [HEADER]
    schemas = Grammar()
    ids = cache(tokens.ids)
    inner: list[str] = []
    distinct = False
    uncounted: list[tuple[str, int]] = []
    """What stands in the way of that check, which follows an output by its bytes."""
    # A rule's name that the client doesn't use.
    prefix = next(
        name for n in range(len(source)) if (name := f"json{n}-") not in source
    )
    lines = 0
    for piece in _pieces(source):
        kind, text, start, end, value = piece
        if kind == "other" and text == "\n":
            # What was on several lines is one name: those behind it stay where they
            # were.
            text = "\n" * (lines + 1)
            lines = 0
        elif value is not None:
            lines += source.count("\n", start, end)
        if text == "%llguidance":
            _check_options(value, place_in("grammar", source, start))
            text = ""
        elif text == "%json":
            lowered = _lowered(spec, piece, schemas, unenforced, marked=marked)
            text = f"{prefix}{len(inner)}"
            body = schemas.lark(
                lowered.symbol,
                "",
                spec.layout,
                spec.bounds.max_whitespace,
                marked=marked,
            )
            inner.append(f"{text}: %lark {{\n{body.text}}}\n")
            distinct |= lowered.distinct
        elif text == "%lark":
            raise UnsupportedSpecError(
                "%lark, a grammar inside the grammar, is not supported",
                where=place_in("grammar", source, start),
                hint="write its rules next to the others",
            )
        elif kind == "option" and text.startswith("max_tokens"):
            uncounted.append((text, start))
        elif kind == "option":
            raise UnsupportedSpecError(
                f"`{text}` in a rule is not enforced",
                where=place_in("grammar", source, start),
                hint="leave it out; a text that ends a rule is written with suffix=",
            )
        elif kind == "token":
            named = ids(text)
            if text.startswith(("<[^", "<[*")) or not tokens.stops.isdisjoint(named):
                raise UnsupportedSpecError(
                    f"{shown(text)} may be a stop token in the middle of the output",
                    where=place_in("grammar", source, start),
                    hint="leave it out, also at the end: a complete output ends with one anyway",
                )
            if not tokens.controls.keys() >= named:
                uncounted.append((text, start))
            if marked:
                text = " | ".join(
                    f'<[{CONTROL}]> "{token};"' for token in sorted(named)
                ).join("()")
        parts.append(text)
    if distinct and uncounted:
        text, start = uncounted[0]
        raise UnsupportedSpecError(
            f"{shown(text)} is not supported next to a schema whose items or names must differ",
            where=place_in("grammar", source, start),
            hint="leave it out, or `uniqueItems` and the counts of unlisted properties",
        )
    return LarkGrammar("".join([*parts, "\n\n", *inner]), distinct=distinct)


def tokens_in(text: str) -> set[str]:
    """The tokens that a grammar names, as they are written."""
    return (
        {piece.text for piece in _pieces(text) if piece.kind == "token"}
        if "<" in text
        else set()
    )


def inner_schemas(source: str) -> Iterator[Any]:
    """The schemas in a grammar."""
    return (piece.value for piece in _pieces(source) if piece.text == "%json")


def _pieces(source: str) -> Iterator[_Piece]:
    at = 0
    while piece := _PIECE.match(source, at):
        kind = str(piece.lastgroup)
        text = piece[0]
        end = piece.end()
        if text in ("%json", "%llguidance"):
            value, end = _json_behind(source, at, end)
            yield _Piece(kind, text, at, end, value)
        else:
            yield _Piece(kind, text, at, end)
        at = end


def _json_behind(source: str, start: int, end: int) -> tuple[Any, int]:
    """The value behind a directive, and where it ends."""
    begin = re.compile(r"[ \t\r\n]*").match(source, end)
    try:
        return _DECODER.raw_decode(source, begin.end() if begin else end)
    except (ValueError, RecursionError) as error:
        raise GrammarError(
            f"what follows {source[start:end]} is not JSON: {error}",
            where=place_in("grammar", source, start),
            hint="write a JSON object after it",
        ) from None


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"no number is as large as {shown(text)}")
    return value


_DECODER = json.JSONDecoder(parse_constant=no_constant, parse_float=_finite)


def _check_options(value: Any, where: str) -> None:
    other = (
        next((name for name in value if name != "no_forcing"), "")
        if isinstance(value, dict)
        else "it"
    )
    if other:
        hint = "leave it out: the grammar alone says what the output looks like"
        raise UnsupportedSpecError(
            f"%llguidance: {shown(other)} is not supported", where=where, hint=hint
        )


def _lowered(
    spec: OutputSpec,
    piece: _Piece,
    grammar: Grammar,
    unenforced: Iterable[str],
    *,
    marked: bool,
) -> Lowered:
    """An inner schema's rules."""
    schema = piece.value
    try:
        check_schema(schema)
        return lower_schema(
            schema,
            grammar,
            closed=spec.closed,
            bounds=spec.bounds,
            unenforced=unenforced,
            marked=marked,
        )
    except GuidedError as error:
        kind = GrammarError if isinstance(error, SpecError) else type(error)
        place = place_in("grammar", spec.text, piece.start)
        where = f"{place}, {error.where}" if error.where.startswith("#") else place
        raise kind(error.what, where=where, hint=error.hint) from None
