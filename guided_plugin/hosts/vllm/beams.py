"""Shows the gate what a beam search is asked for, before vLLM drops its constraint. Imports vLLM.

vLLM's beam search makes a request of its own for every token of every beam, and none of them carries what the
client asked for. On a server the constraint is last known where the HTTP request becomes `BeamSearchParams`:
the wrapper there notes the HTTP request, and the one around `beam_search`, which knows the engine, shows it
to the gate. Offline the parameters themselves carry the constraint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from guided_plugin.hosts.vllm.wrapping import Call, wrap

__all__ = ["install_beams"]

_log = logging.getLogger(__name__)

_REQUEST = "_guided_request"
"""The attribute of `BeamSearchParams` that holds the HTTP request they were made from."""

_PROTOCOLS = (
    ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest"),
    ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest"),
    ("vllm.entrypoints.speech_to_text.transcription.protocol", "TranscriptionRequest"),
    ("vllm.entrypoints.speech_to_text.translation.protocol", "TranslationRequest"),
)

_SEARCHES = (
    ("vllm.entrypoints.generate.beam_search.online", "BeamSearchOnlineMixin", "engine_client"),
    ("vllm.entrypoints.generate.beam_search.offline", "BeamSearchOfflineMixin", "llm_engine"),
)
"""With the attribute that holds the engine's client."""

Check = Callable[[Any, Any, str], None]
"""Raises where a beam search must be refused. Takes the engine's client, what is asked for, the option."""


def install_beams(check: Check) -> None:
    """Wrap what makes beam searches. Does nothing the second time."""
    for module, name in _PROTOCOLS:
        _wrap_in(module, name, "to_beam_search_params", _note)
    for module, name, engine in _SEARCHES:
        _wrap_in(module, name, "beam_search", _search_of(engine, check))


def _wrap_in(module: str, owner: str, name: str, make: Callable[[Any], Any]) -> None:
    try:
        found = import_module(module)
    except ImportError as error:  # an endpoint whose own dependencies are missing: nothing can call it
        _log.debug("no beam search through %s: %s", module, error)
        return
    wrap(getattr(found, owner), name, make)


@dataclass(frozen=True, slots=True)
class _Asked:
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


def _note(original: Any) -> Any:
    def to_beam_search_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = original(self, *args, **kwargs)
        setattr(params, _REQUEST, self)
        return params

    return to_beam_search_params


def _search_of(engine: str, check: Check) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        call = Call(original)

        # No generator, though the original may be one: what is raised here comes before a stream begins.
        def beam_search(self: Any, *args: Any, **kwargs: Any) -> Any:
            params = call.get("params", args, kwargs)
            request = getattr(params, _REQUEST, None)
            if request is None:
                check(getattr(self, engine), params, "beam_search")
            else:
                check(getattr(self, engine), _Asked(request), "use_beam_search")
            return original(self, *args, **kwargs)

        return beam_search

    return make
