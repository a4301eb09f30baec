"""Replaces a matcher whose shared lexer is exhausted, by replaying its request's
tokens.

Matchers of one grammar share state that may be exhausted (the states of llguidance's
lexers are limited). Then all of them stop in the same step, and each has tokens to
replay. Replays may take only a small part of the time, because all other requests wait
for them. Depends on the grammar protocols.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

import numpy as np

from guided_plugin.errors import GuidedError, RequestError, printable
from guided_plugin.grammar.base import MaskArray, Matcher, allows
from guided_plugin.grammar.batches import RunningRequest
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

_log = logging.getLogger(__name__)

_MOST = 0.25
"""Seconds of replaying at once."""

_SHARE = 0.05
"""The part of all time that replays may take, in the long run."""


_MOVED = 1000
"""A request with more tokens is not moved: replays must leave time to those that can't
go on without."""


class Renewals:
    """Decides whether a request whose matcher can't go on continues with a new matcher.
    One for each table.

    Each call returns None if the request continues, with a new matcher in place; else
    why it fails.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._left = _MOST
        self._seen = time.monotonic()

    def fill(
        self, request: RunningRequest, mask: MaskArray, row: int
    ) -> GuidedError | None:
        """Fill a row for which the matcher allowed no token."""

        def fill(matcher: Matcher) -> bool:
            request.backend.batch([matcher]).fill(mask, [row])
            return bool(np.any(mask[row]))

        own_end = _over_limit(request) or RequestError(
            f"the grammar allows no token after {len(request.state.tokens)} tokens",
            hint="a part of the spec contradicts itself, or the vocabulary can't spell its text",
        )
        return self._renew(request, fill, own_end)

    def accept(self, request: RunningRequest, token: int) -> GuidedError | None:
        """Move past a token that the matcher refused."""
        own_end = self.refusal(request, token)
        error = self._renew(request, lambda matcher: matcher.accept(token), own_end)
        if error is own_end and self._is_shown(request, token):
            name = request.backend.name
            what = f"{error.what}, though the mask of {name} shows it"
            return RequestError(
                what, hint=f"this is a fault of {name}: write the spec in another way"
            )
        return error

    def _is_shown(self, request: RunningRequest, token: int) -> bool:
        """True if the mask of a request shows a token that its matcher has refused."""
        mask = np.zeros((1, self._vocabulary.words), np.int32)
        # some matchers have no mask after a refusal
        with contextlib.suppress(Exception):
            request.backend.batch([request.matcher]).fill(mask, [0])
            return allows(mask[0], token)
        return False

    def refusal(self, request: RunningRequest, token: int) -> GuidedError:
        """Why a token is refused."""
        text = (
            self._vocabulary.tokens[token]
            if 0 <= token < self._vocabulary.size
            else b"?"
        )
        return _over_limit(request) or RequestError(
            f"token {token} ({text!r}) after {len(request.state.tokens)} tokens breaks the grammar",
            hint="something changed the logits after they were masked, or the token came from elsewhere",
        )

    def refresh(self, request: RunningRequest) -> bool:
        """Give a request a new matcher in place of one that works, but whose shared
        state is to be given up. False: there is no time for it now, as requests that
        can't go on come first."""
        start = self._earn()
        if self._left <= _MOST / 2:
            return False
        try:
            if request.state.phase is Phase.ACTIVE:
                matcher, complete = request.replayed()
            else:  # it has moved past nothing, or moves no more
                matcher = request.backend.start(request.grammar, request.stop_token_ids)
                complete = True
            if complete:
                request.matcher = matcher
        except Exception as error:
            name = printable(request.request_id)
            _log.warning("request %s: keeps its matcher: %s", name, printable(error))
        self._left -= time.monotonic() - start
        return True

    def move(self, request: RunningRequest) -> bool:
        """Move a request whose matcher would only be quicker elsewhere."""
        before = request.matcher
        if len(request.state.tokens) <= _MOVED and not self.refresh(request):
            return False
        request.stays = request.matcher is before  # it can't be moved: not tried again
        return True

    def _earn(self) -> float:
        """Time for replays has come up since the last one; the time now."""
        now = time.monotonic()
        self._left = min(_MOST, self._left + _SHARE * (now - self._seen))
        self._seen = now
        return now

    def _renew(
        self,
        request: RunningRequest,
        go_on: Callable[[Matcher], bool],
        own_end: GuidedError,
    ) -> GuidedError | None:
        try:
            if not rebuilds_shared(request.matcher):
                return own_end
            start = self._earn()
            if self._left <= 0:
                return _exhausted(request)
            try:
                return _replay(request, go_on, own_end)
            finally:
                self._left -= time.monotonic() - start
        except Exception as error:
            _log.warning(
                "request %s: cannot replace its matcher: %s",
                printable(request.request_id),
                printable(error),
            )
            return own_end


def _replay(
    request: RunningRequest, go_on: Callable[[Matcher], bool], own_end: GuidedError
) -> GuidedError | None:
    # The shared state may be exhausted again before the first matcher arrives; the
    # second one is alone.
    for _ in range(2):
        request.matcher, complete = request.replayed()
        if complete and go_on(request.matcher):
            return None
        if not rebuilds_shared(request.matcher):
            return own_end
    return _exhausted(request)


def rebuilds_shared(matcher: Matcher) -> bool:
    """True if a matcher that can't go on may be replaced by a new one: its shared state
    was exhausted."""
    rebuild: Callable[[], bool] | None = getattr(matcher, "rebuild_shared", None)
    return rebuild is not None and rebuild()


def _over_limit(request: RunningRequest) -> GuidedError | None:
    """An error if the matcher went over a limit of its backend."""
    ask: Callable[[], str] | None = getattr(request.matcher, "limit", None)
    limit = ask() if ask is not None else ""
    if not limit:
        return None
    return RequestError(
        f"its grammar exceeded a limit of its backend after {len(request.state.tokens)} tokens: {limit}",
        hint="write it without ambiguity, lists as `item*`, and repetitions with smaller bounds",
    )


def _exhausted(request: RunningRequest) -> GuidedError:
    count = len(request.state.tokens)
    return RequestError(
        f"the lexer that requests of its grammar share is exhausted after {count} tokens",
        hint="send it again; smaller length bounds and fewer counted patterns leave more room",
    )


def never_began(spec: OutputSpec) -> RequestError:
    """Why a request failed whose output ended while it waited for its `start_after`."""
    forms = " or ".join(repr(one.tokens) for one in spec.start_after or ())
    return RequestError(
        f"the output ended before {forms} (text or token ids) came, so none of it was constrained",
        where="start_after",
        hint="raise the token limit, have the model end its reasoning, or leave start_after out",
    )
