"""Matchers of the llguidance backend, one a request, and batches of them.

llguidance's matchers never raise for a grammar's or a token's fault: they go into an
error state, which is read here after filling and going back.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from guided_plugin.grammar.base import MaskArray, token_bit
from guided_plugin.grammar.llguidance.distinct.check import DistinctCheck
from guided_plugin.grammar.llguidance.learnt import Learnt
from guided_plugin.grammar.llguidance.lexers import Share
from guided_plugin.grammar.threads import AdaptiveThreads

# So many tokens are accepted sooner in this thread, which keeps the GIL, than others
# are woken up for them: each takes 5 us. (Fills release the GIL, and next to a busy
# thread each of them would wait for it.)
_FEW = 32

_DETAILS = re.compile(r"\s*<(?:state|tokens)>.*", re.DOTALL)
OVER_LIMIT = re.compile(r"too many|max is \d|fuel|exceeded|limit", re.IGNORECASE)


def first_line(message: str) -> str:
    """Return the message of an llguidance error, without the state that it adds."""
    lines = _DETAILS.sub("", message).strip().splitlines()
    return lines[0] if lines else "no reason given"


@dataclass(slots=True, eq=False)
class LLGuidanceMatcher:
    """One request's position in its grammar: a `Matcher`."""

    handle: Any
    share: Share
    """The share of the lexer whose lock it needs."""
    tokenizer: Any
    usual_stops: tuple[int, ...]
    stop_token_ids: tuple[int, ...]
    """Stop tokens of this request alone; empty: the vocabulary's, which the tokenizer
    knows."""
    distinct: DistinctCheck | None
    """The check of what its grammar can't remember."""

    def accept(self, token: int) -> bool:
        """Move past a token. After a refusal the matcher can't be used any more."""
        if self.stop_token_ids:
            if token in self.stop_token_ids:
                return bool(self.handle.is_accepting())
            if token in self.usual_stops:
                return False
        if self.distinct is not None and not self.distinct.accept(token):
            return False
        return bool(self.handle.consume_token(token))

    def accept_text(self, text: bytes) -> bool:
        tokens = self.tokenizer.tokenize_bytes(text)
        if not tokens:
            return not text
        if self.handle.validate_tokens(tokens) != len(tokens):
            return False
        if self.distinct is not None and not self.distinct.accept_all(tokens):
            return False
        return bool(self.handle.consume_tokens(tokens))

    def forced(self) -> bytes:
        """The bytes that must follow, up to the first control token: llguidance puts
        0xff before its name."""
        return bytes(self.handle.compute_ff_bytes()).partition(b"\xff")[0]

    def fits(self, tokens: list[int]) -> bool:
        """True if its grammar allows these tokens next. What it can't remember is not
        asked."""
        return bool(self.handle.validate_tokens(tokens) == len(tokens))

    def row(self) -> MaskArray:
        """Its mask, for what looks ahead: with the vocabulary's own stop tokens."""
        row = np.frombuffer(bytearray(self.handle.compute_bitmask()), np.int32)
        if self.distinct is not None:
            self.distinct.restrict(row)
        return row

    def ends_with(self, tokens: Sequence[int]) -> bool:
        """True if its output is complete after these tokens."""
        if not tokens:
            return self.complete  # one that has stopped takes no stop token
        due = [*tokens, self.usual_stops[0]]
        if self.handle.validate_tokens(due) != len(due):
            return False
        return self.distinct is None or self.distinct.stays_distinct(tokens)

    def fork(self) -> LLGuidanceMatcher:
        distinct = self.distinct and self.distinct.fork()
        return replace(self, handle=self.handle.deep_copy(), distinct=distinct)

    def ahead(self) -> LLGuidanceMatcher:
        """A copy that looks ahead without what its grammar can't remember."""
        return replace(self, handle=self.handle.deep_copy(), distinct=None)

    @property
    def complete(self) -> bool:
        return bool(self.handle.is_accepting())

    @property
    def forces(self) -> bool:
        """True if it is asked what must follow: no one is of its grammar once that has
        taken long."""
        return self.share.lexers.forces

    def looked(self, *, long: bool) -> None:
        """A look at what must follow has ended: the second long one in a row is the
        last of its grammar."""
        lexers = self.share.lexers
        lexers.forces &= not (long and lexers.looked_long)
        lexers.looked_long = long

    @property
    def shared(self) -> object:
        """Its lexer: calls of others that have it wait for its lock."""
        return self.share.lexer

    def give_up_shared(self) -> object:
        """Have matchers that start later use another lexer: this one, which it returns,
        stays locked."""
        self.share.lexers.rebuild(self.share.lexer)
        return self.share.lexer

    def rebuild_shared(self) -> bool:
        """True if its lexer is exhausted; matchers started later get another one."""
        return bool(self.handle.is_error()) and self.share.rebuild_shared()

    @property
    def outdated(self) -> bool:
        """True if its lexer is to be given up."""
        return self.share.lexer.outdated

    @property
    def crowded(self) -> bool:
        """True if it would be quicker with another lexer."""
        return self.share.crowded

    def limit(self) -> str:
        """The limit that its grammar exceeded; empty if none."""
        message = first_line(self.handle.get_error()) if self.handle.is_error() else ""
        message = message or first_line(
            self.distinct.limit() if self.distinct is not None else ""
        )
        return message if OVER_LIMIT.search(message) else ""

    def fix_stops(self, row: MaskArray) -> None:
        """Allow this request's own stop tokens where the usual ones are allowed, and
        not those."""
        for token in (*self.usual_stops, *self.stop_token_ids):
            row[token // 32] &= ~token_bit(token)
        if self.handle.is_accepting():
            for token in self.stop_token_ids:
                row[token // 32] |= token_bit(token)


class LLGuidanceBatch:
    """Matchers that are worked on together: a `MatcherBatch`."""

    def __init__(
        self,
        executors: AdaptiveThreads,
        matchers: list[LLGuidanceMatcher],
        learnt: Learnt,
    ) -> None:
        self._executors = executors
        self._learnt = learnt
        self._matchers = matchers
        # Matchers of one lexer side by side: threads take neighbours, and then don't
        # wait for each other.
        self._order = sorted(
            range(len(matchers)), key=lambda i: id(matchers[i].share.lexer)
        )
        self._own_stops = [
            i for i, matcher in enumerate(matchers) if matcher.stop_token_ids
        ]
        self._distinct = [
            (i, m.distinct) for i, m in enumerate(matchers) if m.distinct is not None
        ]

    def accept(self, tokens: list[int]) -> list[bool]:
        start = time.perf_counter()
        if self._own_stops or len(tokens) <= _FEW:
            accepted = [
                m.accept(token) for m, token in zip(self._matchers, tokens, strict=True)
            ]
        else:
            pairs = [(self._matchers[i].handle, tokens[i]) for i in self._order]
            accepted = [False] * len(tokens)
            verdicts = self._executors.executor.consume_token_par(pairs)
            for i, verdict in zip(self._order, verdicts, strict=True):
                accepted[i] = verdict
            for i, check in self._distinct:
                accepted[i] = accepted[i] and check.accept(tokens[i])
        self._executors.accepted(time.perf_counter() - start)
        return accepted

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        if len(rows) == 1:
            row = mask[rows[0]]
            self._matchers[0].handle.unsafe_compute_mask_ptr(
                row.ctypes.data, row.nbytes
            )
        else:
            self._fill_all(mask, rows)
        self._learnt.filled()
        for i in self._own_stops:
            self._matchers[i].fix_stops(mask[rows[i]])
        for i, check in self._distinct:
            check.restrict(mask[rows[i]])
        # At a dead end or a limit a matcher shows a stop token, as if the output were
        # whole.
        for matcher, row in zip(self._matchers, rows, strict=True):
            if matcher.handle.is_error():
                mask[row] = 0

    def _fill_all(self, mask: MaskArray, rows: list[int]) -> None:
        pairs = [(self._matchers[i].handle, rows[i]) for i in self._order]
        start = time.perf_counter()
        executor = self._executors.executor
        executor.unsafe_compute_mask_ptr(
            pairs, mask.ctypes.data, mask.strides[0], mask.shape[0]
        )
        self._executors.took(time.perf_counter() - start)
