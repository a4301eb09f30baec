"""`Recall`: what was found behind the same tokens of the same spec before, found again without a matcher.

A place in an output is named by the tokens of the last two steps that brought several, and the newest one:
between two runs of forced text there is a value, and what closes it. That is a guess, nearly always right:
who verifies drafts decides, and one that was refused is looked for again. Depends on the grammar protocols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from guided_plugin.grammar.batches import RunningRequest
from guided_plugin.grammar.earlier import Followers
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec.memo import ENTRY_BYTES, Latest

_MEMO_BYTES = 16 << 20
_USES = 16
"""After so many at most a place is looked at again: another one may have its name, or more is known. First
after one, then after twice as many each time that the same is found."""

_STRUCTURE, _DIGITS = frozenset(b'"\\{}[]:,'), frozenset(b"0123456789")
_DIGIT, _WORD = -3, -2
"""In place of a token of a value; less by one for each digit before it. (-1 has the hash of -2.)"""
_ACTIVE, _WAITING = Phase.ACTIVE, Phase.WAITING


@dataclass(slots=True)
class Found:
    """What follows a place."""

    tokens: tuple[int, ...] = ()
    source: Followers | None = None
    """What it followed earlier; None: it must follow, or nothing else was known of the place."""
    text: bytes = b""
    """What was worth an offer then."""
    uses: int = 0
    """Until it is looked at again,"""
    kept: int = 0
    """of so many."""


NOTHING = Found()


class _Place:
    """Where a request is. The request itself is not kept: when it leaves, its matcher must go."""

    __slots__ = ("digits", "key", "kind", "last", "offer", "run", "spec", "state")

    def __init__(self, request: RunningRequest) -> None:
        self.state, self.spec = request.state, hash(request.spec)
        self.run = self.last = self.key = self.kind = self.digits = 0
        self.offer = NOTHING


class Recall:
    """Of the requests of one vocabulary. Used by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        texts = [*enumerate(vocabulary.text_tokens)]
        self._digits = frozenset(i for i, text in texts if text and _DIGITS.issuperset(text))
        self._structure = frozenset(i for i, text in texts if not text or not _STRUCTURE.isdisjoint(text))
        self._known: Latest[int, Found] = Latest(_MEMO_BYTES)
        self._places: dict[int, _Place] = {}

    def after(self, slot: int, request: RunningRequest, tokens: Sequence[int]) -> tuple[Found | None, bool]:
        """What follows a request's new tokens, which its grammar has not seen yet; None if that is unknown.
        And whether it is worth looking for: at once if nothing is known, else when there is time."""
        phase = request.state.phase
        if not tokens or phase is not _ACTIVE:
            return None, bool(tokens) and phase is _WAITING and request.state.turns(tokens)
        place = self._places.get(slot)
        if place is None or place.state is not request.state:
            place = self._places[slot] = _Place(request)
        offer = place.offer
        if offer.tokens and offer.tokens[0] != tokens[0] and offer.source is None:
            self._known.put(place.key, Found(), ENTRY_BYTES)
        last, alone, place.offer = tokens[-1], len(tokens) == 1, NOTHING
        kind = _DIGIT if last in self._digits else 0 if last in self._structure else _WORD
        if not alone:
            before, place.last = place.last, hash(tuple(tokens[:-1]))
            place.run = hash((before, place.last))
        place.digits = place.digits + 1 if kind == _DIGIT and alone else 0
        # A digit is any digit: dates go on behind the fourth. The second word of a text is any word.
        known = _DIGIT - place.digits if kind == _DIGIT else last
        if kind == place.kind == _WORD:
            known = _WORD
        place.kind = kind if alone else 0
        place.key = hash((place.spec, place.run, known))
        found = self._known.get(place.key)
        if found is None:
            return None, True
        found.uses -= 1
        if found.source is not None and found.source.likeliest != found.text:
            return None, True
        place.offer = found
        return found, found.uses < 0

    def keep(
        self,
        slot: int,
        request: RunningRequest,
        tokens: tuple[int, ...],
        source: Followers | None,
        *,
        offered: bool,
    ) -> Found:
        """This follows where a request is now; whether it is offered to it."""
        found = Found(tokens, source, source.likeliest if source else b"")
        place = self._places.get(slot)
        if place is not None and place.state is request.state:
            old = self._known.get(place.key)
            if old is not None and old.tokens == tokens:
                found.uses = found.kept = min(2 * old.kept + 1, _USES)
            self._known.put(place.key, found, ENTRY_BYTES)
            place.offer = found if offered else NOTHING
        return found
