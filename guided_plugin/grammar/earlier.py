"""`EarlierKeys`: what followed a key in earlier outputs of the same schema, as tokens to verify.

A schema leaves open which of its optional keys comes next, and models mostly keep to one order. What is
learnt and offered is names of the schema's properties and what stands between JSON's values, never a value:
nothing that one request wrote reaches another.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

from guided_plugin.grammar.batches import RunningRequest
from guided_plugin.grammar.forced import ForcedTokens
from guided_plugin.grammar.request_state import Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec.memo import ENTRY_BYTES, Latest

_KEY = re.compile(rb'[\]}\s]*+,?[\s{\[]*+"((?:[^"\\]|\\.)*)"\s*(:)\s*(?:\[*"|[\[{]*)')
_TAIL = 160
"""Bytes of an output that are looked at: a key and what stands around it."""

_CLOSES = frozenset(b'"}]0123456789')
_WORDS = b"true", b"false", b"null"
_ENDS = *(bytes([byte]) for byte in [*_CLOSES, *b",:{[ "]), *_WORDS
"""How an output ends where a key may follow."""

_SEEN, _LEAST = 2, 0.25
"""How often something followed before it is offered, and what part of the offers is accepted at least: one
that is not costs a fiftieth of a step, one that is saves most of one. Behind each digit of a number it may
follow. In a simulation of real documents, 8 and 64 rows, 0.5 to 2.1% faster than 0.4; 0.15 takes as long."""

_KEPT = 8
"""Of what came after one key, so many kinds are counted."""

_MEMO_BYTES = 16 << 20
_READ_BYTES = 1 << 16
"""Of schemas whose names are read, at most: a batch waits. One of 1 MiB takes up to 130 ms."""


@dataclass(slots=True, eq=False)
class _Book:
    """Of one schema."""

    names: frozenset[bytes]
    followers: dict[bytes, Followers] = field(default_factory=dict)
    """By the key before; the first key of an output has none."""

    def count(self, before: bytes, text: bytes) -> None:
        """A key came after another; with what stands around it."""
        if before in self.followers or len(self.followers) <= len(self.names):
            self.followers.setdefault(before, Followers()).count(text)


class Followers:
    """What came after one key, and how offers of it went."""

    __slots__ = ("counts", "most", "offered", "taken")

    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()
        self.most = b""
        """What came most of the time; empty if nothing did."""
        self.offered = self.taken = 0

    def count(self, text: bytes) -> None:
        """This came once more."""
        if text in self.counts or len(self.counts) < _KEPT:
            self.counts[text] += 1
        text, count = self.counts.most_common(1)[0]
        self.most = text if count >= _SEEN and 2 * count > self.counts.total() else b""

    @property
    def sure(self) -> float:
        """The part of the offers that is taken."""
        return (self.taken + 2) / (self.offered + 3)

    @property
    def likeliest(self) -> bytes:
        """Empty if nothing is worth an offer."""
        return self.most if self.sure >= _LEAST else b""


class _Trace:
    """Of one request."""

    __slots__ = ("before", "book", "bytes", "colon", "counted", "key", "length", "offer", "state", "tail")

    def __init__(self, request: RunningRequest, book: _Book) -> None:
        self.state, self.book = request.state, book
        self.length = request.state.start
        """Tokens that were looked at, or came before its grammar."""
        self.tail = self.key = self.before = b""
        """The end of the output, the last key in it, and the one before."""
        self.bytes = 0
        """Of the output."""
        self.colon = self.counted = -1
        """Where the last key ends, and the last one that is counted."""
        self.offer: tuple[Followers, tuple[int, ...]] | None = None
        """What was offered after these tokens."""


class EarlierKeys:
    """Of the requests of one vocabulary. Used by one thread at a time."""

    def __init__(self, vocabulary: Vocabulary, forced: ForcedTokens) -> None:
        self._texts, self._forced = vocabulary.text_tokens, forced
        # Others leave an output in the middle of a string: there nothing is looked at.
        self._ends = frozenset(i for i, text in enumerate(self._texts) if text and text.endswith(_ENDS))
        self._books: Latest[tuple[str, str, str], _Book] = Latest(_MEMO_BYTES)
        self._traces: dict[int, _Trace] = {}
        self.offered = self.taken = 0
        """Tokens."""

    def after(
        self, slot: int, request: RunningRequest, most: int
    ) -> tuple[tuple[int, ...], Followers | None]:
        """Up to `most` tokens that may follow, none where nothing is known; and what says so."""
        state = request.state
        if state.phase is not Phase.ACTIVE or (state.tokens and state.tokens[-1] not in self._ends):
            return (), None
        trace = self._traces.get(slot)
        if trace is None or trace.state is not state:
            trace = self._traces[slot] = _Trace(request, self._book(request.spec))
        if not trace.book.names:
            return (), None
        new = b"".join(self._texts[token] for token in state.tokens[trace.length :][-_TAIL:])
        if b":" in new:  # perhaps a key
            self._follow(trace)
            new = b""
        followers = trace.book.followers.get(trace.key)
        text = b"" if followers is None else followers.likeliest
        if not text:
            return (), followers
        rest, matcher = _rest((trace.tail + new)[-_TAIL:], text), cast(Any, request.matcher)
        asked = rest and getattr(matcher, "forces", False)
        tokens = self._forced.spelled(rest, matcher, most) if asked else ()
        return (tokens if tokens and matcher.fits(list(tokens)) else ()), followers

    def learn(self, slot: int, followers: Followers | None = None, tokens: tuple[int, ...] = ()) -> None:
        """Look at what a request wrote since; whenever there is time for that. `tokens`: what it is offered
        now, if they are the followers'."""
        trace = self._traces.get(slot)
        if trace is not None and trace.book.names:
            self._follow(trace)
            if tokens and followers is not None:
                trace.offer = followers, tokens
                self.offered += len(tokens)

    def _book(self, spec: Any) -> _Book:
        key = spec.kind, spec.text, spec.layout  # of another form something else stands between values
        book = self._books.get(key)
        if book is None:
            book = _Book(_names_of(spec))
            self._books.put(key, book, ENTRY_BYTES * (2 + 2 * len(book.names)) + len(spec.text))
        return book

    def _follow(self, trace: _Trace) -> None:
        """Look at a request's new tokens."""
        tokens = trace.state.tokens
        new = list(tokens[trace.length :])
        if not new:
            return
        trace.length = len(tokens)
        if trace.offer is not None:
            (followers, offer), trace.offer = trace.offer, None
            followers.offered += 1
            followers.taken += new[0] == offer[0]
            same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(new, offer, strict=False))
            self.taken += sum(1 for _ in same)
        text = b"".join(self._texts[token] for token in new[-_TAIL:])
        tail = trace.tail = (trace.tail + text)[-_TAIL:]
        trace.bytes += len(text)
        if b":" not in text and trace.colon == trace.counted:
            return
        for match in _KEY.finditer(tail):
            at = trace.bytes - len(tail) + match.start(2)
            if at <= trace.counted or match[1] not in trace.book.names:
                continue
            if at > trace.colon:
                trace.before, trace.key, trace.colon = trace.key, match[1], at
            if match.end() < len(tail):  # how its value opens is known
                trace.book.count(trace.before, match[0])
                trace.counted = at


def _rest(tail: bytes, text: bytes) -> bytes:
    """What is left of a text that an output may have begun; empty in the middle of a value."""
    last, begun = tail[-1:], len(text) - 1
    while last and (begun := text.rfind(last, 0, begun) + 1):
        if tail.endswith(text[:begun]):
            return text[begun:]
        begun -= 1
    return text if not last or tail[-1] in _CLOSES or tail.endswith(_WORDS) else b""


def _names_of(spec: Any) -> frozenset[bytes]:
    """The names of a schema's properties, as JSON writes them; none where the spec has no schema."""
    try:
        nodes = [json.loads(spec.text)] if len(spec.text) <= _READ_BYTES else []
    except (ValueError, RecursionError):  # an expression may be thousands of brackets
        return frozenset()
    names = set[str]()
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            properties = node.get("properties")
            names.update(properties if isinstance(properties, dict) else ())
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)
    # Half a surrogate pair is a name for JSON; no output holds its bytes.
    written = (json.dumps(name, ensure_ascii=False)[1:-1] for name in names)
    return frozenset(name.encode(errors="surrogatepass") for name in written)
