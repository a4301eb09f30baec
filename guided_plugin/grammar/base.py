"""The protocols of the grammar layer. Touches spec; holds no implementation.

A backend belongs to one vocabulary. It compiles specs to grammars, starts one matcher a request, and
works on whole batches: `batch(matchers)` is made when the batch changes and used for many steps, so
that per-step calls carry no per-row Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from guided_plugin.config import GuidedConfig
    from guided_plugin.grammar.vocabulary import Vocabulary
    from guided_plugin.spec import OutputSpec

__all__ = [
    "Backend",
    "BackendFactory",
    "Grammar",
    "Lowering",
    "MaskArray",
    "Matcher",
    "MatcherBatch",
    "Prepared",
]

MaskArray = NDArray[np.int32]
"""[rows, ceil(vocabulary / 32)] on the host: bit i of word w allows token 32 * w + i."""

BackendFactory = Callable[["Vocabulary", "GuidedConfig"], "Backend"]

Lowering = Callable[["OutputSpec"], "OutputSpec"]
"""A rewrite of a spec that keeps its language; returns its argument when there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A compiled spec. Shared by all requests with that spec, never written after it was made."""

    spec: OutputSpec
    backend: str
    handle: Any
    """The backend's own object."""
    size_bytes: int
    seconds: float
    """Time it took to compile."""
    warnings: tuple[str, ...] = ()
    reason: str = ""
    """Why this backend, and in what way it took the spec."""
    bounded: bool = False
    """Whether the backend bounds what each mask and each token costs. If not, calls have a deadline."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A spec in the form in which a backend loads it: plain data, so that another process can make it."""

    spec: OutputSpec
    backend: str
    payload: bytes | str | None
    reason: str = ""


class Matcher(Protocol):
    """One request's position in its grammar.

    One with `limit()` is asked, when it has no mask or refused a token, whether it went over a limit of its
    backend: a text, empty if it did not. One with `begin_anew()` is asked whether that may be because what it
    shares with others is used up. That is replaced then, for matchers that are started from now on.
    """

    def accept(self, token: int) -> bool:
        """Move past a token; False, and no move, when the grammar forbids it."""
        ...

    def accept_text(self, text: bytes) -> bool:
        """Move past bytes, whatever tokens they come in; False, and no move, when they don't fit."""
        ...

    def rollback(self, tokens: int) -> None:
        """Take the last tokens back."""
        ...

    def fork(self) -> Matcher:
        """An independent matcher in the same position."""
        ...

    @property
    def complete(self) -> bool:
        """Whether what was accepted so far is a whole output."""
        ...


class MatcherBatch(Protocol):
    """A fixed list of matchers of one backend, worked on together, in threads and without the GIL."""

    def accept(self, tokens: list[int]) -> list[bool]:
        """Move each matcher past its token. Plain ints: other integers cost a conversion each."""
        ...

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        """Write the mask of matcher i into mask[rows[i]]."""
        ...


class Backend(Protocol):
    """Compiles and matches for one vocabulary. Specs are compiled in any thread, matchers used in one.

    Compiling comes in two halves, so that a helper process can do the half that may go wrong. A backend
    without `prepare` is compiled where it is asked. One with `pace(seconds)` is told now and then how far
    apart the steps come that its fills are hidden behind: it may take fewer threads then. With `warm_up()` it
    is asked, before requests come, to build what the first of them would wait for. Its matchers may have
    `begin_anew`, see there. One with `let_go()` is asked to use new threads and locks from now on: a call for
    a batch was given up while it still runs.
    """

    name: str

    def compile(self, spec: OutputSpec) -> Grammar:
        """Both halves at once: compile a spec, or raise a GrammarError."""
        ...

    def prepare(self, spec: OutputSpec) -> Prepared:
        """Find out that a spec compiles, at any cost, or raise a GrammarError."""
        ...

    def load(self, prepared: Prepared) -> Grammar:
        """The grammar of what was prepared, which costs no more time and memory than preparing did."""
        ...

    def start(self, grammar: Grammar, stop_token_ids: tuple[int, ...]) -> Matcher:
        """A matcher at the beginning."""
        ...

    def batch(self, matchers: Sequence[Matcher]) -> MatcherBatch:
        """A batch of matchers of this backend; no matcher twice."""
        ...
