"""Free text of structural tags, written out: up to a trigger, an end, or the end of the output.

A lexer reads the longest text that fits, so free text and the text that ends it are one lexeme.
Depends on nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.grammar.llguidance.tags.nodes import (
    EMPTY,
    Control,
    Dispatch,
    Either,
    Free,
    Node,
    Repeat,
    Text,
    Until,
    either,
    optional,
    sequence,
)
from guided_plugin.grammar.llguidance.tags.nodes import Sequence as Parts

Rule = tuple[str | int, Node]
"""A trigger, as a text or a control token, and what must follow it."""


class Names:
    """Control tokens by the names that a tag may write."""

    def __init__(self, names: Mapping[str, int]) -> None:
        # Shorter names would be found in texts that mean something else.
        self._names = {name: token for name, token in names.items() if len(name) >= 3}
        self._by_letter: dict[str, list[str]] = {}
        for name in sorted(self._names, key=len, reverse=True):
            self._by_letter.setdefault(name[0], []).append(name)

    def leading(self, text: str) -> tuple[int, str] | None:
        """The control token with whose name a text begins, and the rest."""
        name = next((name for name in self._by_letter.get(text[:1], ()) if text.startswith(name)), None)
        return None if name is None else (self._names[name], text[len(name) :])

    def inside(self, text: str) -> tuple[str, int, str] | None:
        """The first control token whose name is behind a text's first character, with the text around it."""
        for start in range(1, len(text)):
            found = self.leading(text[start:])
            if found is not None:
                return text[:start], *found
        return None

    def spelled(self, text: str) -> Node:
        """A text in which each name is a control token, or written as text."""
        parts: list[Node] = []
        plain = start = 0
        while start < len(text):
            found = self.leading(text[start:])
            if found is None:
                start += 1
                continue
            token, rest = found
            end = len(text) - len(rest)
            parts += [Text(text[plain:start])] if plain < start else []
            parts.append(Either((Control(token), Text(text[start:end]))))
            plain = start = end
        parts += [Text(text[plain:])] if plain < len(text) else []
        return sequence(parts)

    def triggered(self, trigger: str, begin: str, rest: Node) -> list[Rule]:
        """The rules of free text for a begin: behind its trigger, and behind its control token."""
        rules: list[Rule] = [(trigger, sequence([self.spelled(begin[len(trigger) :]), rest]))]
        led = self.leading(begin)
        if led is not None:
            rules.append((led[0], sequence([self.spelled(led[1]), rest])))
        elif self.inside(trigger) is not None:
            raise UnsupportedSpecError("a trigger with a control token in its middle", where="triggers")
        return rules


def written_out(node: Node) -> Node:
    """A node without `Dispatch`: free text may go on up to the end of the output."""
    match node:
        case Dispatch():
            tail = optional(Free(node.stops))
            return sequence([_calls(node), tail]) if node.loop else Either((_calls(node), tail))
        case Parts(parts):
            return sequence([written_out(part) for part in parts])
        case Either(options):
            return either([written_out(option) for option in options])
        case Repeat(part, low, high):
            return Repeat(written_out(part), low, high)
        case _:
            return node


def closed(node: Node, ends: Sequence[Node], names: Names) -> Node:
    """A node and one of the ends behind it; free text at the node's end becomes one with them."""
    if not _is_open(node):
        return sequence([node, _either_end(ends, names)])
    match node:
        case Dispatch():
            return _closed_dispatch(node, ends, names)
        case Parts(parts):
            return sequence([*parts[:-1], closed(parts[-1], ends, names)])
        case Either(options):
            return either([closed(option, ends, names) for option in options])
        case Repeat(part, 0, 1):
            return Either((closed(part, ends, names), _either_end(ends, names)))
        case _:
            raise UnsupportedSpecError(
                "free text that is repeated can't be told apart", where="structural_tag"
            )


def _is_open(node: Node) -> bool:
    """Whether free text may be last in a node."""
    match node:
        case Dispatch():
            return True
        case Parts(parts):
            return bool(parts) and _is_open(parts[-1])
        case Either(options):
            return any(map(_is_open, options))
        case Repeat(part, _, high):
            return high != 0 and _is_open(part)
        case _:
            return False


def _either_end(ends: Sequence[Node], names: Names) -> Node:
    return either([names.spelled(end.text) if isinstance(end, Text) else end for end in ends])


def _closed_dispatch(node: Dispatch, ends: Sequence[Node], names: Names) -> Node:
    endings: list[Node] = []
    for end in ends:
        if isinstance(end, Control):
            endings.append(sequence([optional(Free(node.stops)), end]))
        elif not isinstance(end, Text):
            raise UnsupportedSpecError("free text that nothing ends", where="structural_tag")
        else:
            stop = min((x for x in node.excludes if end.text.startswith(x)), key=len, default=None)
            if stop is None:
                raise UnsupportedSpecError(
                    "free text in front of a text that may occur in it",
                    where="structural_tag",
                    hint="write that text into `excludes`",
                )
            endings.append(sequence([_until(stop, node.stops), names.spelled(end.text[len(stop) :])]))
            endings += _ending_in_controls(end.text, stop, node.stops, names)
    if node.loop:
        return sequence([_calls(node), either(endings)])
    return (
        either([*endings, sequence([_calls(node), _either_end(ends, names)])])
        if node.rules
        else either(endings)
    )


def _ending_in_controls(end: str, stop: str, stops: Sequence[str], names: Names) -> list[Node]:
    """Free text up to an end whose stop is written with a control token."""
    led, inside = names.leading(end), names.inside(end)
    if led is not None:
        return [sequence([optional(Free(tuple(stops))), Control(led[0]), names.spelled(led[1])])]
    if inside is not None and len(inside[0]) < len(stop):
        before, token, rest = inside
        return [sequence([Free(tuple(stops), before), Control(token), names.spelled(rest)])]
    return []


def _calls(node: Dispatch) -> Node:
    """Free text and a trigger with what must follow: any number of times, or once where it doesn't loop."""
    if not node.rules:
        return EMPTY
    options = [
        sequence([_until(trigger, node.stops, node.excludes), written_out(rest)])
        for trigger, rest in node.rules
        if isinstance(trigger, str)
    ]
    led = [
        sequence([Control(trigger), written_out(rest)])
        for trigger, rest in node.rules
        if isinstance(trigger, int)
    ]
    if led:
        options.append(sequence([optional(Free(node.stops)), either(led)]))
    return Repeat(either(options), 0, None) if node.loop else either(options)


def _until(stop: str, stops: Sequence[str], excludes: Sequence[str] = ()) -> Until:
    """Text up to a stop, unless that is excluded. Raises where another stop always comes first."""
    if any(other in stop[:-1] for other in stops) or any(map(stop.endswith, excludes)):
        raise UnsupportedSpecError(
            f"{shown(stop)} is never reached: it has another trigger, end or excluded text in it",
            where="structural_tag",
        )
    return Until(stop, tuple(stops), tuple(sorted({each for each in excludes if each.endswith(stop)})))
