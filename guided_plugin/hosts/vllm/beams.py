"""Refuses beam searches with a constraint. Imports vLLM lazily.

vLLM's beam search makes a request for each token of each beam, without the constraint of the client's
request. On a server the last place that has it is where the HTTP request becomes `BeamSearchParams`: a
wrapper there notes the HTTP request, and the wrapper of `beam_search`, which has the engine, reads the
note. Offline the parameters themselves have the constraint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from guided_plugin.errors import RequestError
from guided_plugin.hosts.vllm.admission import gate_of, refusal
from guided_plugin.hosts.vllm.contract import BEAM_REQUESTS
from guided_plugin.hosts.vllm.wrapping import Call, wrap

_log = logging.getLogger(__name__)

_REQUEST = "_guided_request"
"""The attribute of `BeamSearchParams` that holds the HTTP request they were made from."""

_SEARCHES = (
    ("vllm.entrypoints.generate.beam_search.online", "BeamSearchOnlineMixin", "engine_client"),
    ("vllm.entrypoints.generate.beam_search.offline", "BeamSearchOfflineMixin", "llm_engine"),
)
"""With the attribute that holds the engine's client."""


def install_beams() -> None:
    """Wrap what makes beam searches. Does nothing the second time."""
    for module, owner in BEAM_REQUESTS:
        _wrap_in(module, owner, "to_beam_search_params", _note_request)
    for module, owner, client in _SEARCHES:
        _wrap_in(module, owner, "beam_search", partial(_check_search, client))


def _wrap_in(module: str, owner: str, name: str, make: Callable[[Any], Any]) -> None:
    try:
        found = import_module(module)
    except ImportError as error:  # an endpoint whose own dependencies are missing: nothing can call it
        _log.debug("no beam search through %s: %s", module, error)
        return
    wrap(getattr(found, owner, object), name, make)


@dataclass(frozen=True, slots=True)
class _HttpConstraint:
    """The constraint of an HTTP request under the names that `SamplingParams` has for it."""

    request: Any

    @property
    def extra_args(self) -> Any:
        """`vllm_xargs`."""
        return self.request.vllm_xargs

    @property
    def structured_outputs(self) -> Any:
        """`structured_outputs`, `response_format` and what vLLM made of the tools; none for speech."""
        extract = getattr(self.request, "extract_structured_outputs", None)
        return None if extract is None else extract()


def _note_request(original: Any) -> Any:
    def to_beam_search_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = original(self, *args, **kwargs)
        setattr(params, _REQUEST, self)
        return params

    return to_beam_search_params


def _check_search(client: str, original: Any) -> Any:
    call = Call(original)

    # No generator, though the original may be one: what is raised here comes before a stream begins.
    def beam_search(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = call.get("params", args, kwargs)
        request = getattr(params, _REQUEST, None)
        asked = params if request is None else _HttpConstraint(request)
        if gate_of(getattr(self, client)).concerns(asked):
            error = RequestError(
                "beam search can't be guided: vLLM asks for each token of a beam without the constraint",
                where="beam_search" if request is None else "use_beam_search",
                hint="leave out beam search (n with a temperature gives several outputs) or the constraint",
            )
            raise refusal(error)
        return original(self, *args, **kwargs)

    return beam_search
