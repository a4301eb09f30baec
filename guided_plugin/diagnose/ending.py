"""A short completion of an output: what could be written from a place until it may stop.

A search over forked matchers, token by token. What differs by letters alone is tried once, and of all places
with as many tokens those that went furthest are kept. What it finds is right; a shorter one may exist.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from guided_plugin.diagnose.position import Position

_NARROW, _WIDE = 3, 32
"""Places with as many tokens that are kept: few, and where these find nothing more. Chosen, not measured."""
_FEW = 12
"""So many bytes are all tried. Chosen, not measured."""
_MOST_TOKENS = 4_096
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
    written: bytes = b""
    history: int = 0
    """Of the masks on the way, each loop counted once: it tells the parts of an output apart."""
    progress: int = 0
    """How often the mask changed; the ends of strings, arrays and objects count more."""


def shortest_ending(position: Position, seconds: float = 2.0) -> Ending:
    """What may follow so that the output can stop, as short as found within the time."""
    start = time.monotonic()
    for width, share in ((_NARROW, 0.6), (_WIDE, 1.0)):
        found = _search(position, start + share * seconds, width)
        if found is not None:
            return Ending(found.decode(errors="replace"))
    return Ending(None, f"nothing was found within {seconds:g} s and {_MOST_TOKENS} tokens")


def _search(position: Position, deadline: float, width: int) -> bytes | None:
    level = [_Node(position)]
    for _ in range(_MOST_TOKENS):
        for node in level:
            if node.position.may_stop:
                return node.written
        found: dict[tuple[int, bytes], _Node] = {}
        for node in sorted(level, key=lambda node: -node.progress)[:width]:
            if time.monotonic() > deadline:
                return None
            for token in _candidates(node.position, width):
                ahead = node.position.moved(token)
                if ahead is not None:
                    found.setdefault(*_behind(node, ahead, token))
        level = list(found.values())
    return None


def _behind(node: _Node, ahead: Position, token: int) -> tuple[tuple[int, bytes], _Node]:
    data, mask = ahead.names.tokens[token], ahead.row
    history, progress = node.history, node.progress
    if mask != node.position.row:
        history = hash((history, mask))
        progress += 3 if data[-1:] and data[-1] in _CLOSERS else 1
    return (history, mask), _Node(ahead, node.written + data, history, progress)


def _candidates(position: Position, width: int) -> list[int]:
    """One token for each byte that is worth trying, and the control tokens."""
    names = position.names
    controls = [token for token in names.controls if position.allows(token) and names.tokens[token]]
    singles = {byte: token for byte, token in names.singles.items() if position.allows(token)}
    if not singles:
        # The vocabulary may lack a token for each byte: then any that are allowed.
        return controls + [token for token in position.allowed()[:_FEW] if token not in names.controls]
    kinds: dict[str, list[int]] = {}
    for byte in sorted(singles, key=lambda byte: (byte not in _CLOSERS, byte)):
        kinds.setdefault(_kind(byte), []).append(singles[byte])
    beyond = kinds.pop("beyond", [])
    most = {"letter": 1, "capital": 1, "digit": 2, "space": 1, "other": 4 if width == _NARROW else 32}
    tried = [token for kind, tokens in kinds.items() for token in tokens[: most[kind]]]
    if len(singles) <= _FEW:
        tried, beyond = list(singles.values()), []
    return [*(tried or beyond[:1]), *controls]


def _kind(byte: int) -> str:
    character = chr(byte)
    if byte >= 128:
        return "beyond"
    if character.isalpha():
        return "capital" if character.isupper() else "letter"
    return "digit" if character.isdigit() else "space" if byte < 33 else "other"
