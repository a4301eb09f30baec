"""The texts that a regular expression allows, as a tree without anchors and lookahead.
Depends on ecma.

Anchors and lookahead say something about what comes before or after them, so a pattern
is read from its end: each part becomes a language together with all that follows it, at
the start of the text and elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.spec.ecma import (
    ANY,
    Alternation,
    Anchor,
    Both,
    Characters,
    Look,
    Node,
    Not,
    Repeat,
    Sequence,
    children,
    parse,
)
from guided_plugin.spec.memo import remembered, texts_bytes

ANYTHING = Repeat(ANY, 0, None)
_SOMETHING = Repeat(ANY, 1, None)
EMPTY = Sequence()
NOTHING = Characters()
"""Matches no text."""

_MOST_NODES = 20_000
"""Nodes of a tree besides what its pattern has: anchors in optional parts may double
what follows them. Chosen, not measured."""


def tree_bytes(source: str, tree: Node) -> int:
    """About what a pattern and its tree take: 40 to 90 bytes a node, and parts that
    occur twice are one."""
    seen: set[int] = set()
    open_nodes = [tree]
    count = 0
    while open_nodes:
        node = open_nodes.pop()
        if id(node) not in seen:
            seen.add(id(node))
            count += 1 + (len(node.ranges) if isinstance(node, Characters) else 0)
            open_nodes.extend(children(node))
    return texts_bytes(source) + 100 * count


@remembered(tree_bytes)
def searched(source: str) -> Node:
    """The whole texts in which a pattern is found somewhere."""
    return _resolved(source, [ANYTHING, *flat(parse(source)), ANYTHING])


@remembered(tree_bytes)
def whole(source: str) -> Node:
    """The texts that a pattern matches from the first to the last character."""
    return _resolved(source, flat(parse(source)))


def _resolved(source: str, parts: list[Node]) -> Node:
    try:
        return (
            _Resolver(_MOST_NODES + 10 * len(source)).followed(parts, _end)(True)
            or NOTHING
        )
    except _NotRegularError as error:
        raise UnsupportedSpecError(
            f"{error}: {shown(source)}",
            where="pattern",
            hint="write the pattern without it",
        ) from None
    except RecursionError:
        raise UnsupportedSpecError(
            "is nested too deep", where="pattern", hint="flatten it"
        ) from None


def flat(node: Node) -> list[Node]:
    """The parts of a sequence, those of sequences inside it included."""
    if isinstance(node, Sequence):
        return [part for inner in node.parts for part in flat(inner)]
    return [node]


def nullable(node: Node) -> bool:
    """True if a part without anchors and lookahead matches the empty text."""
    match node:
        case Sequence(parts) | Both(parts):
            return all(map(nullable, parts))
        case Alternation(options):
            return any(map(nullable, options))
        case Repeat(part, low, _):
            return low == 0 or nullable(part)
        case Not(part):
            return not nullable(part)
        case _:
            return False


class _NotRegularError(Exception):
    """A tree without anchors and lookahead doesn't express it, or not in a reasonable
    size."""


_Then = Callable[[bool], Node | None]
"""The rest behind a part up to the end of the text, given whether the text starts
there; None: no text."""


def _end(start: bool) -> Node | None:
    return EMPTY


class _Resolver:
    """Reads a pattern from its end: an end anchor asks whether what follows may be
    empty, and a lookahead intersects with what follows."""

    def __init__(self, most: int) -> None:
        self.left = most

    def spend(self, nodes: int) -> None:
        self.left -= nodes
        if self.left < 0:
            raise _NotRegularError("anchors or lookahead at too many places")

    def followed(self, parts: Iterable[Node], then: _Then) -> _Then:
        """Parts in a row, and then the rest."""
        for part in reversed(_grouped(parts)):
            then = cache(partial(self.at, part, then))
        return then

    def at(self, node: Node, then: _Then, start: bool) -> Node | None:
        """A part and what follows it, at the start of the text or not."""
        if _free(node):
            self.spend(sum(1 for _ in _nodes(node)))
            if start and nullable(node) and then(True) != then(False):
                if node != ANYTHING:
                    raise _NotRegularError("a part that may be empty before a `^`")
                return _any_of([then(True), _joined(_SOMETHING, then(False))])
            return _joined(node, then(False))
        self.spend(1)
        match node:
            case Anchor(at_start):
                if at_start:
                    return then(start) if start else None
                return _empty_only(then(start))
            case Look(inner, negated):
                ahead = self.followed([*flat(inner), ANYTHING], _end)(start)
                return _both([then(start), _opposite(ahead) if negated else ahead])
            case Sequence():
                return self.followed(flat(node), then)(start)
            case Alternation(options):
                plain = tuple(filter(_free, options))
                others = [option for option in options if not _free(option)]
                parts = [Alternation(plain), *others] if plain else others
                return _any_of([self.at(part, then, start) for part in parts])
            case Repeat():
                return self.repeated(node, then, start)
        raise _NotRegularError("a lookahead in an unknown place")

    def repeated(self, repeat: Repeat, then: _Then, start: bool) -> Node | None:
        """A repetition of a part with anchors or lookahead: such a part may be left
        out, and no more."""
        if repeat.high == 0:
            return then(start)
        if repeat.high != 1:
            raise _NotRegularError("an anchor or a lookahead inside a repetition")
        once = self.followed(flat(repeat.part), then)
        return _any_of([then(start) if repeat.low == 0 else None, once(start)])


def _empty_only(rest: Node | None) -> Node | None:
    return EMPTY if rest is not None and nullable(rest) else None


def _grouped(parts: Iterable[Node]) -> list[Node]:
    """The parts with neighbours joined that have no anchors: each step of a chain has
    one then."""
    groups: list[list[Node]] = []
    for part in parts:
        if groups and _free(part) and _free(groups[-1][-1]):
            groups[-1].append(part)
        else:
            groups.append([part])
    trimmed = map(_trimmed, groups)
    return [
        group[0] if len(group) == 1 else Sequence(tuple(group)) for group in trimmed
    ]


def _trimmed(parts: list[Node]) -> list[Node]:
    """Return a simpler tree of the same language. Next to what may be anything, a part
    that may be empty says nothing."""
    start = 0
    end = len(parts)
    while end - start > 1 and parts[start] == ANYTHING and nullable(parts[start + 1]):
        parts[start + 1] = ANYTHING
        start += 1
    while end - start > 1 and parts[end - 1] == ANYTHING and nullable(parts[end - 2]):
        parts[end - 2] = ANYTHING
        end -= 1
    return parts[start:end]


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _nodes(child)


def _free(node: Node) -> bool:
    return not any(isinstance(each, Anchor | Look) for each in _nodes(node))


def _joined(first: Node | None, second: Node | None) -> Node | None:
    if first is None or second is None:
        return None
    parts = _trimmed([*flat(first), *flat(second)])
    return parts[0] if len(parts) == 1 else Sequence(tuple(parts))


def _any_of(options: list[Node | None]) -> Node | None:
    found: dict[Node, None] = {}
    for option in options:
        inner = option.options if isinstance(option, Alternation) else (option,)
        found.update(dict.fromkeys(each for each in inner if each is not None))
    if ANYTHING in found:
        return ANYTHING
    return next(iter(found), None) if len(found) < 2 else Alternation(tuple(found))


def _both(parts: list[Node | None]) -> Node | None:
    """Return the intersection of parts, of which one at least is no `Not`: that one
    says what texts there are."""
    found: dict[Node, None] = {}
    for part in parts:
        if part is None:
            return None
        found.update(dict.fromkeys(part.parts if isinstance(part, Both) else (part,)))
    found.pop(ANYTHING, None)
    if all(isinstance(part, Not) for part in found):
        found = {ANYTHING: None, **found}
    return next(iter(found)) if len(found) == 1 else Both(tuple(found))


def _opposite(node: Node | None) -> Node | None:
    if node is None:
        return ANYTHING
    return None if node == ANYTHING else Both((ANYTHING, Not(node)))
