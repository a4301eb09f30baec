"""The grammar side of a step: which slot is where in which grammar. Touches backends; no tensors.

This is what runs inline in a host's thread or in a process of its own; it knows slots, tokens and mask
rows on the host, and nothing of devices. Nothing here raises for what one request did: its row fails
closed (only stop tokens stay allowed) and `failures` tells why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np

from guided_plugin.errors import GuidedError, PipelineError, RequestError
from guided_plugin.grammar.base import Backend, Grammar, MaskArray, Matcher, MatcherBatch
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec
from guided_plugin.step import NO_TOKEN

__all__ = ["GrammarTable", "Phase"]

_log = logging.getLogger(__name__)


class Phase(Enum):
    """Where a request is."""

    WAITING = auto()
    """Before the end of `start_after`: nothing is constrained yet."""
    ACTIVE = auto()
    DONE = auto()
    """A stop token was accepted; whatever a host still samples is padding."""
    FAILED = auto()
    """Fails closed: only stop tokens are allowed."""


@dataclass(slots=True)
class _Entry:
    request_id: str
    grammar: Grammar
    matcher: Matcher
    backend: Backend
    stop_token_ids: tuple[int, ...]
    trigger: tuple[int, ...]
    phase: Phase
    tokens: list[int] = field(default_factory=list)
    """Journal: every token that counts, for replay and for checking."""
    start: int = 0
    """Where in the journal the constrained part begins."""
    error: GuidedError | None = None


@dataclass(slots=True)
class _Batch:
    """The matchers of one backend among the slots of a step."""

    positions: list[int]
    """Where in the step's slots."""
    matchers: MatcherBatch


class GrammarTable:
    """Running grammars by slot. `fill` and `accept` take the guided slots of one step, in row order."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._entries: dict[int, _Entry] = {}
        self._batched: tuple[int, ...] | None = None
        self._batches: list[_Batch] = []
        self._others: list[int] = []
        self._stop_rows: dict[tuple[int, ...], MaskArray] = {}
        self.failures: list[tuple[int, GuidedError]] = []
        """Slots that failed since the host last took this list, with the reason."""

    def add(
        self,
        slot: int,
        request_id: str,
        spec: OutputSpec,
        grammar: Grammar,
        backend: Backend,
        tokens: Iterable[int] = (),
    ) -> None:
        """Start a request in a slot; `tokens` replays what it had produced before."""
        if slot in self._entries:
            raise PipelineError(f"slot {slot} is taken by request {self._entries[slot].request_id}")
        stops = spec.stop_token_ids or self._vocabulary.stop_token_ids
        for token in stops:
            if token >= self._vocabulary.size:
                raise RequestError(f"stop token {token} is outside the vocabulary", request_id=request_id)
        trigger = self._vocabulary.sequence(spec.start_after) if spec.start_after is not None else ()
        phase = Phase.WAITING if trigger else Phase.ACTIVE
        journal = [int(token) for token in tokens]
        try:
            matcher = backend.start(grammar, stops)
            entry = _Entry(request_id, grammar, matcher, backend, stops, trigger, phase)
            self._entries[slot] = entry
            for token in journal:
                self._accept_one(slot, entry, token)
        except BaseException as error:
            # The host was never told that the slot is in use: nobody would give it back.
            self._entries.pop(slot, None)
            if not isinstance(error, Exception):
                raise
            raise RequestError(f"its backend failed: {error}", request_id=request_id) from error
        finally:
            self._batched = None

    def remove(self, slot: int) -> None:
        """Give a slot back. Nothing of its request stays."""
        if self._entries.pop(slot, None) is None:
            raise PipelineError(f"slot {slot} is empty")
        self._batched = None

    def fail(self, slot: int, error: GuidedError) -> None:
        """Fail a request closed."""
        entry = self._entries[slot]
        entry.phase, entry.error = Phase.FAILED, error.for_request(entry.request_id)
        self.failures.append((slot, entry.error))
        self._batched = None

    def phase(self, slot: int) -> Phase:
        """Where the request in a slot is."""
        return self._entries[slot].phase

    def tokens(self, slot: int) -> tuple[int, ...]:
        """The journal of a slot."""
        return tuple(self._entries[slot].tokens)

    def fill(self, slots: tuple[int, ...], mask: MaskArray) -> None:
        """Write the mask of slots[i] into mask[i]."""
        self._batch(slots)
        for batch in self._batches:
            self._fill_batch(batch, slots, mask)
        for position in self._others:
            entry = self._entries[slots[position]]
            if entry.phase is Phase.WAITING:
                mask[position] = -1
            else:
                mask[position] = self._stop_row(entry.stop_token_ids)

    def accept(self, slots: tuple[int, ...], tokens: Sequence[int]) -> None:
        """Move every slot past the token that was sampled for it; NO_TOKEN where none was."""
        if NO_TOKEN in tokens:
            sampled = [(slot, token) for slot, token in zip(slots, tokens, strict=True) if token != NO_TOKEN]
            slots, tokens = tuple(slot for slot, _ in sampled), [token for _, token in sampled]
        self._batch(slots)
        changed = False
        for batch in self._batches:
            chosen = [tokens[position] for position in batch.positions]
            try:
                verdicts = batch.matchers.accept(chosen)
            except Exception as error:
                _log.warning("%d rows are retried one by one: %s", len(chosen), error)
                verdicts = self._accept_singly(batch, slots, chosen)
                changed = True
            for position, token, accepted in zip(batch.positions, chosen, verdicts, strict=True):
                entry = self._entries[slots[position]]
                if entry.phase is Phase.FAILED:
                    continue
                if not accepted:
                    self._reject(slots[position], entry, token)
                    changed = True
                    continue
                entry.tokens.append(token)
                if token in entry.stop_token_ids:
                    entry.phase = Phase.DONE
                    changed = True
        for position in self._others:
            entry = self._entries[slots[position]]
            before = entry.phase
            self._accept_one(slots[position], entry, tokens[position])
            changed |= entry.phase is not before
        if changed:
            self._batched = None

    def _accept_one(self, slot: int, entry: _Entry, token: int) -> None:
        if entry.phase is Phase.ACTIVE:
            if not entry.matcher.accept(token):
                self._reject(slot, entry, token)
                return
            entry.tokens.append(token)
            if token in entry.stop_token_ids:
                entry.phase = Phase.DONE
        elif entry.phase is Phase.WAITING:
            entry.tokens.append(token)
            if tuple(entry.tokens[-len(entry.trigger) :]) == entry.trigger:
                entry.phase = Phase.ACTIVE
                entry.start = len(entry.tokens)
            elif token in entry.stop_token_ids:
                entry.phase = Phase.DONE

    def _reject(self, slot: int, entry: _Entry, token: int) -> None:
        text = self._vocabulary.tokens[token] if 0 <= token < self._vocabulary.size else b"?"
        self.fail(
            slot,
            RequestError(
                f"token {token} ({text!r}) after {len(entry.tokens)} tokens breaks the grammar",
                hint="something changed the logits after they were masked, or the token came from elsewhere",
            ),
        )

    def _fill_batch(self, batch: _Batch, slots: tuple[int, ...], mask: MaskArray) -> None:
        filled = batch.positions
        try:
            batch.matchers.fill(mask, batch.positions)
        except Exception as error:
            _log.warning("%d rows are retried one by one: %s", len(filled), error)
            filled = self._fill_singly(batch, slots, mask)
        for position in _empty_rows(mask, filled):
            slot = slots[position]
            entry = self._entries[slot]
            self.fail(
                slot,
                RequestError(
                    f"the grammar allows no token after {len(entry.tokens)} tokens",
                    hint="a part of the spec contradicts itself, or the vocabulary can't spell its text",
                ),
            )
            mask[position] = self._stop_row(entry.stop_token_ids)

    def _accept_singly(self, batch: _Batch, slots: tuple[int, ...], tokens: list[int]) -> list[bool]:
        """A batch call raised: find out whose fault it was, and fail only those.

        Some matchers may have moved before it did, and none tells: each is made anew from its journal.
        """
        verdicts = []
        for position, token in zip(batch.positions, tokens, strict=True):
            slot = slots[position]
            entry = self._entries[slot]
            try:
                matcher = entry.backend.start(entry.grammar, entry.stop_token_ids)
                replayed = all(matcher.accept(past) for past in entry.tokens[entry.start :])
                accepted = replayed and bool(entry.backend.batch([matcher]).accept([token])[0])
            except Exception as error:
                self.fail(slot, RequestError(f"its backend failed: {error}"))
                accepted = False
            else:
                entry.matcher = matcher
            verdicts.append(accepted)
        return verdicts

    def _fill_singly(self, batch: _Batch, slots: tuple[int, ...], mask: MaskArray) -> list[int]:
        """The same for masks, which no matcher moves for. Returns the positions that were filled."""
        filled = []
        for position in batch.positions:
            entry = self._entries[slots[position]]
            try:
                entry.backend.batch([entry.matcher]).fill(mask, [position])
            except Exception as error:
                self.fail(slots[position], RequestError(f"its backend failed: {error}"))
                mask[position] = self._stop_row(entry.stop_token_ids)
            else:
                filled.append(position)
        return filled

    def _batch(self, slots: tuple[int, ...]) -> None:
        """Group the slots of a step by backend; kept until slots or phases change."""
        if self._batched == slots:
            return
        active: dict[str, list[int]] = {}
        self._others = []
        for position, slot in enumerate(slots):
            entry = self._entries.get(slot)
            if entry is None:
                raise PipelineError(f"slot {slot} has no request", hint="call add_request first")
            if entry.phase is Phase.ACTIVE:
                active.setdefault(entry.backend.name, []).append(position)
            else:
                self._others.append(position)
        self._batches = []
        for positions in active.values():
            entries = [self._entries[slots[position]] for position in positions]
            matchers = entries[0].backend.batch([entry.matcher for entry in entries])
            self._batches.append(_Batch(positions, matchers))
        self._batched = slots

    def _stop_row(self, stop_token_ids: tuple[int, ...]) -> MaskArray:
        row = self._stop_rows.get(stop_token_ids)
        if row is None:
            row = np.zeros(self._vocabulary.words, np.uint32)
            for token in stop_token_ids:
                row[token // 32] |= np.uint32(1 << (token % 32))
            row = self._stop_rows[stop_token_ids] = row.view(np.int32)
        return row


def _empty_rows(mask: MaskArray, positions: list[int]) -> list[int]:
    """Rows without a single allowed token. Most rows show one early: look there first."""
    if not positions:
        return []
    alive: list[bool] = np.any(mask[: positions[-1] + 1, :_HEAD_WORDS], axis=1).tolist()
    return [p for p in positions if not alive[p] and not np.any(mask[p])]


_HEAD_WORDS = 64
