"""A short completion of an output: what could be written from a place until it may stop.

A search over forked matchers, level by level of bytes. What differs by letters alone is tried once, and of
each level the places that went furthest are kept: first few, so that something is found, then more, for
something shorter. What it finds is right; a shorter one may exist. It is bounded in time and bytes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from guided_plugin.diagnose.position import Position

_NARROW, _WIDE = 3, 32
"""Places that are kept of a level: few find something, more find something shorter. Chosen, not measured."""
_FEW = 12
"""So many bytes are all tried. Chosen, not measured."""
_MOST_BYTES = 4_096
"""Of a completion that is looked for: more than a page shows. Chosen, not measured."""
_CLOSERS = b'"}]'


@dataclass(frozen=True, slots=True)
class Ending:
    """What was found."""

    text: str | None
    """None: nothing was found."""
    why: str = ""
    """Why nothing was found."""


@dataclass(frozen=True, slots=True)
class _Node:
    position: Position
    written: bytes
    history: int
    """Of the masks on the way, each loop counted once: it tells the parts of an output apart."""
    progress: int
    """How often the mask changed; the ends of strings, arrays and objects count more."""
    mask: bytes


def shortest_ending(position: Position, seconds: float = 2.0) -> Ending:
    """What may follow so that the output can stop, as short as found within the time."""
    start = time.monotonic()
    found = _search(position, start + 0.6 * seconds, _NARROW, _MOST_BYTES)
    most = _MOST_BYTES if found is None else len(found) - 1
    now = time.monotonic()
    # Something shorter is worth some time more, and no answer all that is left.
    more = seconds if found is None else 0.1 + 2 * (now - start)
    shorter = _search(position, min(now + more, start + seconds), _WIDE, most)
    best = found if shorter is None else shorter
    if best is not None:
        return Ending(best.decode(errors="replace"))
    if time.monotonic() > start + seconds:
        return Ending(None, f"nothing was found within {seconds:g} s")
    return Ending(None, f"nothing was found within {_MOST_BYTES} bytes")


def _search(position: Position, deadline: float, width: int, most: int) -> bytes | None:
    """A completion of at most so many bytes."""
    levels: dict[int, dict[tuple[int, bytes], _Node]] = {}
    worth: dict[bytes, list[int]] = {}
    """Of each mask: the tokens that changed it when they were tried, and one of those that did not."""
    _add(levels, _Node(position, b"", 0, 0, position.row))
    while levels:
        size = min(levels)
        if size > most:
            return None
        level = sorted(levels.pop(size).values(), key=lambda node: -node.progress)
        for node in level:
            if node.position.may_stop:
                return node.written
        for node in level[:width]:
            if time.monotonic() > deadline:
                return None
            moves = []
            for token in worth.get(node.mask) or _candidates(node.position, width):
                ahead = node.position.moved(token)
                if ahead is not None:
                    moves.append((token, _behind(node, ahead, token)))
                    _add(levels, moves[-1][1])
            if node.mask not in worth:
                worth[node.mask] = _telling(node.mask, moves)
    return None


def _telling(mask: bytes, moves: list[tuple[int, _Node]]) -> list[int]:
    changing = [token for token, behind in moves if behind.mask != mask]
    staying = [(not behind.written[-1:].isalpha(), token) for token, behind in moves if behind.mask == mask]
    return changing + [token for _, token in sorted(staying)[:1]]


def _add(levels: dict[int, dict[tuple[int, bytes], _Node]], node: _Node) -> None:
    level = levels.setdefault(len(node.written), {})
    level.setdefault((node.history, node.mask), node)


def _behind(node: _Node, ahead: Position, token: int) -> _Node:
    data = ahead.names.tokens[token]
    mask = ahead.row
    history, progress = node.history, node.progress
    if mask != node.mask:
        history = hash((history, mask))
        progress += 3 if data[-1:] and data[-1] in _CLOSERS else 1
    return _Node(ahead, node.written + data, history, progress, mask)


def _candidates(position: Position, width: int) -> list[int]:
    """One token for each byte that is worth trying, and the control tokens."""
    names = position.names
    singles = {byte: token for byte, token in names.singles.items() if position.allows(token)}
    controls = [token for token in names.controls if position.allows(token) and names.tokens[token]]
    if not singles:
        # The vocabulary may lack a token for each byte: then any that are allowed.
        return controls + [token for token in position.allowed()[:_FEW] if token not in names.controls]
    if len(singles) > _FEW:
        singles = _typical(singles, 4 if width == _NARROW else 32)
    return [*singles.values(), *controls]


def _typical(singles: dict[int, int], others: int) -> dict[int, int]:
    """One letter of each case and two digits; of other characters so many, closing ones first; a byte beyond
    ASCII where there is nothing else."""
    kept: dict[int, int] = {}
    seen: dict[str, int] = {}
    for byte in sorted(singles, key=lambda byte: (byte not in _CLOSERS, byte)):
        character = chr(byte)
        if byte >= 128:
            kind, most = "beyond", int(not kept)
        elif character.isalpha():
            kind, most = ("upper" if character.isupper() else "lower"), 1
        elif character.isdigit():
            kind, most = "digit", 2
        elif byte < 33:
            kind, most = "space", 1
        else:
            kind, most = "other", others
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= most:
            kept[byte] = singles[byte]
    return kept
