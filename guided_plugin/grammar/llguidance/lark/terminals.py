"""How the grammar writes texts. Touches patterns and rules."""

from __future__ import annotations

import json
from collections.abc import Iterable

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.grammar.llguidance.lark.constraints import String
from guided_plugin.grammar.llguidance.lark.rules import Text

__all__ = [
    "COLON",
    "COMMA",
    "NULL",
    "excluding",
    "expression",
    "key_text",
    "lead",
    "matching",
]

NULL, COMMA, COLON = Text('"null"'), Text('","'), Text('":"')


def excluding(texts: Iterable[str]) -> list[str]:
    """A terminal part that refuses some string literals."""
    bodies = [key_text(text) for text in sorted(texts)]
    return [f"~({' | '.join(bodies)})"] if bodies else []


def matching(source: str) -> str:
    """A terminal part for a pattern; `~` before it is its complement."""
    found = patterns.pattern(source)
    parts = [expression(body) for body in found.positive] + [f"~{expression(b)}" for b in found.negative]
    return parts[0] if len(parts) == 1 else f"({' & '.join(parts)})"


def lead(string: String) -> str | None:
    """The characters that such a string may begin with in any number, where those are nearly all."""
    if (
        string.no_patterns
        or string.formats
        or string.no_formats
        or string.shortest
        or string.longest is not None
    ):
        return None
    leads = {patterns.pattern(source).lead for source in string.patterns}
    # Each pattern can still be met after what the others began with, so the narrowest lead will do.
    narrow = leads - {patterns.ANY_CHARACTER}
    if None in leads or len(narrow) > 1:
        return None
    return next(iter(narrow or leads), None)


def expression(body: str) -> str:
    """A regular expression as the grammar writes it."""
    return "/" + body.replace("/", "\\/") + "/"


def key_text(text: str) -> str:
    """A JSON string literal as a literal of the grammar."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedSpecError(
            f"has a lone surrogate, which no text can hold: {text!r}", where="json_schema"
        ) from error
    return json.dumps(json.dumps(text, ensure_ascii=False), ensure_ascii=False)
