"""Masks after drafts: requests walk along the drafts of a step, get a mask at each
place, and take up the copy of their matcher that was made before.

A draft is taken only if the mask before it allows it, so no matcher has to refuse one.
Depends on the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from guided_plugin.errors import RequestError
from guided_plugin.grammar.base import MaskArray, Matcher, OutputClosing, allows
from guided_plugin.grammar.batches import RunningRequest
from guided_plugin.grammar.request_state import StateMark
from guided_plugin.grammar.table import GrammarTable
from guided_plugin.step import NO_TOKEN


def fill_with_drafts(
    table: GrammarTable,
    slots: tuple[int, ...],
    mask: MaskArray,
    drafts: Sequence[Sequence[int]],
) -> int:
    """Write the mask of slots[i] into mask[i], and after p + 1 drafts into mask[(p + 1)
    * len(slots) + i]. Returns how many were filled.

    drafts[p][i] is the slot's p-th draft, or NO_TOKEN if it has no more. The requests
    stay where they are. A draft that the grammar forbids is followed by masks that
    allow only stop tokens.
    """
    table.fill(slots, mask)
    if not drafts:
        return len(slots)
    return len(slots) + _Walk(
        table, slots, mask[: len(slots) * (len(drafts) + 1)]
    ).follow(drafts)


@dataclass(slots=True)
class _Origin:
    """The place that a request goes back to."""

    request: RunningRequest
    matcher: Matcher
    mark: StateMark
    closing: OutputClosing | None
    """The knowledge about its end."""


class _Walk:
    """Walks along the drafts of one step and fills their masks. Requests are named by
    their position in the step."""

    def __init__(
        self, table: GrammarTable, slots: tuple[int, ...], mask: MaskArray
    ) -> None:
        self._table = table
        self._slots = slots
        self._mask = mask
        self._origins: dict[int, _Origin] = {}
        self._failures = table.failures
        """The failures that stay when all requests have gone back."""

    def follow(self, drafts: Sequence[Sequence[int]]) -> int:
        """Fill the masks after the drafts, so many of them, and bring all requests
        back."""
        table = self._table
        count = len(self._slots)
        filled = 0
        led = table.led
        tokens_led = table.counts["led_tokens"]
        table.failures = []
        ahead: Sequence[int] = range(count)
        for place, tokens in enumerate(drafts):
            ahead = [i for i in ahead if self._moves(i, place, tokens[i])]
            if not ahead:
                break
            slots = tuple(self._slots[i] for i in ahead)
            table.accept(slots, [tokens[i] for i in ahead])
            table.led = {}
            table.fill(slots, self._mask[(place + 1) * count :], ahead)
            for slot in table.led:
                led.setdefault(slot, place + 1)
            self._keep_failures()
            filled += len(ahead)
        table.failures = [*self._failures, *table.failures]
        table.led = led
        table.counts["led_tokens"] = tokens_led
        for origin in self._origins.values():
            request = origin.request
            request.matcher = origin.matcher
            request.closing = origin.closing
            request.state.go_back(origin.mark)
            request.error = None
        if self._origins:
            table.regroup()
        return filled

    def _moves(self, i: int, place: int, token: int) -> bool:
        """True if a request moves past its draft at a place. After a forbidden one, its
        masks are closed."""
        if token == NO_TOKEN:
            return False
        request = self._table.requests[self._slots[i]]
        count = len(self._slots)
        state = request.state
        if state.ends_with(token) or not allows(self._mask[place * count + i], token):
            self._mask[(place + 1) * count + i :: count] = self._table.stop_row(request)
            return False
        if i not in self._origins:
            closing = request.closing and request.closing.copy()
            try:
                matcher = request.matcher.fork()
            except Exception as error:
                what = f"its backend could not copy a matcher: {error}"
                self._table.fail(self._slots[i], RequestError(what))
                return self._moves(i, place, token)
            self._origins[i] = _Origin(request, matcher, state.mark(), closing)
        return True

    def _keep_failures(self) -> None:
        """Keep failures on the way. A matcher that refuses what its mask allows can't be
        trusted, nor one whose call was abandoned; and where a place has no mask, the
        stop token that is sampled there would look like the end of the output."""
        for slot, error in self._table.failures:
            self._failures.append((slot, error))
            origin = self._origins.pop(self._slots.index(slot), None)
            if origin is not None:
                origin.request.state.go_back(origin.mark)
                origin.request.state.fail()
        self._table.failures = []
