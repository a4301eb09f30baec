"""Literal and free texts of a structural tag as nodes: control tokens by their names,
and free text up to what ends it. Depends on nodes and fields.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from guided_plugin.errors import shown
from guided_plugin.grammar.llguidance.tags.fields import refusal
from guided_plugin.grammar.llguidance.tags.nodes import (
    EMPTY,
    Control,
    Either,
    Free,
    Node,
    Text,
    either,
    optional,
    sequence,
)
from guided_plugin.spec.references import Path

_SHORTEST_NAME = 3
"""Characters. Shorter names occur in texts that mean something else."""


class Texts:
    """Texts of one structural tag. A control token's name stands for the token, or for
    the same text in other tokens."""

    def __init__(self, controls: Mapping[int, str]) -> None:
        self._tokens = {
            name: token
            for token, name in controls.items()
            if len(name) >= _SHORTEST_NAME
        }

    def spelled(self, text: str) -> Node:
        """A literal text."""
        parts: list[Node] = []
        for index, piece in enumerate(self._pieces(text)):
            if index % 2:
                control = Control(self._tokens[piece])
                parts.append(Either((control, Text(piece))))
            elif piece:
                parts.append(Text(piece))
        return sequence(parts)

    def one_of(self, texts: Collection[str]) -> Node:
        """One of several literal texts; nothing where there are none."""
        return either(map(self.spelled, texts)) if texts else EMPTY

    def free(
        self,
        stops: tuple[str, ...],
        enders: Collection[str],
        goals: Iterable[tuple[str, Node]],
        path: Path,
    ) -> Node:
        """Free text up to the first of its stops, and the goal that begins with it.

        `enders`: the stops with which goals begin. A goal is a text, and what must
        follow it.
        """
        followers: dict[tuple[str, Control | None], list[Node]] = {}
        for text, then in goals:
            begins = filter(text.startswith, enders)
            stop = min(begins, key=len, default=None)
            if stop is None:
                raise refusal(
                    f"free text before {shown(text)}, which may occur in it,",
                    path,
                    "let it begin with a trigger, or with a text of `excludes`",
                )
            _check_reached(stop, stops, path)
            rest = sequence([self.spelled(text.removeprefix(stop)), then])
            followers.setdefault((stop, None), []).append(rest)
            before, *names = self._pieces(text)
            if names and len(before) < len(stop):
                behind = self.spelled("".join(names[1:]))
                key = (before, Control(self._tokens[names[0]]))
                followers.setdefault(key, []).append(sequence([behind, then]))
        options: list[Node] = []
        for (ending, control), rests in followers.items():
            free = Free(stops, ending)
            parts: list[Node] = [free if ending else optional(free)]
            if control is not None:
                parts.append(control)
            options.append(sequence([*parts, either(rests)]))
        return either(options)

    def _pieces(self, text: str) -> list[str]:
        """A text cut around the names of control tokens in it: every second piece is
        one."""
        names = [name for name in self._tokens if name in text]
        if not names:
            return [text]
        # Where several names begin, the longest one is meant.
        longest_first = sorted(map(re.escape, names), key=len, reverse=True)
        return re.split(f"({'|'.join(longest_first)})", text)


def _check_reached(stop: str, stops: Iterable[str], path: Path) -> None:
    """Refuse a stop with which, or before which, another one ends."""
    others = [other for other in stops if other != stop]
    if any(other in stop or other.endswith(stop) for other in others):
        what = f"{shown(stop)} next to a trigger, end or excluded text that it contains, or that ends with it,"
        raise refusal(what, path)
