"""Regular expressions: a scanner, and what grammars can't express. Depends on errors.

The scanner takes every text, also malformed ones and the dialects of backends. What needs the structure of a
pattern reads its pieces.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from guided_plugin.errors import UnsupportedSpecError


class Piece(NamedTuple):
    """A piece of a pattern."""

    kind: str
    """`escape`, `flags`, `open` and `close` (of a group), `branch`, `anchor`, `quantifier`, `class` (its
    opening bracket), `end` (of a class) or `atom`: any other character, the dot included."""
    text: str
    position: int
    in_class: bool = False
    """Whether it lies in a class or ends one."""


class Construct(NamedTuple):
    """A part of a regular expression that a grammar can't express."""

    name: str
    position: int


# A pair of surrogates is one character. Of a malformed escape, the backslash and one character are a piece.
_ESCAPE = (
    r"(?P<escape>\\(?:u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}"
    r"|x[0-9A-Fa-f]{2}|c[A-Za-z]|[pP]\{[^}]*\}?|k<|.))"
)
_PIECE = re.compile(
    rf"{_ESCAPE}|(?P<flags>\(\?[a-zA-Z-]+\))"
    r"|(?P<open>\((?:\?(?:[:=!]|<[=!]|P?<[^>]+>|[a-zA-Z-]+:))?)|(?P<close>\))|(?P<branch>\|)|(?P<anchor>[\^$])"
    r"|(?P<quantifier>[*+?]|\{[0-9]+(?:,[0-9]*)?\})|(?P<class>\[(?:\\.|[^\]\\])*\]?)|(?P<atom>.)",
    re.DOTALL,
)
_IN_CLASS = re.compile(rf"{_ESCAPE}|(?P<end>\])|(?P<atom>.)", re.DOTALL)


def scan(pattern: str) -> Iterator[Piece]:
    """The pieces of a pattern, in order; together they are its text."""
    for found in _PIECE.finditer(pattern):
        start, kind = found.start(), str(found.lastgroup)
        if kind != "class":
            yield Piece(kind, found[0], start)
            continue
        yield Piece("class", "[", start)
        for inner in _IN_CLASS.finditer(pattern, start + 1, found.end()):
            yield Piece(str(inner.lastgroup), inner[0], inner.start(), in_class=True)


_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}


def character(text: str) -> str | None:
    """The one character that an escape or atom stands for; None for classes, assertions, broken escapes."""
    if len(text) < 2:
        return text if text != "\\" else None
    letter, rest = text[1], text[2:].strip("{}")
    if letter in "xu":
        codes = [int(digits, 16) for digits in rest.split("\\u") if digits]
        if len(codes) == 2:
            return chr(0x10000 + ((codes[0] - 0xD800) << 10) + codes[1] - 0xDC00)
        return chr(codes[0]) if codes and codes[0] <= sys.maxunicode else None
    if letter == "c":
        return chr(ord(rest) % 32) if rest else None
    if letter in "dDwWsSbBkpP123456789":
        return None
    return _CONTROLS.get(letter, letter)


_LOOKAROUND = {"(?=": "lookahead", "(?!": "lookahead", "(?<=": "lookbehind", "(?<!": "lookbehind"}


def unsupported_construct(pattern: str) -> Construct | None:
    """The first lookaround, backreference or word boundary in a pattern, or None."""
    for piece in scan(pattern):
        name = _LOOKAROUND.get(piece.text)
        if piece.kind == "escape" and not piece.in_class:
            if piece.text[1] in "bB":
                name = "a word boundary"
            elif piece.text == "\\k<" or piece.text[1] in "123456789":
                name = "a backreference"
        if name is not None:
            return Construct(name, piece.position)
    return None


def refuse_unsupported(pattern: str, where: str) -> None:
    """Raise for a regular expression that no grammar expresses."""
    construct = unsupported_construct(pattern)
    if construct is not None:
        raise UnsupportedSpecError(
            f"{construct.name} is not supported",
            where=f"{where}, character {construct.position}",
            hint="rewrite it without: grammars match text from left to right, once",
        )


def control_in_class(pattern: str) -> Construct | None:
    """The first control character inside [ ], which a JSON string can only hold as an escape, or None."""
    for piece in scan(pattern):
        # Inside [ ] it is a backspace, elsewhere a word boundary.
        literal = "\b" if piece.text == "\\b" else character(piece.text)
        if piece.in_class and literal is not None and literal < " ":
            return Construct("a control character in [ ]", piece.position)
    return None


# Classes that hold letters, digits and harmless signs only.
_PLAIN_CLASS = re.compile(r"\[(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9_ .:/+@#,]|\\[dw./+-])*-?\]")


def wide_class(pattern: str) -> Construct | None:
    """The first class that may hold a quote, a backslash or a control character, or None."""
    for kind, text, position, in_class in scan(pattern):
        wide = text in (".", "\\S", "\\W", "\\D", "\\s") or text[:2] in ("\\p", "\\P")
        wide = wide or (kind == "class" and not _PLAIN_CLASS.match(pattern, position))
        if wide and not in_class:
            return Construct("a class", position)
    return None


_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\b": "\\b"}


def quoted_pattern(pattern: str) -> str:
    r"""The pattern with literal quotes, backslashes and control characters as JSON escapes them.

    A pattern is about a string's value; a backend that matches the text between the quotes needs `"`
    to be `\"` there.
    """
    parts = []
    for kind, text, _, in_class in scan(pattern):
        literal = character(text) if kind in ("escape", "atom") and not in_class else None
        if literal is None or not (literal in _SHORT or literal < " "):
            parts.append(text)
            continue
        escaped = _SHORT.get(literal, f"\\u{ord(literal):04x}")
        # A group, so that a quantifier behind it takes the whole escape.
        parts.append("(?:" + escaped.replace("\\", "\\\\") + ")")
    return "".join(parts)


_NO_MEMBERS = {"[]": r"[^\s\S]", "[^]": r"[\s\S]"}


def spelt_out_classes(pattern: str) -> str:
    r"""The pattern with `[^]`, any character, as `[\s\S]`, and `[]`, none, as `[^\s\S]`.

    ECMAScript has both; to most others the bracket after them is the class's first character.
    """
    return "".join(
        _NO_MEMBERS.get(found[0], found[0]) if found.lastgroup == "class" else found[0]
        for found in _PIECE.finditer(pattern)
    )


def counted_options(pattern: str) -> str:
    """The pattern with `x?` written as `x{0,1}`, and without the marks of lazy quantifiers.

    xgrammar 0.2.8 lets a match enter an optional group in the middle: `(?:ab+)?` takes "b".
    """
    parts: list[str] = []
    before = ""
    for kind, text, _, _ in scan(pattern):
        if kind == "quantifier" and text == "?":
            # Behind another quantifier it changes which match is found first, not which texts match.
            text = "" if before == "quantifier" else "{0,1}"
        parts.append(text)
        before = kind
    return "".join(parts)


def misplaced_anchor(pattern: str) -> Construct | None:
    """The first `^` after, or `$` before, a part that may match characters, or a repeated anchor.

    Such a pattern matches nothing, or not what a reader expects; xgrammar drops the anchor.
    """
    # For each open group: the state where each branch starts, and the state after its branches so far.
    groups: list[tuple[_Reach, _Reach]] = []
    start, here, group = _Reach(), _Reach(), _Reach()
    before = ""
    for kind, text, position, in_class in scan(pattern):
        if in_class:
            continue
        if kind == "open":
            groups.append((start, _Reach()))
            start = here = here._replace(anchored=False)
        elif kind == "branch":
            if groups:
                groups[-1] = groups[-1][0], groups[-1][1].joined(here)
            here = start
        elif kind == "close" and groups:
            start, branches = groups.pop()
            group = here = here.joined(branches)
        elif kind == "anchor":
            if text == "^" and (here.ended or here.consumed):
                return Construct(f"`{text}` in the middle", position)
            here = here._replace(ended=text == "$", anchored=True)
        elif kind == "quantifier" and text != "?":
            if before == "anchor" or (before == "close" and group.anchored):
                return Construct("a repeated anchor", position)
        elif kind in ("escape", "class", "atom"):
            if here.ended:
                return Construct("`$` in the middle", position)
            here = here._replace(consumed=True)
        before = kind
    return None


class _Reach(NamedTuple):
    """What lies before a place in a pattern."""

    consumed: bool = False
    """A part that may match characters."""
    ended: bool = False
    """A `$`."""
    anchored: bool = False
    """An anchor in the innermost group."""

    def joined(self, other: _Reach) -> _Reach:
        """What may lie before a place that two branches lead to."""
        return _Reach(*(a or b for a, b in zip(self, other, strict=True)))
