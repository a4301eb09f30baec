"""`RunningRequest`: a request with its grammar, its matcher and its tokens. Depends on the protocols."""

from __future__ import annotations

from dataclasses import dataclass

from guided_plugin.errors import GuidedError
from guided_plugin.grammar.base import Backend, Grammar, Matcher
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.spec import OutputSpec

__all__ = ["RunningRequest"]


@dataclass(slots=True, eq=False)
class RunningRequest:
    """What a `GrammarTable` keeps for a slot."""

    request_id: str
    spec: OutputSpec
    grammar: Grammar
    matcher: Matcher
    backend: Backend
    stop_token_ids: tuple[int, ...]
    state: RequestState
    """With every token that counts, for replay and for checking."""
    error: GuidedError | None = None
    isolated_calls: int = 0
    """For how many more calls it is worked on by itself, because its batch was late."""

    def replayed(self) -> tuple[Matcher, bool]:
        """A new matcher, moved past the request's tokens, and whether it accepted all of them."""
        matcher = self.backend.start(self.grammar, self.stop_token_ids)
        return matcher, all(matcher.accept(token) for token in self.state.tokens[self.state.start :])
