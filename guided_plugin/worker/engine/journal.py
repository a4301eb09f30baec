"""What the engine keeps of each guided request: enough to start it again elsewhere. No processes here.

The tokens are those that were sampled for it, as the token ring showed them; which of them count says
`RequestState`. A worker therefore never has to send its journals, and losing a worker loses none.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from guided_plugin.errors import GuidedError
from guided_plugin.grammar.request_state import Phase, RequestState
from guided_plugin.spec import OutputSpec


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request from its slot's taking to its giving back. Its spec's triggers are given as tokens."""

    serial: int
    slot: int
    request_id: str
    spec: OutputSpec
    stop_token_ids: tuple[int, ...]
    error: GuidedError | None = None
    deaths: int = 0
    """Workers that died while they worked on it alone."""
    _state: RequestState = field(init=False)

    def __post_init__(self) -> None:
        self._state = RequestState(self.spec.start_after or (), self.stop_token_ids)

    def extend(self, tokens: array[int]) -> None:
        """Add tokens that were sampled for it; those after its end are padding, and not kept."""
        self._state.extend(tokens)

    def fail(self, error: GuidedError, count: int | None = None) -> None:
        """It failed closed, after `count` tokens or after all that are known."""
        self._state.fail(count)
        self.error = error.for_request(self.request_id)

    def counted(self) -> tuple[int, ...]:
        """The tokens its grammar accepted: up to a stop token, up to its failure."""
        return tuple(self._state.tokens)

    def phase(self) -> Phase:
        """Where it is."""
        return self._state.phase
