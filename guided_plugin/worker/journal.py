"""What the engine keeps of each guided request: enough to start it again elsewhere. No processes here.

The tokens are those that were sampled for it, as the token ring showed them; which of them count
follows from the spec's stop tokens, its trigger and the moment it failed. A worker therefore never has
to send its journals, and losing a worker loses none.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from guided_plugin.errors import GuidedError
from guided_plugin.grammar.table import Phase
from guided_plugin.spec import OutputSpec

__all__ = ["LiveRequest"]


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request from its slot's taking to its giving back."""

    serial: int
    slot: int
    request_id: str
    spec: OutputSpec
    stop_token_ids: tuple[int, ...]
    known: bool = False
    """Whether the spec has compiled within the limits elsewhere."""
    tokens: array[int] = field(default_factory=lambda: array("q"))
    """Everything sampled for it, padding after a stop token included."""
    error: GuidedError | None = None
    failed_at: int = 0
    """How many tokens counted when it failed."""
    deaths: int = 0
    """Workers that died while they may have worked on it."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens one by one."""
        self.tokens.extend(tokens)

    def fail(self, error: GuidedError, count: int | None = None) -> None:
        """It failed closed, after `count` tokens or after all that are known."""
        self.failed_at = len(self.counted()) if count is None else count
        self.error = error.for_request(self.request_id)

    def counted(self) -> tuple[int, ...]:
        """The tokens its grammar accepted: up to a stop token, up to its failure."""
        end = len(self.tokens) if self.error is None else self.failed_at
        for stop in self.stop_token_ids:
            try:
                end = min(end, self.tokens.index(stop) + 1)
            except ValueError:
                continue
        return tuple(self.tokens[:end])

    def phase(self) -> Phase:
        """Where it is."""
        if self.error is not None:
            return Phase.FAILED
        tokens = self.counted()
        if tokens and tokens[-1] in self.stop_token_ids:
            return Phase.DONE
        trigger = self.spec.start_after
        if isinstance(trigger, tuple) and not _contains(tokens, trigger):
            return Phase.WAITING
        return Phase.ACTIVE


def _contains(tokens: tuple[int, ...], part: tuple[int, ...]) -> bool:
    length = len(part)
    return any(tokens[i : i + length] == part for i in range(len(tokens) - length + 1))
