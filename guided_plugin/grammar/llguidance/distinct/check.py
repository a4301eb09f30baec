"""One request's check that items are distinct, next to its matcher.

Masks lose the tokens that would repeat a value, and those after which nothing but a repeated value could
come. Depends on the scanner, and on ahead for what may come.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import numpy as np

from guided_plugin.grammar.base import MaskArray
from guided_plugin.grammar.llguidance.distinct.ahead import LookAhead
from guided_plugin.grammar.llguidance.distinct.scanner import (
    Frame,
    Mode,
    Outside,
    Part,
    Scan,
    State,
    copied,
    frame_of,
    watched,
)
from guided_plugin.grammar.llguidance.distinct.seen import Seen, continues_scalar
from guided_plugin.grammar.llguidance.distinct.spellings import (
    SPACES,
    Ids,
    Spelled,
    Spellings,
    bits_of,
    both,
    forbid,
    only_opens,
)
from guided_plugin.grammar.llguidance.distinct.values import plain_end


class Left(Enum):
    """What may come in an array."""

    MANY = 0
    FEW = 1
    """Some kinds of values are used up."""
    NONE = 2


_MAX_SPACES = 100
"""A token's end is looked at so far."""
_MAX_REVISED = 32
"""So many values are looked at again for each item, where what an item may be changes from item to item."""


class DistinctRules:
    """What the checks of one grammar share."""

    def __init__(self, start: State, spellings: Spellings) -> None:
        """`start`: where outputs begin."""
        self.start = start
        self.spellings = spellings
        self.unfit: dict[Outside, Ids] = {}
        """By place outside of JSON: the tokens that begin some and repeat a value in it."""

    def new_seen(self) -> Seen:
        """For an array or object that begins."""
        return Seen(self.spellings)


class DistinctCheck:
    """Follows one output, and takes tokens out of its masks."""

    __slots__ = ("_ahead", "_ahead_of", "_raw", "_rules", "_states")

    def __init__(self, rules: DistinctRules) -> None:
        self._rules = rules
        self._states = [rules.start]
        """Before each token, and now."""
        self._raw = bytearray()
        """The output."""
        self._ahead: LookAhead | None = None
        """Of the JSON in progress;"""
        self._ahead_of: tuple[Part | None, int] = None, 0
        """which is this, and begins there."""

    def accept(self, token: int) -> bool:
        """Move past a token; False where it repeats a value."""
        tokens = self._rules.spellings.tokens
        data = tokens[token] if token < len(tokens) else b""
        finished: list[tuple[Seen, bytes, int]] = []

        def finish(frame: Frame, text: bytes, raw_end: int) -> Seen | None:
            seen = _remembering(frame)
            if seen is None or not seen.add(frame.count, text):
                return None
            finished.append((seen, text, raw_end))
            return seen

        scan = Scan(self._states[-1], finish, self._rules.new_seen)
        if not scan.feed(data):
            return False
        if not data:
            scan.control(token)
        self._raw += data
        self._states.append(scan.state())
        for seen, text, raw_end in finished:
            frame = frame_of(scan.frame, seen)
            if frame is not None:
                self._look_ahead(frame, seen, text, raw_end)
        return True

    def accept_all(self, tokens: list[int]) -> bool:
        """Move past tokens; False, and no move, where one of them repeats a value."""
        for moved, token in enumerate(tokens):
            if not self.accept(token):
                self.rollback(moved)
                return False
        return True

    def rollback(self, tokens: int) -> None:
        """Take the last tokens back."""
        if tokens <= 0:
            return
        del self._states[-tokens:]
        state = self._states[-1]
        del self._raw[state.raw :]
        frame = state.frame
        while frame is not None:
            if frame.seen is not None:
                frame.seen.cut(frame.count)
            frame = frame.parent
        if self._ahead is not None:
            self._ahead.back(state.raw)

    def fork(self) -> DistinctCheck:
        """An independent check in the same position."""
        other = DistinctCheck(self._rules)
        other._raw = bytearray(self._raw)
        seen: dict[int, Seen] = {}
        frames: dict[int, Frame] = {}
        other._states = [replace(state, frame=copied(state.frame, seen, frames)) for state in self._states]
        return other

    def restrict(self, row: MaskArray) -> None:
        """Take the tokens out of a mask that would repeat a value, or lead to nothing else."""
        state = self._states[-1]
        spellings = self._rules.spellings
        if state.outside is not None:
            forbid(row, self._unfit(state, state.outside))
            return
        spelled = spellings.inside if state.mode >= Mode.STRING else spellings.outside
        doubtful: list[int] = []
        within = watched(state.frame)
        if not within or (state.part is not None and state.part.after is not None):
            # What begins inside a token.
            doubtful += both(row, spellings.opening)
        if within:
            doubtful += both(row, spelled.crossing)
        if state.pending and state.active:
            doubtful += both(row, spellings.quotes)
        if state.mode is Mode.SCALAR and state.active:
            doubtful += both(row, spelled.number_ends)
        closed: list[Seen] = []
        narrow = False
        frame, depth = state.frame, 0
        while frame is not None:
            if frame.seen is not None:
                if frame.count:
                    self._restrict_in(row, state, frame, depth, spelled)
                left = Left.NONE if frame.seen.full else self._left(state, frame, depth)
                if left is Left.NONE:
                    closed.append(frame.seen)
                narrow = narrow or left is Left.FEW
                if left is not Left.MANY:
                    doubtful += both(row, spelled.commas)
                elif frame.array and _opens(state, frame):
                    whole = both(row, spelled.wholes)
                    doubtful, narrow = doubtful + whole, narrow or bool(whole)
            frame, depth = frame.parent, depth + 1
        if doubtful:
            parts = spelled.parts if state.active < 2 and not (state.pending or closed or narrow) else {}
            wrong = [
                token
                for token in dict.fromkeys(doubtful)
                if not (_fresh(state, parts.get(token)) or self._passes(state, token, closed, narrow))
            ]
            if wrong:
                forbid(row, np.array(wrong, np.int64))

    def _unfit(self, state: State, outside: Outside) -> Ids:
        found = self._rules.unfit.get(outside)
        if found is None:
            opening = bits_of(self._rules.spellings.opening)
            wrong = [token for token in opening if not self._passes(state, token, [], False)]
            found = self._rules.unfit[outside] = np.array(wrong, np.int64)
        return found

    def _restrict_in(self, row: MaskArray, state: State, frame: Frame, depth: int, spelled: Spelled) -> None:
        seen = frame.seen
        if seen is None or (frame.start < 0 and not frame.array and not state.naming):
            return
        text = b"" if frame.start < 0 else state.text[frame.start :] + state.pending.lower()
        for ids in seen.banned.get(text, ()):
            forbid(row, ids)
        if frame.start < 0:
            return
        if depth == 0 and state.mode is Mode.SCALAR and text + b"," not in seen.dead and seen.has(text):
            # An equal number in another spelling.
            for end in (b",", b"]", b"}", b" "):
                forbid(row, spelled.beginning(end, True))
        if depth and seen.compound:
            _close(row, seen, plain_end(text) if state.mode is Mode.SCALAR else text, depth, spelled)

    def _passes(self, state: State, token: int, closed: list[Seen], narrow: bool) -> bool:
        """Whether a token leads neither to a repeated value nor to where nothing else can come.

        `closed`: arrays and objects in which nothing may follow what is in progress. `narrow`: there are
        some in which only a few kinds of values may follow.
        """
        data = self._rules.spellings.tokens[token]
        added: dict[int, tuple[Seen, list[bytes]]] = {}

        def finish(frame: Frame, text: bytes, raw_end: int) -> Seen | None:
            seen = frame.seen
            if seen is None or (len(seen) and seen.has(text)):
                return None
            _, others = added.setdefault(id(seen), (seen, []))
            if text in others:
                return None
            others.append(text)
            return seen

        scan = Scan(state, finish, self._rules.new_seen)
        if not scan.feed(data) or any(seen is each for seen in scan.continued for each in closed):
            return False
        if narrow and added and scan.continued:
            return self._goes_on(token)
        frame = scan.frame
        while frame is not None:
            if frame.seen is not None and frame.start >= 0:
                text = scan.text[frame.start :]
                if _dead(frame.seen, text, len(text) - len(data) - 12):
                    return False
                _, others = added.get(id(frame.seen), (None, []))
                if not only_opens(text) and any(each.startswith(text) for each in others):
                    return self._goes_on(token)
            frame = frame.parent
        return True

    def _goes_on(self, token: int) -> bool:
        """Whether something else can come after a token that ends a value and begins as that value did."""
        if not self.accept(token):
            return False
        state = self._states[-1]
        frame, alive = state.frame, True
        if frame is not None and frame.array and frame.seen is not None and frame.seen.full:
            alive = not self._raw[-_MAX_SPACES:].rstrip(SPACES).endswith(b",")
        while frame is not None and alive:
            if frame.seen is not None and frame.start >= 0:
                alive = not (frame.array and frame.seen.full)
                alive = alive and not _dead(frame.seen, state.text[frame.start :])
            frame = frame.parent
        self.rollback(1)
        return alive

    def _left(self, state: State, frame: Frame, depth: int) -> Left:
        """What may come in an array after the item in progress, or after the last one."""
        seen = frame.seen
        if seen is None or not frame.array:
            return Left.MANY
        if frame.start < 0 or state.pending:
            return _left_in(seen)
        text = state.text[frame.start :]
        string = state.mode >= Mode.STRING
        number = depth == 0 and state.mode is Mode.SCALAR
        ways: set[bytes] = set()
        for byte in self._looking().allowed(self._raw, state.raw):
            if not string and byte in SPACES and not continues_scalar(text):
                continue
            # A number that may end here may also get zeros, and then end.
            ends = number and (byte in b",]. \t\n\r" or (byte == 48 and b"." in text))
            way = b"," if ends else bytes([byte])
            if text + way not in seen.dead:
                ways.add(way)
                if len(ways) > 1:
                    break
        if len(ways) != 1:
            # Another value that begins as this one is left, unless the next item may be something else.
            return Left.FEW if frame.place and frame.index < frame.place.prefix_length else _left_in(seen)
        (way,) = ways
        if number:
            whole, lead = text, b","
        elif (depth == 0 and way == b'"') or (depth == 1 and not string and way in b"]}"):
            whole, lead = text + way, way + b","
        else:
            # Only one thing can come, and it is not the end: what comes after it is not known yet.
            return Left.NONE
        if not seen.add(frame.count, whole):
            return Left.NONE
        if not _changes(frame, 1):
            self._looking().explore(seen, seen.texts()[-1:], self._raw, state.raw, lead)
        elif len(seen) <= _MAX_REVISED:
            other = seen.copy(afresh=True)
            self._looking().explore(other, other.texts(), self._raw, state.raw, lead)
            seen.cut(frame.count)
            return _left_in(other)
        left = _left_in(seen)
        seen.cut(frame.count)
        return left

    # What may come

    def _looking(self) -> LookAhead:
        state = self._states[-1]
        if state.part is None:
            raise RuntimeError("no JSON is in progress")
        if self._ahead is None or self._ahead_of != (state.part, state.base):
            self._ahead, self._ahead_of = LookAhead(state.part.bytewise, state.base), (state.part, state.base)
        return self._ahead

    def _look_ahead(self, frame: Frame, seen: Seen, text: bytes, raw_end: int) -> None:
        """Find out which beginnings of the values can no longer become anything else."""
        if frame.array:
            texts = seen.texts() if _changes(frame) else [text]
            if len(texts) <= _MAX_REVISED:
                self._looking().explore(seen, texts, self._raw, raw_end, b",")
        elif frame.place is not None:
            self._looking().explore(seen, [text], self._raw, frame.raw_start)


def _opens(state: State, frame: Frame) -> bool:
    """Whether nothing of the item in progress is known but what kind of value it may be."""
    return state.mode is Mode.BETWEEN and (frame.start < 0 or only_opens(state.text[frame.start :]))


def _left_in(seen: Seen) -> Left:
    if seen.full:
        return Left.NONE
    return Left.FEW if seen.narrow else Left.MANY


def _fresh(state: State, parts: tuple[bytes, ...] | None) -> bool:
    """Whether a token of these parts surely adds new scalars to an array."""
    frame = state.frame
    if not parts or frame is None or not frame.array or frame.seen is None:
        return False
    first = parts[0] if frame.start < 0 else state.text[frame.start :] + parts[0]
    whole, rest = [*([first] if first else []), *parts[1:-1]], parts[-1]
    if len(set(whole)) < len(whole) or any(frame.seen.has(text) for text in whole):
        return False
    if any(text.startswith(rest) for text in whole) and not only_opens(rest):
        return False
    return not _dead(frame.seen, rest)


def _dead(seen: Seen, text: bytes, known: int = 0) -> bool:
    """Whether nothing new can come of a text; its first `known` bytes are known to live."""
    return any(text[:end] in seen.dead for end in range(max(1, known), len(text) + 1))


def _close(row: MaskArray, seen: Seen, text: bytes, depth: int, spelled: Spelled) -> None:
    """Forbid the tokens that would end a compound item that is there already, in any order of its names."""
    closers = spelled.closers(depth)
    allowed = (row[closers.ids >> 5] >> (closers.ids & 31)) & 1 != 0
    if not allowed.any():
        return
    length, total = len(text), sum(text)
    for group in np.unique(closers.group[allowed]).tolist():
        head = closers.heads[group]
        if seen.has_compound(length + len(head), total + sum(head), text, head):
            forbid(row, closers.ids[allowed & (closers.group == group)])


def _changes(frame: Frame, ahead: int = 0) -> bool:
    """Whether the next item, or a later one, may be something else than the one before it might have been."""
    place = frame.place
    return place is not None and (place.contains or frame.index + ahead <= place.prefix_length)


def _remembering(frame: Frame) -> Seen | None:
    """The values of a frame, to add one. What is dead for one item may live in the next."""
    seen = frame.seen
    changing = frame.array and _changes(frame, 1)
    if seen is not None and changing and 0 < frame.count <= _MAX_REVISED:
        return seen.copy(frame.count, afresh=True)
    return seen
