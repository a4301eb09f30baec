"""Lark as clients write it, as Lark that enforces it: what llguidance would read loosely is written out or
refused, each with its line.

    %json {...}          becomes the grammar that the same schema has as a spec of its own
    <|name|>, <[id]>     must not be a token that ends an output: it would end in the middle
    %llguidance {...}    only `no_forcing`, which every grammar here has
    stop=, temperature=, %lark  not supported

Depends on lark and spec. Nothing here compiles.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from guided_plugin.errors import GrammarError, GuidedError, SpecError, UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.lark import HEADER, lower_schema
from guided_plugin.grammar.llguidance.lark.rules import Grammar
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.schema import check_schema, pointer, walk

__all__ = ["client_lark", "tokens_in"]

_PIECE = re.compile(
    r"""(?P<skip>(?:\#|//)[^\n]*|[ \t]+) | (?P<text>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    | (?P<directive>%[a-z]+) | (?P<token><[^<>\s]+>) | (?P<option>(?:stop|temperature)[ \t]*=)
    | (?P<word>[\w-]+) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
"""What llguidance's own lexer tells apart, as far as it matters here."""


def client_lark(spec: OutputSpec, ends_output: Callable[[str], bool]) -> str:
    """The grammar that llguidance is given: one line, then a client's own lines, then inner schemas.

    `ends_output`: whether a token, as it is written in a grammar, may be one that ends an output.
    """
    source, parts = spec.text, [HEADER]
    inner: list[str] = []
    # A rule's name that the client doesn't use.
    prefix = next(name for n in range(len(source)) if (name := f"json{n}-") not in source)
    done, lines = 0, 0
    for found in _pieces(source):
        kind, start, end, text = str(found.lastgroup), found.start(), found.end(), found[0]
        if start < done:
            continue  # in the JSON behind a directive
        parts.append(source[done:start])
        done = end
        if kind == "other" and text == "\n":
            # What was on several lines is one name: those behind it stay where they were.
            text, lines = "\n" * (lines + 1), 0
        elif kind == "directive" and text in ("%json", "%llguidance"):
            value, done = _json_behind(source, start, end)
            lines += source.count("\n", end, done)
            if text == "%llguidance":
                _check_options(value, _place(source, start))
                text = ""
            else:
                text = f"{prefix}{len(inner)}"
                inner.append(f"{text}: %lark {{\n{_inner(spec, value, _place(source, start))}}}\n")
        elif text == "%lark":
            raise UnsupportedSpecError(
                "%lark, a grammar inside the grammar, is not supported",
                where=_place(source, start),
                hint="write its rules next to the others",
            )
        elif kind == "option":
            raise UnsupportedSpecError(
                f"`{text}` of a rule is not enforced",
                where=_place(source, start),
                hint="leave it out; a text that ends a rule is written with suffix=",
            )
        elif kind == "token" and (text.startswith(("<[^", "<[*")) or ends_output(text)):
            raise UnsupportedSpecError(
                f"{shown(text)} may be a token that ends the output, in the middle of it",
                where=_place(source, start),
                hint="leave it out, also at the end: an output ends with one where its grammar is complete",
            )
        parts.append(text)
    return "".join([*parts, source[done:], "\n", *inner])


def tokens_in(text: str) -> set[str]:
    """The tokens that a grammar names, as they are written."""
    return {found[0] for found in _pieces(text) if found.lastgroup == "token"} if "<" in text else set()


def _pieces(source: str) -> Iterator[re.Match[str]]:
    return _PIECE.finditer(source)


def _json_behind(source: str, start: int, end: int) -> tuple[Any, int]:
    """The value behind a directive, and where it ends."""
    begin = re.compile(r"[ \t\r\n]*").match(source, end)
    try:
        return _DECODER.raw_decode(source, begin.end() if begin else end)
    except (ValueError, RecursionError) as error:
        raise GrammarError(
            f"what follows {source[start:end]} is not JSON: {error}",
            where=_place(source, start),
            hint="write a JSON object behind it",
        ) from None


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_constant)


def _check_options(value: Any, where: str) -> None:
    other = next((name for name in value if name != "no_forcing"), "") if isinstance(value, dict) else "it"
    if other:
        hint = "leave it out: the grammar alone says what the output looks like"
        raise UnsupportedSpecError(f"%llguidance: {shown(other)} is not supported", where=where, hint=hint)


def _inner(spec: OutputSpec, schema: Any, place: str) -> str:
    """The grammar of an inner schema."""
    grammar = Grammar()
    try:
        check_schema(schema)
        found = lower_schema(schema, grammar, closed=spec.strict, ordered=spec.strict)
        if found.distinct:
            places = [
                (*path, key)
                for path, node in walk(schema)
                if isinstance(node, dict)
                for key in ("uniqueItems", "minProperties")
                if node.get(key)
            ]
            raise UnsupportedSpecError(
                "items or names that must differ are not enforced inside a grammar",
                where=pointer(next(iter(places), ())),
                hint="leave it out, or ask for the schema as json_schema",
            )
    except GuidedError as error:
        kind = GrammarError if isinstance(error, SpecError) else type(error)
        where = f"{place}, {error.where}" if error.where.startswith("#") else place
        raise kind(error.what, where=where, hint=error.hint) from None
    return grammar.lark(found.symbol, "", spaced=spec.whitespace == "flexible")


def _place(source: str, position: int) -> str:
    line = source.count("\n", 0, position) + 1
    return f"grammar, line {line}, column {position - source.rfind(chr(10), 0, position)}"
