"""Regular expressions as grammars take them. Touches errors.

Backends differ in what they refuse: some take lookaround and ignore it, some write a pattern's quote
into a JSON string as it is. Two scans here decide for all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from guided_plugin.errors import UnsupportedSpecError

__all__ = [
    "Construct",
    "control_in_class",
    "counted_options",
    "misplaced_anchor",
    "quoted_pattern",
    "refuse_unsupported",
    "spelt_out_classes",
    "unsupported_construct",
    "wide_class",
]


class Construct(NamedTuple):
    """A part of a regular expression that a grammar can't express."""

    name: str
    position: int


class _Atom(NamedTuple):
    """A piece of a pattern: an escape, an opening bracket of a group, or a single character."""

    text: str
    position: int
    in_class: bool


_ESCAPE = re.compile(
    r"\\(?:u\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|c[A-Za-z]|[pP]\{[^}]*\}|k<|.)", re.DOTALL
)
_GROUPS = {"(?=": "lookahead", "(?!": "lookahead", "(?<=": "lookbehind", "(?<!": "lookbehind"}
_CONTROLS = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\f": "\f", "\\v": "\v", "\\0": "\0"}
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\b": "\\b"}


def unsupported_construct(pattern: str) -> Construct | None:
    """The first lookaround, backreference or word boundary in a pattern, or None."""
    for text, position, in_class in _atoms(pattern):
        if in_class:
            continue
        if text in _GROUPS:
            return Construct(_GROUPS[text], position)
        if text in ("\\b", "\\B"):
            return Construct("a word boundary", position)
        if text == "\\k<" or (len(text) == 2 and text[0] == "\\" and text[1] in "123456789"):
            return Construct("a backreference", position)
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
    for text, position, in_class in _atoms(pattern):
        # Inside [ ] it is a backspace, elsewhere a word boundary.
        literal = "\b" if text == "\\b" else _literal(text)
        if in_class and literal is not None and literal < " ":
            return Construct("a control character in [ ]", position)
    return None


# Classes that hold letters, digits and harmless signs only.
_PLAIN_CLASS = re.compile(r"\[(?:[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9_ .:/+@#,]|\\[dw./+-])*-?\]")


def wide_class(pattern: str) -> Construct | None:
    """The first class that may hold a quote, a backslash or a control character, or None."""
    for text, position, in_class in _atoms(pattern):
        if in_class:
            continue
        if text == "[" and not _PLAIN_CLASS.match(pattern, position):
            return Construct("a class", position)
        if text == "." or text in ("\\S", "\\W", "\\D", "\\s") or text[:2] in ("\\p", "\\P"):
            return Construct("a class", position)
    return None


def quoted_pattern(pattern: str) -> str:
    r"""The pattern with literal quotes, backslashes and control characters as JSON escapes them.

    A pattern speaks of a string's value; a backend that matches the text between the quotes needs `"`
    to be `\"` there.
    """
    parts = []
    for text, _, in_class in _atoms(pattern):
        literal = None if in_class else _literal(text)
        if literal is None or not (literal in _SHORT or literal < " "):
            parts.append(text)
            continue
        escaped = _SHORT.get(literal, f"\\u{ord(literal):04x}")
        # A group, so that a quantifier behind it takes the whole escape.
        parts.append("(?:" + escaped.replace("\\", "\\\\") + ")")
    return "".join(parts)


def spelt_out_classes(pattern: str) -> str:
    r"""The pattern with `[^]`, any character, as `[\s\S]`, and `[]`, none, as `[^\s\S]`.

    ECMAScript has both; to most others the bracket after them is the class's first character.
    """
    parts: list[str] = []
    opened = 0
    for text, _, in_class in _atoms(pattern):
        if text == "[" and not in_class:
            opened = len(parts)
        elif text == "]" and in_class and parts[opened:] in (["["], ["[", "^"]):
            parts[opened:] = [r"[^\s\S" if len(parts) - opened == 1 else r"[\s\S"]
        parts.append(text)
    return "".join(parts)


def counted_options(pattern: str) -> str:
    """The pattern with `x?` written as `x{0,1}`, and without the marks of lazy quantifiers.

    xgrammar 0.2.8 lets a match enter an optional group in the middle: `(?:ab+)?` takes "b".
    """
    parts: list[str] = []
    before = ""
    for piece in _PIECE.finditer(pattern):
        text = piece[0]
        if text == "?":
            # Behind another quantifier it changes which match is found first, not which texts match.
            text = "" if before == "quantifier" else "{0,1}"
        parts.append(text)
        before = str(piece.lastgroup)
    return "".join(parts)


def misplaced_anchor(pattern: str) -> Construct | None:
    """The first `^` after, or `$` before, a part that may match characters, or a repeated anchor.

    Such a pattern matches nothing, or not what a reader expects; xgrammar drops the anchor.
    """
    # For each open group: the state where each branch starts, and the state after its branches so far.
    groups: list[tuple[_Reach, _Reach]] = []
    start, here, group = _Reach(), _Reach(), _Reach()
    before = ""
    for piece in _PIECE.finditer(pattern):
        kind, text = str(piece.lastgroup), piece[0]
        if kind == "open":
            groups.append((start, _Reach()))
            start = here = here._replace(anchored=False)
        elif text == "|":
            if groups:
                groups[-1] = groups[-1][0], groups[-1][1].joined(here)
            here = start
        elif text == ")" and groups:
            start, branches = groups.pop()
            group = here = here.joined(branches)
        elif kind == "anchor":
            if text == "^" and (here.ended or here.consumed):
                return Construct(f"`{text}` in the middle", piece.start())
            here = here._replace(ended=text == "$", anchored=True)
        elif kind == "quantifier" and text != "?":
            if before == "anchor" or (before == ")" and group.anchored):
                return Construct("a repeated anchor", piece.start())
        elif kind in ("escape", "class", "atom"):
            if here.ended:
                return Construct("`$` in the middle", piece.start())
            here = here._replace(consumed=True)
        before = ")" if text == ")" else kind
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


_PIECE = re.compile(
    rf"(?P<escape>{_ESCAPE.pattern})|(?P<flags>\(\?[a-zA-Z-]+\))"
    r"|(?P<open>\((?:\?(?:[:=!]|<[=!]|P?<\w+>|[a-zA-Z-]+:))?)|(?P<branch>[|)])|(?P<anchor>[\^$])"
    r"|(?P<quantifier>[*+?]|\{\d+(?:,\d*)?\})|(?P<class>\[(?:\\.|[^\]\\])*\])|(?P<atom>.)",
    re.DOTALL,
)


def _atoms(pattern: str) -> Iterator[_Atom]:
    position, in_class = 0, False
    while position < len(pattern):
        escape = _ESCAPE.match(pattern, position)
        text = escape[0] if escape else pattern[position]
        if not escape and not in_class and text == "(":
            text = next((group for group in _GROUPS if pattern.startswith(group, position)), text)
        yield _Atom(text, position, in_class)
        if text == "[":
            in_class = True
        elif text == "]":
            in_class = False
        position += len(text)


def _literal(text: str) -> str | None:
    """The one character that an atom stands for, or None for anything else."""
    if text in _CONTROLS:
        return _CONTROLS[text]
    if text == "\\\\":
        return "\\"
    if len(text) > 2 and text[:2] in ("\\x", "\\u"):
        code = int(text[2:].strip("{}"), 16)
        return chr(code) if code <= 0x10FFFF else None
    if len(text) == 3 and text[:2] == "\\c":
        return chr(ord(text[2]) % 32)
    if text == '\\"':
        return '"'
    return text if len(text) == 1 and (text == '"' or text < " ") else None
