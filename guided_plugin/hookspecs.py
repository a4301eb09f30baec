"""The hooks a plugin may implement. Depends on nothing that runs.

Setup hooks are named `register_*`, are called once when a host starts, and get a
callback. Step hooks are called once per batch, never per row: a call costs one or two
microseconds.

    import guided_plugin

    class Counter:
        @guided_plugin.hookimpl
        def post_sampling(self, step):
            self.steps += 1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from guided_plugin.grammar.base import BackendFactory
    from guided_plugin.step import DecodeStep, ProcessorFactory, RequestInfo

PROJECT = "guided_plugin"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Offer grammar backends: `register("name", factory)`, where `factory(vocabulary,
    config)` makes one."""


@hookspec
def register_logits_processors(
    register: Callable[[str, ProcessorFactory], None],
) -> None:
    """Offer logits processors. A host asks for them by name and in an order of its
    own."""


@hookspec
def post_sampling(step: DecodeStep) -> None:
    """Tokens of this step are sampled, and nothing else was launched since. Start
    copies; don't wait."""


@hookspec
def after_stop_criteria(step: DecodeStep) -> None:
    """The append and stop-criteria kernels of this step are launched. Tokens may be
    accepted now."""


@hookspec
def request_added(request: RequestInfo) -> None:
    """A guided request got its slot."""


@hookspec
def request_finished(request: RequestInfo) -> None:
    """A guided request gave its slot back."""


@hookspec
def request_failed(request: RequestInfo) -> None:
    """A guided request failed while it ran; `request.error` says why. The other rows go
    on."""
