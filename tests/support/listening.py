"""A third-party plugin that hears every step."""

from __future__ import annotations

from typing import Any

import guided_plugin as gp

__all__ = ["StepListener"]


class StepListener:
    """Notes what the step hooks get, in order, and checks that they come in pairs with
    truthful fields."""

    def __init__(self, calls: list[str] | None = None) -> None:
        self.calls = [] if calls is None else calls
        """The names of the hooks; other parties may add theirs."""
        self.steps: list[gp.DecodeStep] = []
        self.tokens: list[list[int]] = []
        """Of each step, one for each row."""
        self.requests: dict[int, str] = {}
        """The request in each slot."""
        self.produced: dict[str, list[int]] = {}
        """By request: the tokens of its rows."""

    @gp.hookimpl
    def request_added(self, request: gp.RequestInfo) -> None:
        self.requests[request.slot] = request.request_id

    @gp.hookimpl
    def post_sampling(self, step: gp.DecodeStep) -> None:
        self.calls.append("post_sampling")
        tokens: Any = step.tokens
        self.steps.append(step)
        self.tokens.append(tokens.tolist())
        assert len(step.slots) == len(tokens)
        for slot, token in zip(step.slots, tokens.tolist(), strict=True):
            if slot != gp.UNGUIDED and token >= 0:
                self.produced.setdefault(self.requests[slot], []).append(token)

    @gp.hookimpl
    def after_stop_criteria(self, step: gp.DecodeStep) -> None:
        self.calls.append("after_stop_criteria")
        assert step is self.steps[-1]
        assert step.tokens.tolist() == self.tokens[-1]

    def check_order(self) -> None:
        """Each step once, from 0 on, and both hooks for each."""
        assert [step.index for step in self.steps] == list(range(len(self.steps)))
        own = [
            name
            for name in self.calls
            if name in ("post_sampling", "after_stop_criteria")
        ]
        assert own == ["post_sampling", "after_stop_criteria"] * len(self.steps)
