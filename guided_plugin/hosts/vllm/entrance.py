"""The last look at a request, in the engine: whatever frontend it came through. Imports vLLM lazily.

Every request passes `EngineCore.preprocess_add_request`. One with a constraint that this plugin serves and
without the gate's mark came past the check at admission: nothing has compiled its spec within the limits,
and with `take_over` vLLM's own manager would serve what the operator gave to the plugin. It is refused.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

from guided_plugin.errors import GuidedError, RequestError
from guided_plugin.hosts.vllm.admission import constraint, refusal
from guided_plugin.hosts.vllm.common import ADMITTED, GUIDED, options_of, rust_frontend
from guided_plugin.hosts.vllm.contract import broken
from guided_plugin.hosts.vllm.failures import refused_unseen
from guided_plugin.hosts.vllm.leaving import MARK
from guided_plugin.hosts.vllm.parts import Part
from guided_plugin.hosts.vllm.wrapping import wrap

_log = logging.getLogger(__name__)


def install() -> None:
    """Wrap the engine core of this process, if it is as expected. Does nothing the second time."""
    if broken(Part.SCHEDULER) is None:
        from vllm.v1.engine.core import EngineCore

        wrap(EngineCore, "preprocess_add_request", _preprocess)


def _preprocess(original: Any) -> Any:
    def preprocess_add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        params = request.sampling_params  # None where a request is pooled: it has no output to guide
        error = None if params is None else passed_by(params, self.vllm_config)
        if error is None:
            return original(self, request, *args, **kwargs)
        # vLLM's part all the same: its caches of images follow what frontends send. But no grammar is made.
        request.sampling_params = copy.copy(params)
        request.sampling_params.structured_outputs = None
        original(self, request, *args, **kwargs)
        _log.error("request %s refused: %s", request.request_id, error)
        raise refusal(error)

    return preprocess_add_request


def check_ready(prompt: Any, vllm_config: Any) -> None:
    """Refuse what a caller gives a frontend as a request that is ready for the engine, if no gate made it."""
    params = getattr(prompt, "sampling_params", None)
    error = None if params is None else passed_by(params, vllm_config)
    if error is not None:
        raise refusal(error)


def passed_by(params: Any, vllm_config: Any) -> GuidedError | None:
    """Why a request in the engine is refused, if it came past the gate."""
    extra = params.extra_args
    if extra and extra.get(GUIDED) is not None:
        # Only the gate of a Python frontend makes a mark: any other is a client's.
        return None if extra.get(ADMITTED) is True and not rust_frontend() else _PASSED_BY
    if constraint(params) is None:
        return None
    options = options_of(vllm_config)
    if options.refused == "vllm" and extra and extra.get(MARK) is True:
        return None
    taken_over = options.take_over and refused_unseen(vllm_config, options) is None
    return _PASSED_BY if taken_over else None


_PASSED_BY = RequestError(
    "the request came to the engine past the plugin's check",
    hint="send it through a frontend that has loaded the plugin: see entrances in docs/vllm-versions.md",
)
