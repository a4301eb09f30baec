"""`LearntDrafts`: what follows in an output, with what earlier outputs of the same spec
and salt taught.

Text that must follow a place is found again without a grammar: an `Outline` names the
place by what decides that text. Where nothing must follow, the name that mostly came
next is offered, with what stands between two values. Values are not learnt. The host
that verifies drafts decides. Depends on the grammar protocols.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from guided_plugin.grammar.batches import RunningRequest
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.layout import LAYOUTS_BYTES, Layouts, OutputLayout
from guided_plugin.grammar.outline import FREE, Outline, words_of
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec.memo import ENTRY_BYTES, Latest
from guided_plugin.spec.output_spec import language_of

_MEMO_BYTES = 16 << 20

_RECENT = 16
"""Times that are known of what came after a name: what comes now is offered after nine,
whatever came before. With 4 of them real documents took 4% more forward passes, with 8
0.5%, with 32 as many."""

_TEXT_BYTES = 96
"""Longer texts are not counted."""

_BEFORE = 128
"""Bytes of the text outside of documents that are kept, to find what begins one."""

_AT_ONCE = 64
"""Tokens of a request that are read at once. After steps without drafts there are many;
a batch waits."""

_OTHERS = frozenset(b'"\\{}[]:,0123456789')
_ACTIVE = Phase.ACTIVE
_WAITING = Phase.WAITING


class Followers:
    """What came after one name lately."""

    def __init__(self) -> None:
        self._recent: deque[bytes] = deque(maxlen=_RECENT)
        self.likeliest = b""
        """What came most of the time; empty if nothing did."""
        self.sure = 0.0
        """In what part of the time that came."""

    def count(self, text: bytes) -> None:
        """This came once more."""
        self._recent.append(text)
        most = max(set(self._recent), key=self._recent.count)
        count = self._recent.count(most)
        self.sure = count / (len(self._recent) + 1)
        self.likeliest = most if 2 * count > len(self._recent) else b""


@dataclass(slots=True)
class Found:
    """What follows a place."""

    tokens: tuple[int, ...] = ()
    source: Followers | Layouts | None = None
    """What it followed earlier; None: it must follow, or nothing can be known of the
    place."""
    text: bytes = b""
    """What was likeliest then."""


_Step = tuple[Outline, list[tuple[bytes, bytes]]]
"""What `Outline.after` returns."""


class _Trace:
    """Where a request is. The request itself is not kept: when it leaves, its matcher
    must go."""

    def __init__(self, request: RunningRequest) -> None:
        spec = language_of(request.spec)
        self.state, self.words = request.state, words_of(spec.text, spec.kind)
        self.group = self.name = hash((spec, request.spec.salt))
        """Of all requests that learn from each other; and of what came before the
        document."""
        self.before = b""
        """The end of that."""
        self.outline: Outline | None = None
        """Where it is in the document, if it is in one."""
        self.length = request.state.start
        """Tokens that were read, or came before its grammar."""
        self.layout: OutputLayout | None = None
        """Where it is among whitespace, if its spec leaves that open,"""
        self.laid_out = self.length
        """after so many tokens."""
        self.letters = 0
        """In how many of the last steps all tokens had letters only."""


class LearntDrafts:
    """Of the requests of one vocabulary. Used by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary, forced: ForcedTokens, most: int) -> None:
        """`most`: tokens that are offered at once."""
        self._tokens = vocabulary.tokens
        self._forced = forced
        self._most = most
        texts = enumerate(vocabulary.text_tokens)
        self._letters = frozenset(
            i for i, text in texts if text and _OTHERS.isdisjoint(text)
        )
        self._places: Latest[int, Outline] = Latest(_MEMO_BYTES)
        self._steps: Latest[tuple[Outline, int], _Step] = Latest(_MEMO_BYTES)
        self._followers: Latest[int, Followers] = Latest(_MEMO_BYTES)
        self._layouts: Latest[str | None, Layouts] = Latest(_MEMO_BYTES)
        """By salt, of all specs: a model keeps to its own."""
        self._traces: dict[int, _Trace] = {}

    def after(
        self, slot: int, request: RunningRequest, tokens: Sequence[int]
    ) -> tuple[Found | None, bool]:
        """What follows a request's new tokens, which its grammar has not seen yet; None
        if that is unknown. And whether it is worth looking for."""
        phase = request.state.phase
        if not tokens or phase is not _ACTIVE:
            return None, bool(tokens) and phase is _WAITING and request.state.turns(
                tokens
            )
        trace = self._trace(slot, request)
        # What ends an output is read at once: it is not asked again.
        outline = self._read(trace, tokens, new=request.state.ends_with(tokens[-1]))
        letters = self._letters.issuperset(tokens)
        trace.letters = letters and trace.letters + 1
        if trace.letters > 1 and (trace.outline is None or trace.outline.in_text):
            return None, False
        found: Found | None = None if outline is None else outline.found
        known = found is not None and (
            found.source is None or found.source.likeliest == found.text
        )
        return (
            (found, False)
            if known
            else (None, getattr(request.matcher, "forces", False))
        )

    def look(self, slot: int, request: RunningRequest) -> Found:
        """Find what follows where a request is now, with its grammar."""
        if request.state.phase is not _ACTIVE:
            return Found()
        trace = self._trace(slot, request)
        matcher: Any = request.matcher
        outline = self._read(trace)
        layout = self._laid_out(trace)
        laid_out = found = Found()
        if layout is not None:
            tokens = self._forced.behind(matcher, self._most, layout=layout)
            must = matcher.forced() if tokens else b""
            guessed = sum(map(len, map(self._text, tokens))) > len(must)
            laid_out = Found(
                tokens, layout.layouts if guessed else None, layout.layouts.likeliest
            )
            if must:
                found = laid_out
        if not found.tokens:
            found = Found(self._forced.behind(matcher, self._most))
        if outline is not None and not found.tokens:
            source = self._after(trace, outline.key)
            tokens = self._continued(matcher, outline.rest_of(source.likeliest), layout)
            found = Found(tokens, source, source.likeliest)
        if found.tokens[: len(laid_out.tokens)] != laid_out.tokens:
            found = laid_out  # what came earlier was perhaps nested less deep
        if outline is not None:
            outline.found = found
        return found

    def read(self, slot: int, request: RunningRequest) -> None:
        """Read what a request has written, when there is time for it."""
        if request.state.phase is _ACTIVE:
            trace = self._trace(slot, request)
            self._read(trace)
            self._laid_out(trace)

    def _laid_out(self, trace: _Trace) -> OutputLayout | None:
        """Where a request is among whitespace, and learn from what it has written."""
        layout = trace.layout
        tokens = trace.state.tokens
        if layout is not None:
            layout.feed(b"".join(map(self._text, tokens[trace.laid_out :])), learn=True)
            trace.laid_out = len(tokens)
        return layout

    def _continued(
        self, matcher: Any, text: bytes, layout: OutputLayout | None
    ) -> tuple[int, ...]:
        """The tokens of a text, and of what must follow it; none if it may not come."""
        ahead = matcher.fork() if text and getattr(matcher, "forces", False) else None
        if ahead is None or not ahead.accept_text(text):
            return ()
        return self._forced.behind(matcher, self._most, text, ahead, layout)

    def _after(self, trace: _Trace, key: bytes) -> Followers:
        """What came after a name in outputs of the same spec and salt."""
        known = self._followers
        name = hash((trace.group, key))
        return known.get(name) or known.put(
            name, Followers(), ENTRY_BYTES + _RECENT * _TEXT_BYTES
        )

    def _trace(self, slot: int, request: RunningRequest) -> _Trace:
        trace = self._traces.get(slot)
        if trace is None or trace.state is not request.state:
            trace = self._traces[slot] = _Trace(request)
            if trace.words.text and request.grammar.spec.whitespace == "flexible":
                known = self._layouts
                salt = request.spec.salt
                trace.layout = OutputLayout(
                    known.get(salt) or known.put(salt, Layouts(), LAYOUTS_BYTES)
                )
            if trace.words.begins is None:
                trace.outline, _ = self._made(Outline(trace.words, trace.group), b"")
        return trace

    def _read(
        self, trace: _Trace, newest: Sequence[int] = (), *, new: bool = True
    ) -> Outline | None:
        """Read a request's tokens, of which the newest ones are not in its state.
        Returns where it is in a document, if it is in one and all were read. `new`:
        also those that no output brought to such a place before, each of which takes
        several times as long."""
        known = trace.state.tokens
        tokens = (
            newest if trace.length == len(known) else [*known[trace.length :], *newest]
        )
        for token in tokens[:_AT_ONCE]:
            if not self._go_on(trace, token, new):
                return None
            trace.length += 1
        return trace.outline if trace.length == len(known) + len(newest) else None

    def _go_on(self, trace: _Trace, token: int, new: bool) -> bool:
        """Move a request past a token, and learn from it. Whether it was read."""
        outline = trace.outline
        if outline is None:
            text = trace.before + self._text(token)
            begin = trace.words.begins and trace.words.begins.search(text)
            end = begin.end() if begin else len(text)
            trace.name = hash((trace.name, text[:end]))
            trace.before = text[-_BEFORE:]
            if not begin:
                return True
            step = self._made(Outline(trace.words, trace.name), text[end:])
        elif outline.begun == FREE and token in self._letters:
            return True
        else:
            known = self._steps
            key = (outline, token)
            found = known.get(key)
            if found is None and not new:
                return False
            step = found or known.put(
                key, self._made(outline, self._text(token)), ENTRY_BYTES
            )
        trace.outline, learnt = step
        for before, between in learnt:
            if len(between) <= _TEXT_BYTES:
                self._after(trace, before).count(between)
        if trace.outline.ended and trace.words.begins:
            trace.name = trace.outline.name
            trace.before = trace.outline.begun
            trace.outline = None
        return True

    def _made(self, outline: Outline, text: bytes) -> _Step:
        """What comes of a text at a place: the same place for all outputs that come to
        equal ones."""
        place, learnt = outline.after(text)
        if place.begun.startswith(FREE):
            place.found = Found()  # it goes on
        known = self._places
        name = hash((place.name, place.begun, place.key, place.since))
        size = ENTRY_BYTES + len(place.begun) + len(place.since)
        return known.get(name) or known.put(name, place, size), learnt

    def _text(self, token: int) -> bytes:
        # The grammar refuses a token that the vocabulary does not have.
        return self._tokens[token] if token < len(self._tokens) else b""
