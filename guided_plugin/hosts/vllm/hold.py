"""Requests wait in vLLM's scheduler until the engine has their grammar, as those of
vLLM's own backends do. Imports vLLM lazily.

`preprocess_add_request` runs beside the forward pass, for every frontend. It has the
grammar made ready and gives the request a stand-in for vLLM's own structured output:
the scheduler passes over the request until the stand-in has a grammar. An engine whose
workers are other processes asks the leading one, whose outputs tell when it is done
(`failures`). Whether the spec is refused there is for `Engine.begin` to say.
"""

from __future__ import annotations

import copy
import logging
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

from guided_plugin.errors import GuidedError, RequestError, printable
from guided_plugin.hosts.vllm.common import (
    ADMITTED,
    GUIDED,
    MADE,
    MARK,
    PREPARE,
    constraint,
    options_of,
    refused_unseen,
    rust_frontend,
)
from guided_plugin.hosts.vllm.questions import engine_of
from guided_plugin.hosts.vllm.telling import refusal

_log = logging.getLogger(__name__)

_ASKED = "_guided_asked"
"""The attribute of an engine with the questions that its workers have not answered, as
far as it knows."""

_MOST_ASKED = 4
"""Of these questions at the same time. vLLM's rings hold ten messages to the workers
and ten back: with more, and two steps of two messages each, engine and worker would wait
for each other for ever."""

_SECONDS = 120.0
"""How long a request is held at most. A grammar worker takes seconds to start."""


class Held:
    """In place of a `StructuredOutputRequest`, until the grammar is there."""

    def __init__(self, request: Any, question: tuple[Any, ...]) -> None:
        self.question = question
        """What the workers of other processes are asked; empty where there are none."""
        self._request = request
        self._until = time.monotonic() + _SECONDS
        self._ready = False

    def release(self, _: object = None) -> None:
        """The engine has the grammar, or has refused it. Any thread."""
        self._ready = True

    @property
    def grammar(self) -> Held | None:
        """None as long as the scheduler shall pass over the request. vLLM's own manager
        has no part in it after that."""
        if not self._ready and time.monotonic() < self._until:
            return None
        self._request.structured_output_request = None
        return self


def preprocess_add_request(original: Any) -> Any:
    """`EngineCore.preprocess_add_request`. Every request passes it. One with a
    constraint that this plugin serves and without the gate's mark came past the check
    at admission: nothing has compiled its spec within the limits, and with `take_over`
    vLLM's own manager would serve what the operator gave to the plugin. It is
    refused."""

    def replaced(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        # None where a request is pooled: it has no output to guide
        params = request.sampling_params
        error = None if params is None else passed_by(params, self.vllm_config)
        if error is None:
            extra = None if params is None else params.extra_args
            made = extra.pop(MADE, None) if extra else None
            added = original(self, request, *args, **kwargs)
            if extra and extra.get(GUIDED) is not None:
                _hold(added[0], (extra[GUIDED][0], made), engine_of(self))
            return added
        # vLLM's part all the same: its caches of images follow what frontends send. But
        # no grammar is made.
        request.sampling_params = copy.copy(params)
        request.sampling_params.structured_outputs = None
        original(self, request, *args, **kwargs)
        _log.error(
            "request %s: refused: %s", printable(request.request_id), error.reason
        )
        raise refusal(error)

    return replaced


def _hold(request: Any, spec: tuple[str, bytes | None], engine: Any) -> None:
    """Hold a request until its spec, packed, with what a frontend made of it, is ready
    in the engine; None where that is in other processes."""
    from vllm.v1.request import RequestStatus

    if engine is None:
        held = Held(request, (request.request_id, *spec))
    else:
        verdict = engine.prepare(*spec)
        if verdict.done():
            return
        held = Held(request, ())
        verdict.add_done_callback(held.release)
    request.structured_output_request = held
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR


def add_request(original: Any) -> Any:
    """`EngineCore.add_request`: the engine's thread, which alone may ask the workers of
    other processes."""

    def replaced(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        held = request.structured_output_request
        if isinstance(held, Held) and held.question:
            asked: deque[Future[Any]] = vars(self).setdefault(_ASKED, deque())
            while asked and (asked[0].done() or len(asked) >= _MOST_ASKED):
                asked.popleft().result()
            asked.append(
                self.model_executor.collective_rpc(
                    PREPARE, args=held.question, non_block=True
                )
            )
        return original(self, request, *args, **kwargs)

    return replaced


def release(request: Any) -> None:
    """The engine has told that the grammar of a request is there, which may have ended
    meanwhile."""
    held = getattr(request, "structured_output_request", None)
    if isinstance(held, Held):
        held.release()


def check_ready(prompt: Any, vllm_config: Any) -> None:
    """Refuse what a caller gives a frontend as a request that is ready for the engine,
    if no gate made it."""
    params = getattr(prompt, "sampling_params", None)
    error = None if params is None else passed_by(params, vllm_config)
    if error is not None:
        raise refusal(error)


def passed_by(params: Any, vllm_config: Any) -> GuidedError | None:
    """Why a request in the engine is refused, if it came past the gate."""
    extra = params.extra_args
    if extra and extra.get(GUIDED) is not None:
        # Only the gate of a Python frontend makes a mark: any other is a client's.
        return (
            None if extra.get(ADMITTED) is True and not rust_frontend() else _PASSED_BY
        )
    if constraint(params) is None:
        return None
    options = options_of(vllm_config)
    if options.refused == "vllm" and extra and extra.get(MARK) is True:
        return None
    taken_over = options.take_over and refused_unseen(vllm_config, options) is None
    return _PASSED_BY if taken_over else None


_PASSED_BY = RequestError(
    "the request reached the engine without the plugin's check",
    hint="send it through a frontend that has loaded the plugin: see docs/compatibility.md#entrances",
)
