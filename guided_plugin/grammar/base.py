"""The protocols of the grammar layer. Depends on spec; holds no implementation.

A backend belongs to one vocabulary. It compiles specs to grammars, starts one matcher
for each request, and works on whole batches: `batch(matchers)` is made when the batch
changes and used for many steps, so that the calls of a step contain no Python for each
row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from guided_plugin.errors import printable
from guided_plugin.step import Admission

if TYPE_CHECKING:
    from guided_plugin.config import GuidedConfig
    from guided_plugin.grammar.vocabulary import Vocabulary
    from guided_plugin.spec import OutputSpec

MaskArray = NDArray[np.int32]
"""[rows, ceil(vocabulary / 32)] on the host: bit i of word w allows token 32 * w +
i."""


_BITS = (np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)


def token_bit(token: int) -> np.int32:
    """The bit of a token in its word of a mask."""
    bit: np.int32 = _BITS[token % 32]
    return bit


def few_tokens(words: int, tokens: Iterable[int]) -> MaskArray:
    """A mask of so many words that allows nothing but these tokens."""
    row = np.zeros(words, np.int32)
    for token in tokens:
        row[token // 32] |= token_bit(token)
    return row


def allows(row: MaskArray, token: int) -> bool:
    """True if a row of a mask has a token."""
    return 0 <= token < 32 * len(row) and bool(row[token // 32] >> (token % 32) & 1)


BackendFactory = Callable[["Vocabulary", "GuidedConfig"], "Backend"]


@dataclass(frozen=True, slots=True)
class Made:
    """The facts about a spec that compiles."""

    spec: OutputSpec
    backend: str
    _: KW_ONLY
    reason: str = ""
    """Why this backend, and in what way it took the spec."""
    unenforced: tuple[str, ...] = ()
    """Keywords of the spec that it leaves out because of `unenforced_keywords`: outputs
    may break them."""
    named: frozenset[int] = frozenset()
    """Control tokens that the spec names: none of them may be a stop token of a
    request."""
    shortest: tuple[int, ...] | None = None
    """The tokens of the shortest output, without a stop token, where outputs are closed
    before their limit."""
    growth: int = 0
    """There too: how many more tokens one may make necessary."""

    def admission(self) -> Admission:
        """Return the summary of it for a host."""
        # Plain data, also where a plugin made it of other classes: a worker sends it.
        return Admission(
            str(self.backend),
            tuple(map(printable, self.unenforced)),
            least_tokens(self.shortest),
        )


@dataclass(frozen=True, slots=True)
class Grammar(Made):
    """A compiled spec. Shared by all requests with that spec, never written after it
    was made."""

    handle: Any
    """The backend's own object."""
    size_bytes: int
    """Bytes that it takes when it is made, with the text of its spec."""
    seconds: float
    """Time it took to compile."""
    bounded: bool = False
    """True if the backend bounds what each mask and each token costs. If not, calls
    have a deadline."""


def why_unprotected(made: Made) -> str:
    """Why outputs may be cut at their token limit though their spec asks for an end
    before it; empty where they are not."""
    if made.shortest is not None or not made.spec.close_before_length:
        return ""
    return f"unprotected: with {made.backend} no end of its outputs is known"


def least_tokens(shortest: tuple[int, ...] | None) -> int:
    """The tokens of the shortest output with its stop token; 0 where it is not
    known."""
    return 0 if shortest is None else len(shortest) + 1


@dataclass(frozen=True, slots=True)
class Prepared(Made):
    """A spec in the form in which a backend loads it: plain data, so that another
    process can make it."""

    payload: bytes | str | None
    """The bytes that the backend reads; None where compiling again takes less."""

    @property
    def size_bytes(self) -> int:
        """Bytes that keeping it takes, about."""
        return len(self.spec.text) + (
            len(self.payload) if self.payload is not None else 0
        )

    def sent(self) -> tuple[Any, ...]:
        """Everything but its spec, as plain data."""
        return (
            self.backend,
            self.payload,
            self.reason,
            self.unenforced,
            tuple(sorted(self.named)),
            self.shortest,
            self.growth,
        )

    @classmethod
    def received(cls, spec: OutputSpec, sent: Iterable[Any]) -> Prepared:
        """Return it from what was sent, where tuples may be lists now."""
        backend, payload, reason, unenforced, named, shortest, growth = sent
        return cls(
            spec,
            backend,
            payload,
            reason=reason,
            unenforced=tuple(unenforced),
            named=frozenset(named),
            shortest=None if shortest is None else tuple(shortest),
            growth=growth,
        )


class Matcher(Protocol):
    """One request's position in its grammar.

    Optional methods: `limit() -> str` names the limit of the backend that the grammar
    exceeded, or "" (asked when the matcher allows nothing or refuses a token).
    `rebuild_shared() -> bool` says whether that may be because the state it shares with
    others is exhausted; matchers started later then share new state. `outdated` (a
    property) asks for a new matcher, so that the state it shares can be freed;
    `crowded`, as it would share less then. `forced() -> bytes` tells the text that must
    follow, up to the first control token, asked in every step if `forces` (a property)
    is true; `looked(long)` tells how that went, and after two long looks in a row
    `forces` is false; `fits(tokens) -> bool` whether these tokens may, asked in every
    step. `shared` is what a call locks that others wait for; `give_up_shared()` returns
    it, and matchers started later don't have it. None raises.
    """

    def accept(self, token: int) -> bool:
        """Move past a token; False, and no move, when the grammar forbids it."""

    def accept_text(self, text: bytes) -> bool:
        """Move past bytes, whatever tokens they come in; False, and no move, when they
        don't fit."""

    def fork(self) -> Matcher:
        """An independent matcher in the same position."""

    @property
    def complete(self) -> bool:
        """True if the tokens so far are a complete output."""


class OutputClosing(Protocol):
    """Closes one output before its token limit."""

    due: int
    """With fewer tokens than this, masks are those of the grammar."""
    led: int
    """Tokens that had to be those of an ending."""

    def copy(self) -> OutputClosing:
        """Return a copy, for a place to which its output may go back."""

    def restrict(
        self, matcher: Any, count: int, tokens: Sequence[int], row: MaskArray
    ) -> None:
        """Take the tokens out of a mask after which no ending would fit into the room
        that is left. So many tokens are there, of which these are constrained. Where no
        ending is known, none is taken out: the output may be cut."""


class MatcherBatch(Protocol):
    """A fixed list of matchers of one backend, worked on together; usually in threads,
    without the GIL. A matcher of a grammar that is not `bounded` is a batch of its own,
    and several are called at once."""

    def accept(self, tokens: list[int]) -> list[bool]:
        """Move each matcher past its token. Plain ints: other integers cost a
        conversion each."""

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        """Write the mask of matcher i into mask[rows[i]]."""


class Backend(Protocol):
    """Compiles and matches for one vocabulary. Specs compile in any thread, matchers
    work in one.

    Compiling has two halves, so that a helper process can do the expensive one.
    Optional methods: a backend without `prepare` compiles in this process;
    `pace(seconds)` is told the time between steps, in which fills are hidden, so that
    it may use fewer threads; `warm_up()` builds what the first request would wait for;
    `learnt_bytes()` tells what its matchers have learnt of their grammars;
    `closing(grammar, room, stops)` makes what closes one output before its limit, where
    `Grammar.shortest` is known.
    """

    name: str
    languages: frozenset[str]
    """The languages that it takes, named or chosen: kinds of specs (`json_schema`, ...)
    and, in place of `grammar`, the syntaxes `ebnf` and `lark`. It enforces every
    construct of a spec of these that it doesn't refuse. Read from the factory, before a
    backend is made; a factory without it is used where it is named."""

    def compile(self, spec: OutputSpec) -> Grammar:
        """Compile a spec in this process, or raise a GrammarError."""

    def prepare(self, spec: OutputSpec) -> Prepared:
        """Do the expensive half in a helper process, or raise a GrammarError."""

    def load(self, prepared: Prepared) -> Grammar:
        """Do the other half, which costs no more time and memory than preparing did."""

    def start(self, grammar: Grammar, stop_token_ids: tuple[int, ...]) -> Matcher:
        """A matcher at the beginning."""

    def batch(self, matchers: Sequence[Matcher]) -> MatcherBatch:
        """A batch of matchers of this backend; no matcher twice."""
