"""The shipped logits processor: a `StepPipeline` as a plugin of the package's own hooks.

Import-light: the pipeline comes from the host, torch with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from guided_plugin.hookspecs import hookimpl
from guided_plugin.step import DecodeStep, ProcessorFactory

if TYPE_CHECKING:
    from torch import Tensor

    from guided_plugin.pipeline.pipeline import StepPipeline


@hookimpl
def register_logits_processors(register: Callable[[str, ProcessorFactory], None]) -> None:
    """Offer the pipeline as `guided`."""
    register("guided", PipelineProcessor)


class PipelineProcessor:
    """Calls the five verbs: three where logits are processed, one at each step hook.

    Where a worker fills the masks, those of the next step are asked for as soon as this one is over: a
    forward pass that keeps the host busy then hides them. If other rows come after all, they are asked for
    again.

    Register the object as a plugin as long as its loop runs; it hears only its own pipeline's steps.
    """

    def __init__(self, pipeline: StepPipeline) -> None:
        self._pipeline = pipeline
        self._step: DecodeStep | None = None
        self._ahead: tuple[int, ...] | None = None
        """The slots that the next step was planned with."""

    def __call__(self, logits: Tensor, step: DecodeStep) -> Tensor:
        """Mask the guided rows."""
        self._step = step
        slots, ahead = tuple(step.slots), self._ahead
        self._ahead = None
        if slots != ahead or self._pipeline.planned != slots:
            self._pipeline.plan(slots)
            self._pipeline.fill_mask()
        return self._pipeline.apply_mask(logits)

    @hookimpl
    def post_sampling(self, step: DecodeStep) -> None:
        """Start copying the tokens."""
        if step is self._step and step.tokens is not None:
            self._pipeline.schedule_update(step.tokens)

    @hookimpl
    def after_stop_criteria(self, step: DecodeStep) -> None:
        """Accept them."""
        if step is self._step:
            self._pipeline.finish_update()
            slots = tuple(step.slots)
            # Not if one of them has left by now.
            if self._pipeline.mode == "process" and self._pipeline.planned == slots:
                self._ahead = slots
                self._pipeline.plan(slots)
                self._pipeline.fill_mask()
