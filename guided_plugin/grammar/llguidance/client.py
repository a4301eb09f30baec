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
from guided_plugin.grammar.llguidance.lark import HEADER, lower_schema
from guided_plugin.grammar.llguidance.lark.rules import Grammar, LarkGrammar, Probe
from guided_plugin.grammar.llguidance.lark.writer import written
from guided_plugin.grammar.llguidance.tokenizer import Tokenizers
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.schema import check_schema

_PIECE = re.compile(
    r"""(?P<skip>(?:\#|//)[^\n]*|[ \t]+) | (?P<text>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    | (?P<directive>%[a-z]+) | (?P<token><[^<>\s]+>) | (?P<option>(?:stop|temperature)[ \t]*=)
    | (?P<word>[\w-]+) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
"""What llguidance's own lexer tells apart, as far as it matters here."""


_KNOWN_OPTIONS: tuple[Any, ...] = ({}, {"no_forcing": True}, {"no_forcing": False})
"""What `%llguidance` may say: all grammars have `no_forcing`."""


class _Piece(NamedTuple):
    """A part of a grammar, with the value behind it where a directive has one."""

    kind: str
    text: str
    start: int
    end: int
    value: Any = None


def client_lark(
    spec: OutputSpec, tokens: Tokenizers, unenforced: Iterable[str] = ()
) -> LarkGrammar:
    """Return the grammar that llguidance is given: one line, then a client's own lines,
    then inner schemas."""
    source = spec.text
    parts = [HEADER]
    inner: list[str] = []
    schemas = Grammar()
    ids = cache(tokens.ids)
    # A rule's name that the client doesn't use.
    prefix = next(
        name for n in range(len(source)) if (name := f"json{n}-") not in source
    )
    lines = 0
    intersects = False
    for piece in _pieces(source):
        text = piece.text
        intersects |= piece.kind == "other" and text in "&~"
        if piece.kind == "directive":
            lines += source.count("\n", piece.start, piece.end)
        named = ids(text) if piece.kind == "token" else frozenset()
        _check(source, piece, stops=not tokens.stops.isdisjoint(named))
        if text == "%llguidance":
            text = ""
        elif text == "%json":
            text = f"{prefix}{len(inner)}"
            made = _inner_grammar(spec, piece, schemas, unenforced)
            intersects |= bool(made.probes)
            inner.append(f"{text}: %lark {{\n{made.text}}}\n")
        elif text == "\n":
            # What was on several lines is one name: those behind it stay where they
            # were.
            text = "\n" * (lines + 1)
            lines = 0
        parts.append(text)
    whole = "".join([*parts, "\n\n", *inner])
    return LarkGrammar(whole, (Probe(whole, frozenset()),) if intersects else ())


def _check(source: str, piece: _Piece, *, stops: bool) -> None:
    """Refuse what no grammar may have. `stops`: it names a stop token."""
    text = piece.text
    if stops or (piece.kind == "token" and text.startswith(("<[^", "<[*"))):
        what = f"{shown(text)} may be a stop token in the middle of the output"
        hint = "leave it out, also at the end: a complete output ends with one anyway"
    elif piece.kind == "option":
        what = f"`{text}` in a rule is not enforced"
        hint = "leave it out; a text that ends a rule is written with suffix="
    elif text == "%lark":
        what = "%lark, a grammar inside the grammar, is not supported"
        hint = "write its rules next to the others"
    elif text == "%llguidance" and piece.value not in _KNOWN_OPTIONS:
        what = f"%llguidance: {shown(piece.value)} is not supported"
        hint = "leave it out: the grammar alone says what the output looks like"
    else:
        return
    where = place_in("grammar", source, piece.start)
    raise UnsupportedSpecError(what, where=where, hint=hint)


def tokens_in(text: str) -> set[str]:
    """The tokens that a grammar names, as they are written."""
    if "<" not in text:
        return set()
    return {piece.text for piece in _pieces(text) if piece.kind == "token"}


def inner_schemas(source: str) -> Iterator[Any]:
    """The schemas in a grammar."""
    return (piece.value for piece in _pieces(source) if piece.text == "%json")


def _pieces(source: str) -> Iterator[_Piece]:
    at = 0
    while found := _PIECE.match(source, at):
        value = None
        end = found.end()
        if found[0] in ("%json", "%llguidance"):
            value, end = _json_behind(source, at, end)
        yield _Piece(str(found.lastgroup), found[0], at, end, value)
        at = end


_SPACE = re.compile(r"[ \t\r\n]*")


def _json_behind(source: str, start: int, end: int) -> tuple[Any, int]:
    """The value behind a directive, and where it ends."""
    space = _SPACE.match(source, end)
    try:
        return _DECODER.raw_decode(source, space.end() if space else end)
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


def _inner_grammar(
    spec: OutputSpec, piece: _Piece, schemas: Grammar, unenforced: Iterable[str]
) -> LarkGrammar:
    """The grammar of an inner schema, with rules that all of them share."""
    try:
        check_schema(piece.value)
        lowered = lower_schema(
            piece.value,
            schemas,
            closed=spec.closed,
            bounds=spec.bounds,
            unenforced=unenforced,
        )
    except GuidedError as error:
        kind = GrammarError if isinstance(error, SpecError) else type(error)
        place = place_in("grammar", spec.text, piece.start)
        where = f"{place}, {error.where}" if error.where.startswith("#") else place
        raise kind(error.what, where=where, hint=error.hint) from None
    if lowered.distinct:
        raise UnsupportedSpecError(
            "`uniqueItems` is not enforced inside a grammar",
            where=place_in("grammar", spec.text, piece.start),
            hint="leave it out, or send the schema as json_schema or in a structural tag",
        )
    layout = spec.layout
    return written(schemas, lowered.symbol, "", layout, spec.bounds.max_whitespace)
