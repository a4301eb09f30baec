"""Step hooks for engines that serve many requests: a plugin that fails must not end one."""

from __future__ import annotations

import logging
from collections.abc import Callable

from guided_plugin.errors import GuidedError
from guided_plugin.plugins import Plugins
from guided_plugin.step import DecodeStep

_log = logging.getLogger(__name__)


class SafeStepHooks:
    """Calls the step hooks of an engine's plugins. After a failure it names the plugin once, and calls none
    again."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins
        self._failed = False

    def post_sampling(self, step: DecodeStep) -> None:
        """The tokens of a step are sampled."""
        self._call(self._plugins.post_sampling, step)

    def after_stop_criteria(self, step: DecodeStep) -> None:
        """They are appended."""
        self._call(self._plugins.after_stop_criteria, step)

    def _call(self, hook: Callable[[DecodeStep], None], step: DecodeStep) -> None:
        if self._failed:
            return
        try:
            hook(step)
        except GuidedError as error:
            self._failed = True
            _log.error("step hooks are no longer called: %s", error)
