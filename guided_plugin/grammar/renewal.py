"""A matcher that can't go on for others' sake is made anew, and brought to where its request was.

What matchers of a grammar share may be used up (llguidance's lexers have only so many states). Then all of
them end in the same step, and each has a journal to replay: that may take a small part of the time, lest
everybody else wait. Touches matchers by their protocol.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from guided_plugin.grammar.base import Matcher

__all__ = ["Renewals", "Replayable", "rebuilds_shared"]

_log = logging.getLogger(__name__)

_MOST = 0.25
"""Seconds of replaying at once."""

_SHARE = 0.05
"""Of all time, in the long run."""


class Replayable(Protocol):
    """A request with a journal."""

    request_id: str
    matcher: Matcher

    def replayed(self) -> tuple[Matcher, bool]:
        """A matcher made anew from the journal, and whether it took all of it."""
        ...


class Renewals:
    """Of the requests of one table."""

    def __init__(self) -> None:
        self._left = _MOST
        self._seen = time.monotonic()

    def renew(self, request: Replayable, go_on: Callable[[Matcher], bool]) -> bool | None:
        """Where its matcher has nothing to go on with. True: a new one has, and is in its place. False: what
        it shares is used up, and could not be replaced in time. None: it is the request's own end."""
        try:
            if not rebuilds_shared(request.matcher):
                return None
            start = time.monotonic()
            self._left = min(_MOST, self._left + _SHARE * (start - self._seen))
            self._seen = start
            if self._left <= 0:
                return False
            try:
                return _replay(request, go_on)
            finally:
                self._left -= time.monotonic() - start
        except Exception as error:
            _log.warning("request %s can't begin anew: %s", request.request_id, error)
            return None


def _replay(request: Replayable, go_on: Callable[[Matcher], bool]) -> bool | None:
    # What the first one shares may be used up again before it is as far; the second one is alone.
    for _ in range(2):
        request.matcher, there = request.replayed()
        if there and go_on(request.matcher):
            return True
        if not rebuilds_shared(request.matcher):
            return None
    return False


def rebuilds_shared(matcher: Matcher) -> bool:
    """Whether one that is started now may do better than this one, which has nothing to go on with."""
    ask: Callable[[], bool] | None = getattr(matcher, "rebuild_shared", None)
    return ask is not None and ask()
