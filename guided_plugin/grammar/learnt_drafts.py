"""`LearntDrafts`: what follows in an output, with what earlier outputs of the same spec
and salt taught.

Text that must follow a place is found again without a grammar: an `Outline` names the
place by what decides that text. Where nothing must follow, the name that mostly came
next is offered, with what stands between two values. Values are not learnt. The host
that verifies drafts decides. Depends on the grammar protocols.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from guided_plugin.grammar.batches import RunningRequest
from guided_plugin.grammar.forced import LOOK_SECONDS, MOST_BYTES, ForcedTokens
from guided_plugin.grammar.layout import LAYOUTS_BYTES, Layouts
from guided_plugin.grammar.outline import FREE, Outline, Step, words_of
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


_OTHERS = frozenset(b'"\\')


class Followers:
    """The names that came after one name lately."""

    def __init__(self) -> None:
        self._recent: deque[bytes] = deque(maxlen=_RECENT)
        self.likeliest = b""
        """Return what came most of the time; empty if nothing did."""
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
    """The tokens that follow a place."""

    tokens: tuple[int, ...] = ()
    source: Followers | Layouts | None = None
    """The record from which some of it was learnt; None: it must follow, or nothing can
    be known of the place."""
    seen: tuple[tuple[Followers | Layouts, bytes], ...] = ()
    """The records of earlier outputs, each with what was likeliest then."""

    @property
    def current(self) -> bool:
        """True if the same would be found now."""
        return all(learnt.likeliest == text for learnt, text in self.seen)


class _Trace:
    """The progress of a request. The request itself is not kept: when it leaves, its
    matcher must go."""

    def __init__(self, request: RunningRequest) -> None:
        spec = language_of(request.spec)
        self.state = request.state
        self.words = words_of(spec.text, spec.kind)
        self.group = hash((spec, request.spec.salt))
        """The key of all requests that learn from each other."""
        self.documents = 0
        """The number of documents that have begun."""
        self.before = b""
        """The end of the text since the last one."""
        self.outline: Outline | None = None
        """Its place in the document, if it is in one."""
        self.length = request.state.start
        """Tokens that were read, or came before its grammar."""
        self.layouts: Layouts | None = None
        """The layouts that its whitespace teaches, if its spec leaves that open."""


class LearntDrafts:
    """The drafts that one vocabulary's requests teach. Used by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary, forced: ForcedTokens, most: int) -> None:
        """`most`: tokens that are offered at once."""
        self._tokens = vocabulary.tokens
        self._forced = forced
        self._most = most
        self._letters = frozenset(
            token
            for token, text in enumerate(vocabulary.text_tokens)
            if text and _OTHERS.isdisjoint(text)
        )
        """Tokens that can't end a text or a part of it that JSON escapes."""
        self._places: Latest[int, Outline] = Latest(_MEMO_BYTES)
        self._steps: Latest[tuple[Outline, int], Step] = Latest(_MEMO_BYTES)
        self._followers: Latest[int, Followers] = Latest(_MEMO_BYTES)
        self._layouts: Latest[str | None, Layouts] = Latest(_MEMO_BYTES)
        """By salt, of all specs: a model keeps to its own."""
        self._traces: dict[int, _Trace] = {}

    def after(
        self, slot: int, request: RunningRequest, tokens: Sequence[int]
    ) -> tuple[Found | None, bool]:
        """Return what follows a request's new tokens, which its grammar has not seen
        yet; None if that is unknown. And whether it is worth looking for."""
        state = request.state
        if not tokens:
            return None, False
        if state.phase is not Phase.ACTIVE:
            begins = state.phase is Phase.WAITING and state.turns(tokens)
            return None, begins
        # what ends an output is read at once: it is not asked again
        new = state.ends_with(tokens[-1])
        outline = self._read(self._trace(slot, request), tokens, new=new)
        if outline is not None and outline.found is not None and outline.found.current:
            return outline.found, False
        return None, getattr(request.matcher, "forces", False)

    def look(self, slot: int, request: RunningRequest) -> Found:
        """Find what follows where a request is now, with its grammar."""
        if request.state.phase is not Phase.ACTIVE:
            return Found()
        trace = self._trace(slot, request)
        outline = self._read(trace)
        matcher: Any = request.matcher
        if outline is None or not getattr(matcher, "forces", False):
            return Found(self._forced.after(matcher, self._most))
        begun = time.thread_time()
        must: bytes = matcher.forced()
        followers = self._after(trace, outline.key)
        layouts = trace.layouts
        text = self._laid_out(matcher, outline, layouts, must)
        source: Followers | Layouts | None = layouts if len(text) > len(must) else None
        name = outline.rest_of(followers.likeliest)
        named = self._run(matcher.fork(), outline, layouts, name) if name else b""
        # what came earlier was perhaps nested less deep
        if len(named) > len(text) and named.startswith(text):
            text = named
            source = followers
        tokens = self._forced.within(
            begun, matcher, text, self._most, guessed=layouts is not None
        )
        seen = tuple((one, one.likeliest) for one in (followers, layouts) if one)
        found = Found(tokens, source, seen)
        outline.found = found
        return found

    def read(self, slot: int, request: RunningRequest) -> None:
        """Read what a request has written, when there is time for it."""
        if request.state.phase is Phase.ACTIVE:
            self._read(self._trace(slot, request))

    def _after(self, trace: _Trace, key: bytes) -> Followers:
        """Return what came after a name in outputs of the same spec and salt."""
        name = hash((trace.group, key))
        size = ENTRY_BYTES + _RECENT * _TEXT_BYTES
        known = self._followers.get(name)
        return known or self._followers.put(name, Followers(), size)

    def _trace(self, slot: int, request: RunningRequest) -> _Trace:
        trace = self._traces.get(slot)
        if trace is not None and trace.state is request.state:
            return trace
        trace = self._traces[slot] = _Trace(request)
        if trace.words.text and request.grammar.spec.whitespace == "flexible":
            salt = request.spec.salt
            trace.layouts = self._layouts.get(salt) or self._layouts.put(
                salt, Layouts(), LAYOUTS_BYTES
            )
        if trace.words.begins is None:
            trace.outline = self._known(Outline(trace.words, trace.group))
        return trace

    def _read(
        self, trace: _Trace, newest: Sequence[int] = (), *, new: bool = True
    ) -> Outline | None:
        """Read a request's tokens, of which the newest ones are not in its state, and
        learn from them. Returns where it is in a document, if it is in one and all were
        read. `new`: also those that no output brought to such a place before, each of
        which takes several times as long."""
        tokens = [*trace.state.tokens[trace.length :], *newest]
        for token in tokens[:_AT_ONCE]:
            outline = trace.outline
            if outline is None:
                step = self._begin(trace, self._text(token))
            elif outline.begun == FREE and token in self._letters:
                step = None  # the text goes on
            else:
                step = self._steps.get((outline, token))
                if step is None and not new:
                    return None
                step = step or self._step(outline, token)
            if step is not None:
                self._learn(trace, step)
            trace.length += 1
        return trace.outline if len(tokens) <= _AT_ONCE else None

    def _begin(self, trace: _Trace, text: bytes) -> Step | None:
        """Read text outside of documents: None if no document begins in it."""
        text = trace.before + text
        begin = trace.words.begins and trace.words.begins.search(text)
        if not begin:
            trace.before = text[-_BEFORE:]
            return None
        trace.documents += 1
        name = hash((trace.group, trace.documents, begin[0]))
        return Outline(trace.words, name).after(text[begin.end() :])

    def _step(self, outline: Outline, token: int) -> Step:
        """Read a token in a document, which no output had there before."""
        step = outline.after(self._text(token))
        step.place = self._known(step.place)
        return self._steps.put((outline, token), step, ENTRY_BYTES)

    def _known(self, place: Outline) -> Outline:
        """Return one place for all outputs that come to equal ones."""
        known = self._places.get(place.identity)
        if known is not None:
            return known
        if place.begun.startswith(FREE):
            place.found = Found()  # the text goes on
        size = ENTRY_BYTES + len(place.begun) + len(place.since)
        return self._places.put(place.identity, place, size)

    def _learn(self, trace: _Trace, step: Step) -> None:
        """A request comes to a place."""
        for before, between in step.names:
            if len(between) <= _TEXT_BYTES:
                self._after(trace, before).count(between)
        if trace.layouts is not None:
            for gap in step.gaps:
                trace.layouts.learn(gap)
        trace.outline = step.place
        if step.place.ended and trace.words.begins:
            trace.before = step.place.begun
            trace.outline = None

    def _text(self, token: int) -> bytes:
        # The grammar refuses a token that the vocabulary does not have.
        return self._tokens[token] if token < len(self._tokens) else b""

    def _laid_out(
        self, matcher: Any, outline: Outline, layouts: Layouts | None, must: bytes
    ) -> bytes:
        """Return the text that must follow, with whitespace as it was before."""
        if layouts is None:
            return must
        more = must or layouts.next(outline, partial(self._forced.fits, matcher))
        if not more:
            return b""
        return self._run(matcher.ahead(), outline, layouts, more)

    def _run(
        self, ahead: Any, outline: Outline, layouts: Layouts | None, more: bytes
    ) -> bytes:
        """A text behind an outline and what must follow it, with whitespace as it was
        before; nothing if the text may not come. Moves `ahead`."""
        end = time.thread_time() + LOOK_SECONDS
        text = b""
        while more and ahead.accept_text(more):
            text += more
            done = more
            if len(text) >= MOST_BYTES or time.thread_time() > end:
                break
            more = ahead.forced()
            if layouts is not None:
                outline = outline.after(done).place
                more = more or layouts.next(outline, partial(self._forced.fits, ahead))
        return text
