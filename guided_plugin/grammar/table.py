"""The grammar side of a step: which slot is where in which grammar. Touches backends; no tensors.

This is what runs inline in a host's thread or in a process of its own; it knows slots, tokens and mask
rows on the host, and nothing of devices. Nothing here raises for what one request did: its row fails
closed (only stop tokens stay allowed) and `failures` tells why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from guided_plugin.errors import BudgetError, GuidedError, PipelineError, RequestError
from guided_plugin.grammar.base import Backend, Grammar, MaskArray, Matcher, MatcherBatch
from guided_plugin.grammar.renewal import Renewals
from guided_plugin.grammar.request_state import Phase, RequestState, StateMark
from guided_plugin.grammar.unbounded import Quarantine, UnboundedRows
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec
from guided_plugin.step import NO_TOKEN

__all__ = ["GrammarTable", "Phase"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    request_id: str
    spec: OutputSpec
    grammar: Grammar
    matcher: Matcher
    backend: Backend
    stop_token_ids: tuple[int, ...]
    state: RequestState
    """With the journal: every token that counts, for replay and for checking."""
    error: GuidedError | None = None
    alone: int = 0
    """For how many calls it is worked on alone, where its backend does not bound its calls."""

    def replayed(self) -> tuple[Matcher, bool]:
        """A matcher made anew from the journal, and whether it took all of it."""
        matcher = self.backend.start(self.grammar, self.stop_token_ids)
        return matcher, all(matcher.accept(token) for token in self.state.tokens[self.state.start :])


@dataclass(slots=True)
class _Batch:
    """The matchers of one backend among the slots of a step."""

    positions: list[int]
    """Where in the step's slots."""
    matchers: MatcherBatch
    bounded: bool
    """Whether the backend bounds what a call costs."""
    alone: bool
    """Whether each is worked on by itself."""


@dataclass(slots=True)
class _Group:
    """The slots of a step, by what is done with them."""

    batches: list[_Batch]
    others: list[int]
    """Where in the slots those are that no matcher guides: not yet, or no more."""


@dataclass(slots=True)
class _Before:
    """What a request was before a look ahead."""

    entry: _Entry
    phase: Phase
    mark: StateMark
    moves: int = 0
    """Tokens that its matcher has taken since."""


class GrammarTable:
    """Running grammars by slot. `fill` and `accept` take the guided slots of one step, in row order."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        row_seconds: float = 0.2,
        row_longest: float = 1.0,
        quarantine: Quarantine | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        """`row_seconds` of processor time, or `row_longest` by the clock, is what a call for one request may
        take; `quarantine` gets the specs that take longer. `progress` is called while a step is long."""
        self._vocabulary = vocabulary
        self._unbounded = UnboundedRows(row_seconds, row_longest, quarantine, progress)
        self._entries: dict[int, _Entry] = {}
        self._groups: dict[tuple[int, ...], _Group] = {}
        """By the slots that are worked on together; forgotten when a phase or a matcher changes."""
        self._stop_rows: dict[tuple[int, ...], MaskArray] = {}
        self._renewals = Renewals()
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
        journal = [int(token) for token in tokens]
        try:
            matcher = backend.start(grammar, stops)
            entry = _Entry(request_id, spec, grammar, matcher, backend, stops, RequestState(trigger, stops))
            self._entries[slot] = entry
            self._replay(slot, entry, journal)
        except BaseException as error:
            # The host was never told that the slot is in use: nobody would give it back.
            self._entries.pop(slot, None)
            if isinstance(error, BudgetError):
                raise error.for_request(request_id) from error
            if not isinstance(error, Exception):
                raise
            raise RequestError(f"its backend failed: {error}", request_id=request_id) from error
        finally:
            self._groups.clear()

    def _replay(self, slot: int, entry: _Entry, tokens: list[int]) -> None:
        def replay() -> None:
            for token in tokens:
                self._accept_one(slot, entry, token)

        if entry.grammar.bounded or not tokens:
            replay()
            return
        error = self._unbounded.replay(entry, replay)
        if error is not None:
            raise error

    def overdue(self) -> float:
        """For how many seconds the longest call runs that was given up; 0.0 if none does."""
        return self._unbounded.overdue()

    def remove(self, slot: int) -> None:
        """Give a slot back. Nothing of its request stays."""
        if self._entries.pop(slot, None) is None:
            raise PipelineError(f"slot {slot} is empty")
        self._groups.clear()

    def fail(self, slot: int, error: GuidedError) -> None:
        """Fail a request closed."""
        entry = self._entries[slot]
        entry.state.fail()
        entry.error = error.for_request(entry.request_id)
        self.failures.append((slot, entry.error))
        self._groups.clear()

    def phase(self, slot: int) -> Phase:
        """Where the request in a slot is."""
        return self._entries[slot].state.phase

    def tokens(self, slot: int) -> tuple[int, ...]:
        """The journal of a slot."""
        return tuple(self._entries[slot].state.tokens)

    def fill(self, slots: tuple[int, ...], mask: MaskArray, drafts: Sequence[Sequence[int]] = ()) -> None:
        """Write the mask of slots[i] into mask[i].

        `drafts` may follow, one after the other: drafts[p][i] is the slot's p-th, or NO_TOKEN if it has no
        more. Its mask after p + 1 of them goes into mask[(p + 1) * len(slots) + i]. Nobody moves for drafts;
        one that the grammar forbids is followed by masks with stop tokens alone.
        """
        self._fill(slots, mask)
        if drafts:
            self._look_ahead(slots, mask, drafts)

    def _fill(self, slots: tuple[int, ...], mask: MaskArray, rows: list[int] | None = None) -> None:
        """Into mask[rows[i]]; without rows, into mask[i]."""
        group = self._group(slots)
        for batch in group.batches:
            own = batch.positions if rows is None else [rows[position] for position in batch.positions]
            self._fill_batch(batch, slots, mask, own)
        for position in group.others:
            entry = self._entries[slots[position]]
            waiting = entry.state.phase is Phase.WAITING
            row = position if rows is None else rows[position]
            mask[row] = -1 if waiting else self._stop_row(entry.stop_token_ids)

    def _look_ahead(self, slots: tuple[int, ...], mask: MaskArray, drafts: Sequence[Sequence[int]]) -> None:
        """Fill the masks after drafts, and bring everybody back."""
        count = len(slots)
        failures, self.failures = self.failures, []
        before: dict[int, _Before] = {}
        ahead: Sequence[int] = range(count)
        for place, tokens in enumerate(drafts):
            goes = []
            for position in ahead:
                token = tokens[position]
                if token == NO_TOKEN:
                    continue
                entry = self._entries[slots[position]]
                if entry.state.ends_with(token) or not _allows(mask[place * count + position], token):
                    end = count * (len(drafts) + 1)
                    rest = slice((place + 1) * count + position, end, count)
                    mask[rest] = self._stop_row(entry.stop_token_ids)
                    continue
                was = before.setdefault(position, _Before(entry, entry.state.phase, entry.state.mark()))
                was.moves += entry.state.phase is Phase.ACTIVE
                goes.append(position)
            if not goes:
                break
            going = tuple(slots[position] for position in goes)
            self.accept(going, [tokens[position] for position in goes])
            if self.failures:
                # Their masks allowed the tokens: such matchers can't be trusted any more.
                failures += self.failures
                for position in goes:
                    if before[position].entry.state.phase is Phase.FAILED:
                        was = before.pop(position)
                        was.entry.state.go_back(was.mark)
                        was.entry.state.fail()
            self._fill(going, mask[(place + 1) * count :], goes)
            # Whoever fails here, without any token to go on with, may never get here.
            self.failures = []
            ahead = [position for position in goes if position in before]
        self.failures = failures
        for position, was in before.items():
            self._go_back(slots[position], was)

    def _go_back(self, slot: int, was: _Before) -> None:
        entry = was.entry
        if entry.state.phase is not was.phase:
            entry.error = None
            self._groups.clear()
        entry.state.go_back(was.mark)
        if not was.moves:
            return
        try:
            entry.matcher.rollback(was.moves)
        except Exception:
            # Some grammars can't go back, nor can a matcher whose draft led to a dead end.
            self._bring_back(slot, entry)

    def _bring_back(self, slot: int, entry: _Entry) -> None:
        try:
            entry.matcher, there = entry.replayed()
        except Exception as error:
            self.fail(slot, RequestError(f"its backend could not take drafts back: {error}"))
            return
        self._groups.clear()
        if there:
            return
        self._renew(slot, entry, lambda matcher: True, RequestError("its backend could not take drafts back"))

    def accept(self, slots: tuple[int, ...], tokens: Sequence[int]) -> None:
        """Move every slot past the token that was sampled for it; NO_TOKEN where none was."""
        if NO_TOKEN in tokens:
            sampled = [(slot, token) for slot, token in zip(slots, tokens, strict=True) if token != NO_TOKEN]
            if not sampled:
                return
            slots, tokens = tuple(slot for slot, _ in sampled), [token for _, token in sampled]
        group = self._group(slots)
        changed = False
        for batch in group.batches:
            chosen = [tokens[position] for position in batch.positions]
            verdicts, retried = self._accept_batch(batch, slots, chosen)
            changed |= retried
            for position, token, accepted in zip(batch.positions, chosen, verdicts, strict=True):
                entry = self._entries[slots[position]]
                if not accepted:
                    changed = True
                    failed = entry.state.phase is Phase.FAILED
                    if failed or not self._accepts_anew(slots[position], entry, token):
                        continue
                if entry.state.take(token):
                    changed = True
        for position in group.others:
            entry = self._entries[slots[position]]
            before = entry.state.phase
            self._accept_one(slots[position], entry, tokens[position])
            changed |= entry.state.phase is not before
        if changed:
            self._groups.clear()

    def _accept_batch(
        self, batch: _Batch, slots: tuple[int, ...], tokens: list[int]
    ) -> tuple[list[bool], bool]:
        """Whether each matcher took its token, and whether matchers were replaced."""
        if not batch.bounded:
            return self._accept_unbounded(batch, slots, tokens)
        try:
            return batch.matchers.accept(tokens), False
        except Exception as error:
            _log.warning("%d rows are retried one by one: %s", len(tokens), error)
            return self._accept_singly(batch, slots, tokens), True

    def _accept_unbounded(
        self, batch: _Batch, slots: tuple[int, ...], tokens: list[int]
    ) -> tuple[list[bool], bool]:
        entries = [self._entries[slots[position]] for position in batch.positions]
        together = None if batch.alone else batch.matchers
        verdicts = self._unbounded.accept(entries, together, tokens)
        for position, verdict in zip(batch.positions, verdicts, strict=True):
            if isinstance(verdict, GuidedError):
                self.fail(slots[position], verdict)
        return [verdict is True for verdict in verdicts], _regroups(batch, entries)

    def _accept_one(self, slot: int, entry: _Entry, token: int) -> None:
        phase = entry.state.phase
        if phase is Phase.ACTIVE:
            if not entry.matcher.accept(token) and not self._accepts_anew(slot, entry, token):
                return
        elif phase is Phase.WAITING and token < 0:
            self.fail(slot, self._refusal(entry, token))
            return
        entry.state.take(token)

    def _refusal(self, entry: _Entry, token: int) -> GuidedError:
        over = _over_limit(entry)
        if over is not None:
            return over
        text = self._vocabulary.tokens[token] if 0 <= token < self._vocabulary.size else b"?"
        return RequestError(
            f"token {token} ({text!r}) after {len(entry.state.tokens)} tokens breaks the grammar",
            hint="something changed the logits after they were masked, or the token came from elsewhere",
        )

    def _fill_batch(self, batch: _Batch, slots: tuple[int, ...], mask: MaskArray, rows: list[int]) -> None:
        filled = rows
        try:
            if batch.bounded:
                batch.matchers.fill(mask, rows)
            else:
                filled = self._fill_unbounded(batch, slots, mask, rows)
        except Exception as error:
            _log.warning("%d rows are retried one by one: %s", len(filled), error)
            filled = self._fill_singly(batch, slots, mask, rows)
        for row in _empty_rows(mask, filled):
            slot = slots[batch.positions[rows.index(row)]]
            entry = self._entries[slot]
            if not self._fills_anew(slot, entry, mask, row):
                mask[row] = self._stop_row(entry.stop_token_ids)

    def _fills_anew(self, slot: int, entry: _Entry, mask: MaskArray, row: int) -> bool:
        """Whether a new matcher fills a row for which the old one had no token; else the request failed."""

        def fill(matcher: Matcher) -> bool:
            entry.backend.batch([matcher]).fill(mask, [row])
            return bool(np.any(mask[row]))

        own_end = _over_limit(entry) or RequestError(
            f"the grammar allows no token after {len(entry.state.tokens)} tokens",
            hint="a part of the spec contradicts itself, or the vocabulary can't spell its text",
        )
        return self._renew(slot, entry, fill, own_end)

    def _accepts_anew(self, slot: int, entry: _Entry, token: int) -> bool:
        """The same for a token that was refused."""
        return self._renew(slot, entry, lambda matcher: matcher.accept(token), self._refusal(entry, token))

    def _renew(
        self, slot: int, entry: _Entry, go_on: Callable[[Matcher], bool], own_end: GuidedError
    ) -> bool:
        """Whether a request goes on with a new matcher; else it failed."""
        renewed = self._renewals.renew(entry, go_on)
        self._groups.clear()
        if not renewed:
            self.fail(slot, own_end if renewed is None else _used_up(entry))
        return bool(renewed)

    def _accept_singly(self, batch: _Batch, slots: tuple[int, ...], tokens: list[int]) -> list[bool]:
        """A batch call raised: find out whose fault it was, and fail only those.

        Some matchers may have moved before it did, and none tells: each is made anew from its journal.
        """
        verdicts = []
        for position, token in zip(batch.positions, tokens, strict=True):
            slot = slots[position]
            entry = self._entries[slot]
            try:
                matcher, there = entry.replayed()
                accepted = there and bool(entry.backend.batch([matcher]).accept([token])[0])
            except Exception as error:
                self.fail(slot, RequestError(f"its backend failed: {error}"))
                accepted = False
            else:
                entry.matcher = matcher
            verdicts.append(accepted)
        return verdicts

    def _fill_singly(
        self, batch: _Batch, slots: tuple[int, ...], mask: MaskArray, rows: list[int]
    ) -> list[int]:
        """The same for masks, which no matcher moves for. Returns the rows that were filled."""
        filled = []
        for position, row in zip(batch.positions, rows, strict=True):
            entry = self._entries[slots[position]]
            try:
                entry.backend.batch([entry.matcher]).fill(mask, [row])
            except Exception as error:
                self.fail(slots[position], RequestError(f"its backend failed: {error}"))
                mask[row] = self._stop_row(entry.stop_token_ids)
            else:
                filled.append(row)
        return filled

    def _fill_unbounded(
        self, batch: _Batch, slots: tuple[int, ...], mask: MaskArray, rows: list[int]
    ) -> list[int]:
        """The rows that were filled."""
        entries = [self._entries[slots[position]] for position in batch.positions]
        together = None if batch.alone else batch.matchers
        masks, errors = self._unbounded.fill(entries, together, mask.shape[1])
        mask[rows] = masks
        for position, row, entry, error in zip(batch.positions, rows, entries, errors, strict=True):
            if error is not None:
                self.fail(slots[position], error)
                mask[row] = self._stop_row(entry.stop_token_ids)
        if _regroups(batch, entries):
            self._groups.clear()
        return [row for row, error in zip(rows, errors, strict=True) if error is None]

    def _group(self, slots: tuple[int, ...]) -> _Group:
        """The slots of a step by backend."""
        group = self._groups.get(slots)
        if group is not None:
            return group
        active: dict[tuple[str, bool, bool], list[int]] = {}
        group = _Group([], [])
        for position, slot in enumerate(slots):
            entry = self._entries.get(slot)
            if entry is None:
                raise PipelineError(f"slot {slot} has no request", hint="call add_request first")
            if entry.state.phase is Phase.ACTIVE:
                kind = entry.backend.name, entry.grammar.bounded, entry.alone > 0
                active.setdefault(kind, []).append(position)
            else:
                group.others.append(position)
        for (_, bounded, alone), positions in active.items():
            entries = [self._entries[slots[position]] for position in positions]
            matchers = entries[0].backend.batch([entry.matcher for entry in entries])
            group.batches.append(_Batch(positions, matchers, bounded, alone))
        if len(self._groups) >= _GROUPS:
            self._groups.clear()
        self._groups[slots] = group
        return group

    def _stop_row(self, stop_token_ids: tuple[int, ...]) -> MaskArray:
        row = self._stop_rows.get(stop_token_ids)
        if row is None:
            row = np.zeros(self._vocabulary.words, np.uint32)
            for token in stop_token_ids:
                row[token // 32] |= np.uint32(1 << (token % 32))
            row = self._stop_rows[stop_token_ids] = row.view(np.int32)
        return row


def _regroups(batch: _Batch, entries: list[_Entry]) -> bool:
    """Whether some are worked on alone from now on, or no longer."""
    return any((entry.alone > 0) != batch.alone for entry in entries)


def _over_limit(entry: _Entry) -> GuidedError | None:
    """An error if its matcher went over a limit of its backend."""
    ask: Callable[[], str] | None = getattr(entry.matcher, "limit", None)
    limit = ask() if ask is not None else ""
    if not limit:
        return None
    return RequestError(
        f"its grammar is over a limit of its backend after {len(entry.state.tokens)} tokens: {limit}",
        hint="write it without ambiguity, lists as `item*`, and repetitions with smaller bounds",
    )


def _used_up(entry: _Entry) -> GuidedError:
    count = len(entry.state.tokens)
    return RequestError(
        f"what it shares with other requests of its grammar is used up after {count} tokens",
        hint="send it again; smaller length bounds and fewer counted patterns leave more room",
    )


def _empty_rows(mask: MaskArray, positions: list[int]) -> list[int]:
    """Rows without a single allowed token. Most rows show one early: look there first."""
    if not positions:
        return []
    alive: list[bool] = np.any(mask[: positions[-1] + 1, :_HEAD_WORDS], axis=1).tolist()
    return [p for p in positions if not alive[p] and not np.any(mask[p])]


def _allows(row: MaskArray, token: int) -> bool:
    return 0 <= token < 32 * len(row) and bool(row[token // 32] >> (token % 32) & 1)


_HEAD_WORDS = 64

_GROUPS = 64
"""Groups that are remembered: of a step there is one, and with drafts two for each position."""
