"""EBNF of clients as xgrammar reads it. Depends on errors.

xgrammar 0.2.8 reads some texts otherwise than they are meant, and lets a grammar name
tokens. These are written out or refused, each with its place.
"""

from __future__ import annotations

import re

from guided_plugin.errors import UnsupportedSpecError, place_in

_IN_TEXT = r'(?:\\.|[^"\\\n])'
_IN_CLASS = r"(?:\\.|[^\]\\\n])"
_SURROGATE = r"\\(?:u|U0000)[dD][89a-fA-F]"

_PIECE = re.compile(
    rf"""(?P<skip>\s+|\#[^\n]*) | (?P<head>[\w.-]+\s*::=)
    | (?P<refused>\w*(?:Token|TagDispatch|Regex)\s*\( | (?:"{_IN_TEXT}*?|\[{_IN_CLASS}*?){_SURROGATE})
    | (?P<word>[\w.-]+) | (?P<branch>\|) | (?P<open>\() | (?P<close>\))
    | (?P<quoted>"{_IN_TEXT}*"|\[{_IN_CLASS}*\]) | (?P<other>\{{[^}}]*\}} | .)""",
    re.VERBOSE | re.DOTALL,
)
_REFUSED = (
    (
        "\\",
        "half of a character has no bytes",
        "write the whole character, or its code as \\U0001f600",
    ),
    ("Regex", "xgrammar takes more than it says", "write it as texts and classes"),
    (
        "",
        "a token may end the output in the middle",
        "write the text that it stands for in quotes",
    ),
)
"""The first that is part of a refused piece says why, and what to write instead."""

_BEFORE_ALTERNATIVE = ("head", "branch", "open")
_BEHIND_ALTERNATIVE = ("head", "branch", "close")


def client_ebnf(source: str) -> str:
    """Return a client's grammar with two things that llama.cpp's dialect has written
    out: `""` for an empty alternative, and a class for a dot."""
    parts: list[str] = []
    before = ""
    last = 0
    for piece in _PIECE.finditer(source):
        kind = str(piece.lastgroup)
        if kind == "refused":
            raise _refusal(source, piece)
        if kind != "skip":
            if before in _BEFORE_ALTERNATIVE and kind in _BEHIND_ALTERNATIVE:
                parts[last] += ' ""'
            before = kind
            last = len(parts)
        parts.append(r"[\0-\U0010ffff]" if piece[0] == "." else piece[0])
    if before in _BEFORE_ALTERNATIVE:
        parts[last] += ' ""'
    return "".join(parts)


def _refusal(source: str, piece: re.Match[str]) -> UnsupportedSpecError:
    text = piece[0].rstrip("( ")
    why, hint = next(reasons for part, *reasons in _REFUSED if part in text)
    return UnsupportedSpecError(
        f"`{text}` is not supported: {why}",
        where=place_in("grammar", source, piece.start()),
        hint=hint,
    )


_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|.)", re.DOTALL)
_UNIT = r"(?:\\U[0-9a-fA-F]{8}|\\u[0-9a-fA-F]{4}|\\.|[^\\])"
_RANGE = re.compile(rf"({_UNIT})(?:-({_UNIT}))?", re.DOTALL)


def exact_ebnf(source: str) -> str:
    r"""Return a grammar that xgrammar reads as the source is meant: it would read more
    than two digits behind `\x`, and its classes would take surrogates, whose bytes are
    not UTF-8."""
    return _PIECE.sub(_exact, source)


def _exact(piece: re.Match[str]) -> str:
    if piece.lastgroup != "quoted":
        return piece[0]
    text = _CODE.sub(_four_digits, piece[0])
    if text.startswith('"'):
        return text
    if text.startswith("[^"):
        return rf"[^\ud800-\udfff{text[2:]}"
    ranges = _RANGE.sub(_without_surrogates, text[1:-1])
    return f"[{ranges}]"


def _four_digits(code: re.Match[str]) -> str:
    return rf"\u00{code[1]}" if code[1] else code[0]


def _without_surrogates(part: re.Match[str]) -> str:
    low, high = part.groups()
    if high is None or _value(low) > 0xDFFF or _value(high) < 0xD800:
        return part[0]
    return rf"{low}-\ud7ff\ue000-{high}"


def _value(unit: str) -> int:
    """The code point of a character as a class writes it: exact where it may be beyond
    ASCII."""
    return int(unit[2:], 16) if len(unit) > 2 else ord(unit[-1])
