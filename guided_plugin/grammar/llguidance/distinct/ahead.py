"""What may come next: a second matcher of the same grammar, over single bytes, is asked. Depends on seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from guided_plugin.grammar.llguidance.distinct.seen import Seen, insides, is_scalar, living

_MAX_ZEROS = 16
"""So many zeros at the end of a number are looked at."""


class LookAhead:
    """Finds the texts after which nothing but repeated values can come."""

    __slots__ = ("_base", "_blind", "_make", "_matcher", "_moved")

    def __init__(self, make: Callable[[], Any], base: int) -> None:
        """`make`: a matcher, whose token i is byte i, of what begins at a place of the output."""
        self._make = make
        self._base = base
        self._matcher: Any = None
        """Made with the first question."""
        self._moved = base
        """Up to where in the output it has moved."""
        self._blind = False
        """Whether it went over a limit."""

    def back(self, at: int) -> None:
        """The output has only so many bytes left."""
        at = max(at, self._base)
        if self._matcher is not None and self._moved > at:
            if self._matcher.rollback(self._moved - at) and not self._matcher.is_error():
                self._moved = at
            else:
                self._matcher, self._moved = None, self._base

    def allowed(self, output: bytearray, at: int) -> Iterable[int]:
        """The bytes that may follow the first `at` of the output; none where that is not known."""
        matcher = self._at(output, at)
        return () if matcher is None else _allowed(matcher)

    def explore(self, seen: Seen, texts: list[bytes], output: bytearray, at: int, lead: bytes = b"") -> None:
        """Find the dead beginnings of texts of `seen`, written behind `lead` at a place of the output."""
        matcher = self._at(output, at)
        if matcher is None or matcher.validate_tokens(list(lead)) != len(lead):
            return
        matcher.consume_tokens(list(lead))
        for text in texts:
            if is_scalar(text):
                _explore_zeros(matcher, seen, text)
                if text == b"0":
                    _explore_zeros(matcher, seen, b"-0")
                    _explore(matcher, seen, b"-0")
            _explore(matcher, seen, text)
        if lead:
            matcher.rollback(len(lead))
        self._blind = bool(matcher.is_error())

    def _at(self, output: bytearray, at: int) -> Any:
        """The matcher, behind so many bytes of the output; None where it can't follow."""
        self.back(at)
        if self._blind:
            return None
        if self._matcher is None:
            self._matcher, self._moved = self._make(), self._base
        if not self._matcher.consume_tokens(list(output[self._moved : at])):
            self._blind = True
            return None
        self._moved = at
        return self._matcher


def _explore(matcher: Any, seen: Seen, text: bytes) -> None:
    inside, _ = insides(text)
    inside.append(False)
    nodes = list(text if is_scalar(text) else text[:-1])
    if matcher.validate_tokens(nodes) != len(nodes):
        return
    matcher.consume_tokens(nodes)
    for end in range(len(nodes), -1, -1):
        if living(seen, text[:end], inside[end], _allowed(matcher)):
            break
        seen.kill(text[:end])
        if end:
            matcher.rollback(1)
    if end:
        matcher.rollback(end)


def _explore_zeros(matcher: Any, seen: Seen, text: bytes) -> None:
    """The same number with zeros behind its point, up to where it can't become another one."""
    if text[-1:] not in b"0123456789":
        return
    text += b"" if b"." in text else b"."
    if matcher.validate_tokens(list(text)) != len(text):
        return
    matcher.consume_tokens(list(text))
    moved = len(text)
    for _ in range(_MAX_ZEROS):
        if not living(seen, text, False, _allowed(matcher)):
            seen.kill(text)
            break
        if matcher.validate_tokens([48]) != 1:
            break
        matcher.consume_tokens([48])
        text, moved = text + b"0", moved + 1
    matcher.rollback(moved)


def _allowed(matcher: Any) -> Iterable[int]:
    bits = int.from_bytes(matcher.compute_bitmask()[:32], "little")
    return (byte for byte in range(256) if bits >> byte & 1)
