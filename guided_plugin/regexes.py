"""What regular expressions can't do in a grammar. Touches nothing.

Backends differ in what they refuse: some take lookaround and ignore it. One scan here decides.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Construct", "unsupported_construct"]


class Construct(NamedTuple):
    """A part of a regular expression that a grammar can't express."""

    name: str
    position: int


_GROUPS = {"?=": "lookahead", "?!": "lookahead", "?<=": "lookbehind", "?<!": "lookbehind"}


def unsupported_construct(pattern: str) -> Construct | None:
    """The first lookaround, backreference or word boundary in a pattern, or None."""
    position, in_class = 0, False
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            following = pattern[position + 1 : position + 2]
            if not in_class and (following in ("b", "B") and following):
                return Construct("a word boundary", position)
            if not in_class and (following.isdigit() and following != "0"):
                return Construct("a backreference", position)
            if not in_class and following == "k" and pattern[position + 2 : position + 3] == "<":
                return Construct("a backreference", position)
            position += 2
            continue
        if in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        elif character == "(":
            for opening, name in _GROUPS.items():
                if pattern.startswith(opening, position + 1):
                    return Construct(name, position)
        position += 1
    return None
