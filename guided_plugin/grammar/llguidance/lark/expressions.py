"""Expressions over characters as objects, and what their form tells. Depends on nothing.

`writer` turns them into text. Nothing reads that text again: what is asked of an
expression is asked here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

AND = " & "
"""All parts take the text."""
OR = " | "
"""One of the parts takes the text."""
THEN = " "
"""The parts take one piece of the text each, in their order."""


class Texts(NamedTuple):
    """One of several texts."""

    texts: tuple[str, ...]


class Regex(NamedTuple):
    """A regular expression."""

    source: str
    may_be_empty: bool = False
    """True if it may take no text at all."""


class Fragment(NamedTuple):
    """An expression that has a name, as several others need it."""

    name: str
    before: str = ""
    """A regular expression in front of it."""


class Opposite(NamedTuple):
    """All texts that an expression does not take."""

    part: Expression


class Group(NamedTuple):
    """Several expressions, joined by one of the operators above."""

    operator: str
    parts: tuple[Expression, ...]

    @property
    def intersects(self) -> bool:
        """True if several parts must take the same text."""
        return self.operator == AND and len(self.parts) > 1


Expression = Texts | Regex | Fragment | Opposite | Group


@dataclass(frozen=True, slots=True)
class Known:
    """The known facts about the texts of an expression."""

    texts: tuple[str, ...]
    """Short ones, the shortest first; none where they are to be found out."""
    most: int
    """The most bytes that may be missing, from any place in one."""
    marks: frozenset[str] = frozenset()
    """Characters that end a text, or make another one of it, where most may come."""
    form: str = ""
    """The kind of JSON value they are, if all are: `string` or `number`."""


def may_be_empty(expression: Expression) -> bool:
    """True if an expression may take no text: an intersection, or one with a part that
    may take none."""
    match expression:
        case Regex():
            return expression.may_be_empty
        case Group(operator, parts):
            if operator == OR:
                return all(map(may_be_empty, parts))
            return expression.intersects or any(map(may_be_empty, parts))
    return False


def fragments_of(expression: Expression) -> set[str]:
    """The names of the fragments in an expression."""
    match expression:
        case Fragment(name):
            return {name}
        case Opposite(part):
            return fragments_of(part)
        case Group():
            return set().union(*map(fragments_of, expression.parts))
    return set()
