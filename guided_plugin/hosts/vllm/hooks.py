"""The step hooks of third-party plugins in vLLM: `post_sampling` and `after_stop_criteria`.

`post_sampling` fires when the sampler of a model runner returns, `after_stop_criteria` when
`Worker.sample_tokens` returns: the runner has appended the tokens by then, and what ends a request is checked
from here on. What V2 samples is told by `v2_sample`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from guided_plugin.plugins import Plugins, SafeStepHooks
from guided_plugin.step import UNGUIDED, DecodeStep


class StepHooks(SafeStepHooks):
    """Tells the plugins of one engine about its steps."""

    def __init__(self, plugins: Plugins) -> None:
        super().__init__(plugins)
        self._index = 0
        self._step: DecodeStep | None = None
        """Sampled, and not appended yet."""

    def sampled(self, slots: Sequence[int], tokens: Tensor) -> None:
        """The step's tokens are sampled: [rows], or [rows, drafts + 1] under speculative decoding."""
        missing = tokens.shape[0] - len(slots)
        step = self._step = DecodeStep(self._index, [*slots, *[UNGUIDED] * missing], tokens)
        self._index += 1
        self.post_sampling(step)

    def appended(self) -> None:
        """They are appended. Does nothing for a step that sampled none."""
        step, self._step = self._step, None
        if step is not None:
            self.after_stop_criteria(step)
