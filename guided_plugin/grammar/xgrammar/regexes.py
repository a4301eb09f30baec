"""Regular expressions of whole texts as xgrammar reads them. Depends on spec/languages."""

from __future__ import annotations

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.spec.ecma import (
    MAX_CODE,
    Alternation,
    Characters,
    Node,
    Ranges,
    Repeat,
    Sequence,
    complement,
    meet,
)
from guided_plugin.spec.languages import times, whole
from guided_plugin.spec.memo import remembered, texts_bytes
from guided_plugin.spec.properties import property_ranges

_TEXT: Ranges = ((1, 0xD7FF), (0xE000, MAX_CODE))
"""All but surrogates, which are not characters, and NUL, which xgrammar reads as nothing."""


@remembered(texts_bytes)
def whole_regex(source: str) -> str:
    """A regular expression for whole texts."""
    text = _expression(whole(source))
    if text is None:
        hint = "look for an empty class, for anchors in the middle, or for NUL, which xgrammar can't match"
        raise UnsupportedSpecError(f"no text matches {shown(source)}", where="pattern", hint=hint)
    return text or "(?:)"  # in structural tags an empty one is an error


def _expression(node: Node) -> str | None:
    """A tree in xgrammar's syntax; None where it matches nothing."""
    match node:
        case Characters():
            return _class(meet(ranges_of(node), _TEXT))
        case Sequence(parts):
            texts = [_expression(part) for part in parts]
            return None if None in texts else "".join(filter(None, texts))
        case Alternation(options):
            found = [text for option in options if (text := _expression(option)) is not None]
            return f"(?:{'|'.join(found)})" if found else None
        case Repeat(part, low, high):
            text = _expression(part)
            if not text or high == 0:
                return None if text is None and low else ""
            # A match may enter an optional group in the middle if `?` makes it optional.
            return f"(?:{text})" + ("{0,1}" if (low, high) == (0, 1) else times(low, high))
    raise UnsupportedSpecError(
        "lookahead is not enforced by xgrammar",
        where="pattern",
        hint="use the backend `llguidance`, or write the pattern without it",
    )


def ranges_of(node: Characters) -> Ranges:
    """The code points of one character, by their ends."""
    ranges = list(node.ranges)
    for name in node.properties:
        known = property_ranges(name)
        if known is None:
            what, hint = f"\\{name} is not enforced by xgrammar", "write out the ranges"
            raise UnsupportedSpecError(what, where="pattern", hint=hint)
        ranges += known
    return complement(tuple(ranges)) if node.negated else tuple(ranges)


def _class(ranges: Ranges) -> str | None:
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _code(ranges[0][0])
    body = "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in ranges)
    return f"[{body}]" if body else None


def _code(code: int) -> str:
    # It reads more than two digits behind \x.
    return chr(code) if code < 128 and chr(code).isalnum() else f"\\u{{{code:x}}}"
