"""Lark as clients write it: what llguidance would read loosely is refused, with its
line.

    <|name|>, <[id]>     must not be a token that ends an output: it would end in the middle
    %json, %lark         not supported: JSON in a text is a structural tag
    %llguidance, stop=, temperature=  not supported

Depends on lark, tokenizer and spec. Nothing here compiles.
"""

from __future__ import annotations

import re
from functools import cache

from guided_plugin.errors import UnsupportedSpecError, place_in, shown
from guided_plugin.grammar.llguidance.lark import HEADER
from guided_plugin.grammar.llguidance.lark.rules import LarkGrammar
from guided_plugin.grammar.llguidance.tokenizer import Tokenizers
from guided_plugin.spec import OutputSpec

_PIECE = re.compile(
    r"""(?P<skip>(?:\#|//)[^\n]*|[ \t]+) | (?P<text>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    | (?P<directive>%[a-z]+) | (?P<token><[^<>\s]+>) | (?P<option>(?:stop|temperature)[ \t]*=)
    | (?P<word>[\w-]+) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
"""The pieces that llguidance's own lexer tells apart, as far as it matters here."""

_DIRECTIVES = {
    "%json": "send it in a structural tag: docs/specs.md#structural-tags",
    "%lark": "write its rules next to the others",
    "%llguidance": "leave it out: the grammar alone says what the output looks like",
}
"""Directives that are refused, with what to do."""


def client_lark(spec: OutputSpec, tokens: Tokenizers) -> LarkGrammar:
    """Return the grammar that llguidance is given: one line, then a client's own
    lines."""
    source = spec.text
    ids = cache(tokens.ids)
    for piece in _PIECE.finditer(source):
        named = ids(piece[0]) if piece.lastgroup == "token" else frozenset()
        _check(source, piece, stops=not tokens.stops.isdisjoint(named))
    return LarkGrammar(f"{HEADER}{source}\n")


def _check(source: str, piece: re.Match[str], *, stops: bool) -> None:
    """Refuse what no grammar may have. `stops`: it names a stop token."""
    text = piece[0]
    if stops or (piece.lastgroup == "token" and text.startswith(("<[^", "<[*"))):
        what = f"{shown(text)} may be a stop token in the middle of the output"
        hint = "leave it out, also at the end: a complete output ends with one anyway"
    elif piece.lastgroup == "option":
        what = f"`{text}` in a rule is not enforced"
        hint = "leave it out; a text that ends a rule is written with suffix="
    elif piece.lastgroup == "directive" and text in _DIRECTIVES:
        what = f"{text} in a grammar is not supported"
        hint = _DIRECTIVES[text]
    else:
        return
    where = place_in("grammar", source, piece.start())
    raise UnsupportedSpecError(what, where=where, hint=hint)


def tokens_in(text: str) -> set[str]:
    """The tokens that a grammar names, as they are written."""
    if "<" not in text:
        return set()
    return {piece[0] for piece in _PIECE.finditer(text) if piece.lastgroup == "token"}
