"""The texts that a regular expression allows, as a tree without anchors and lookahead. Depends on ecma.

An anchor holds or not depending on whether something comes before or after it, so each part is resolved for
the places where it may stand: at the start of the text or not, at its end or not. A lookahead says something
about the rest of the text, so it becomes an intersection with all that follows it.
"""

from __future__ import annotations

from collections.abc import Iterable

from guided_plugin.errors import UnsupportedSpecError, shown
from guided_plugin.spec.ecma import (
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

ANY = Characters(negated=True)
ANYTHING = Repeat(ANY, 0, None)
EMPTY = Sequence()
NOTHING = Characters()
"""Matches no text."""

_MOST_NODES = 20_000
"""Nodes of a tree besides what its pattern has: anchors in optional parts may double what follows them.
Chosen, not measured."""
_MOST_UNROLLED = 32
"""Repetitions of a part with lookahead that are written out. Chosen, not measured."""


def tree_bytes(source: str, tree: Node) -> int:
    """About what a pattern and its tree take: 40 to 90 bytes a node, and parts that occur twice are one."""
    seen: set[int] = set()
    open_nodes, count = [tree], 0
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
        return _Resolver(_MOST_NODES + 10 * len(source)).tail(parts, start=True) or NOTHING
    except _NotRegularError as error:
        raise UnsupportedSpecError(
            f"{error}: {shown(source)}", where="pattern", hint="write the pattern without it"
        ) from None
    except RecursionError:
        raise UnsupportedSpecError("is nested too deep", where="pattern", hint="flatten it") from None


def flat(node: Node) -> list[Node]:
    """The parts of a sequence, those of sequences inside it included."""
    if isinstance(node, Sequence):
        return [part for inner in node.parts for part in flat(inner)]
    return [node]


def nullable(node: Node) -> bool:
    """Whether a part without anchors and lookahead matches the empty text."""
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
    """What a tree without anchors and lookahead doesn't express, or not in a reasonable size."""


class _Resolver:
    """Makes None of what matches nothing."""

    def __init__(self, most: int) -> None:
        self.left = most

    def spend(self, nodes: int) -> None:
        self.left -= nodes
        if self.left < 0:
            raise _NotRegularError("anchors or lookahead at too many places")

    # Lookahead

    def tail(self, parts: list[Node], *, start: bool) -> Node | None:
        """What parts match that reach to the end of the text."""
        self.spend(1)
        at = next((i for i, part in enumerate(parts) if _has(part, Look)), None)
        if at is None:
            return self.chain(_grouped(parts), start, True)
        before, rest = _grouped(parts[:at]), parts[at:]
        if not before:
            return self.looking(rest[0], rest[1:], start)
        later = self.tail(rest, start=False)
        # What ends with $ goes on with nothing.
        ends = later is not None and nullable(later) and any(_has(p, Anchor(start=False)) for p in before)
        if not start or not any(_has(part, Anchor(start=True)) for part in rest):
            ended = self.chain(before, start, True) if ends else None
            return _any_of([ended, _joined(self.chain(before, start, False), later)])
        ended = self.chain(before, True, True, filled=True) if ends else None
        moved = _joined(self.chain(before, True, False, filled=True), later)
        first = self.tail(rest, start=True)
        blank = first is not None and nullable(first) and all(self.empty(p, True, True) for p in before)
        still = first if all(self.empty(part, True, False) for part in before) else None
        return _any_of([EMPTY if blank else None, still, ended, moved])

    def looking(self, part: Node, after: list[Node], start: bool) -> Node | None:
        match part:
            case Look(inner, negated):
                ahead = self.tail([*flat(inner), ANYTHING], start=start)
                return _both([self.tail(after, start=start), _opposite(ahead) if negated else ahead])
            case Sequence():
                return self.tail([*flat(part), *after], start=start)
            case Alternation(options):
                return _any_of([self.tail([*flat(option), *after], start=start) for option in options])
            case Repeat(_, low, high) if high is None or high > _MOST_UNROLLED or low > _MOST_UNROLLED:
                return self.looking_each_time(part, after, start)
            case Repeat(inner, low, high):
                left = self.tail(after, start=start) if low == 0 else None
                again = Repeat(inner, max(low - 1, 0), high - 1) if high and high > 1 else EMPTY
                once = self.tail([*flat(inner), *flat(again), *after], start=start) if high else None
                return _any_of([left, once])
        raise _NotRegularError("a lookahead in an unknown place")

    def looking_each_time(self, repeat: Repeat, after: list[Node], start: bool) -> Node | None:
        """An endless repetition of one character with lookahead before or after it, up to the text's end."""
        if after == [ANYTHING] and repeat.low <= _MOST_UNROLLED:
            return self.tail([*[repeat.part] * repeat.low, *after], start=start)
        parts = flat(repeat.part)
        looks = [part for part in parts if isinstance(part, Look)]
        others = [part for part in parts if not isinstance(part, Look)]
        plain = len(others) == 1 and isinstance(others[0], Characters)
        anchored = start and any(_has(part, Anchor(start=True)) for part in [*parts, *after])
        first, last = isinstance(parts[0], Characters), isinstance(parts[-1], Characters)
        if not plain or first == last or anchored or self.tail(after, start=False) != EMPTY:
            raise _NotRegularError("a lookahead inside a repetition")
        refused = []
        for look in looks:
            ahead = self.tail([*flat(look.part), ANYTHING], start=False)
            refused.append(ahead if look.negated else _opposite(ahead))
        wrong = _any_of(refused)
        one = Repeat(ANY, 1, None)
        # Before a character the text goes on; after one it may end.
        somewhere = _joined(one, wrong) if first else _joined(ANYTHING, _both([one, wrong]))
        return _both([Repeat(others[0], repeat.low, repeat.high), _opposite(somewhere)])

    # Anchors. `start` and `end`: whether nothing comes before and after in the text.

    def empty(self, node: Node, start: bool, end: bool) -> bool:
        """Whether a part matches the empty text at a place."""
        match node:
            case Anchor(at_start):
                return start if at_start else end
            case Sequence(parts):
                return all(self.empty(part, start, end) for part in parts)
            case Alternation(options):
                return any(self.empty(option, start, end) for option in options)
            case Repeat(part, low, _):
                return low == 0 or self.empty(part, start, end)
            case _:
                return nullable(node)

    def language(self, node: Node, start: bool, end: bool, *, filled: bool = False) -> Node | None:
        """What a part matches between two places; `filled`: except the empty text."""
        free = _free(node)
        if free and not (filled and nullable(node)):
            self.spend(_size(node))
            return node
        self.spend(1)
        match node:
            case Alternation(options):
                return _any_of([self.language(option, start, end, filled=filled) for option in options])
            case Sequence(parts):
                return self.chain(list(parts) if free else _grouped(flat(node)), start, end, filled=filled)
            case Repeat(part, low, high):
                blank = EMPTY if not filled and self.empty(node, start, end) else None
                return _any_of([blank, self.filled_repeat(part, low, high, start, end)])
        return EMPTY if not filled and self.empty(node, start, end) else None

    def filled(self, node: Node, start: bool, end: bool) -> Node | None:
        """What a part matches between two places, except the empty text."""
        return self.language(node, start, end, filled=True)

    def filled_repeat(self, part: Node, low: int, high: int | None, start: bool, end: bool) -> Node | None:
        """Repetitions of which some may be empty: before the first that isn't, or after the last."""
        if high == 0:
            return None
        fewest = 1 if self.empty(part, start, False) or self.empty(part, False, end) else max(low, 1)
        once = self.filled(part, start, end) if fewest == 1 else None
        if high == 1:
            return once
        if _free(part):
            more = Repeat(self.filled(part, False, False) or NOTHING, fewest, high)
            return None if more.part == NOTHING else more
        between = self.filled(part, False, False)
        middle: Node | None = None if fewest > 2 else EMPTY
        if between is not None:
            middle = Repeat(between, max(fewest - 2, 0), None if high is None else high - 2)
        first, last = self.filled(part, start, False), self.filled(part, False, end)
        return _any_of([once, _joined(_joined(first, middle), last)])

    def chain(self, parts: list[Node], start: bool, end: bool, *, filled: bool = False) -> Node | None:
        """What parts match one after the other; `filled`: except the empty text."""
        self.spend(1)
        if not parts:
            return None if filled else EMPTY
        head, rest = parts[0], parts[1:]
        if not rest:
            return self.language(head, start, end, filled=filled)
        depends = start and any(_has(part, Anchor(start=True)) for part in rest)
        head_empty = self.empty(head, start, False)
        rest_empty = all(self.empty(part, False, end) for part in rest)
        if not depends and not (end and _has(head, Anchor(start=False))):
            # Neither depends on whether the other is empty.
            if not filled or not head_empty or not rest_empty:
                return _joined(self.language(head, start, False), self.chain(rest, False, end))
            one = _joined(self.filled(head, start, False), self.chain(rest, False, end))
            return _any_of([one, self.chain(rest, False, end, filled=True)])
        blank = not filled and all(self.empty(part, start, end) for part in parts)
        first = self.filled(head, start, False)
        return _any_of(
            [
                EMPTY if blank else None,
                self.chain(rest, start, end, filled=True) if head_empty else None,
                self.filled(head, start, end) if rest_empty else None,
                first and _joined(first, self.chain(rest, False, end, filled=True)),
            ]
        )


def _grouped(parts: Iterable[Node]) -> list[Node]:
    """The parts with neighbours joined that have no anchors: each step of a chain has one then."""
    groups: list[list[Node]] = []
    for part in parts:
        if groups and _free(part) and _free(groups[-1][-1]):
            groups[-1].append(part)
        else:
            groups.append([part])
    trimmed = map(_trimmed, groups)
    return [group[0] if len(group) == 1 else Sequence(tuple(group)) for group in trimmed]


def _trimmed(parts: list[Node]) -> list[Node]:
    """The same language. Next to what may be anything, a part that may be empty says nothing."""
    start, end = 0, len(parts)
    while end - start > 1 and parts[start] == ANYTHING and nullable(parts[start + 1]):
        parts[start + 1] = ANYTHING
        start += 1
    while end - start > 1 and parts[end - 1] == ANYTHING and nullable(parts[end - 2]):
        parts[end - 2] = ANYTHING
        end -= 1
    return parts[start:end]


def _has(node: Node, wanted: Anchor | type[Look]) -> bool:
    if wanted is Look and isinstance(node, Look):
        return True
    return node == wanted or any(_has(part, wanted) for part in children(node))


def _free(node: Node) -> bool:
    return not isinstance(node, Anchor | Look) and all(map(_free, children(node)))


def _size(node: Node) -> int:
    return 1 + sum(map(_size, children(node)))


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
    """What all parts match, of which one at least is no `Not`: that one says what texts there are."""
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


def times(low: int, high: int | None) -> str:
    """A quantifier, as all dialects write it."""
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"
