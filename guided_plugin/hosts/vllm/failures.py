"""Requests in an engine that must end as errors. Imports torch, and vLLM lazily.

vLLM has no way for a processor to report a failure, so methods are wrapped: failures of
a step go with its ModelRunnerOutput, and the scheduler ends those requests with
FinishReason.ERROR. Where one is not as expected, nothing is guided: a failure that is
not reported looks like a finished output.

A request that fails gets masks with stop tokens only. That alone looks like a finished
output, so its failure goes to the scheduler together with the output of the first step
that is closed for it, and not before: what was sampled earlier is still good, and may
have ended the request as it should (`Ledger`).
"""

from __future__ import annotations

import copy
import logging
import threading
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from guided_plugin.errors import RequestError, printable
from guided_plugin.grammar.renewal import never_began
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.grammar.waiting import LED as LED_TEXTS
from guided_plugin.hosts.vllm.common import (
    GUIDED,
    engine_spec,
)
from guided_plugin.hosts.vllm.hold import state_of
from guided_plugin.hosts.vllm.jump import drafts_by_size
from guided_plugin.hosts.vllm.logits import GuidedRequest
from guided_plugin.hosts.vllm.turns import SLOW
from guided_plugin.step import Closure

_log = logging.getLogger(__name__)

FAILED = "guided_failed"
"""The attribute of a ModelRunnerOutput that says which requests failed: reasons by
id."""

LED = "guided_led"
"""The attribute of a ModelRunnerOutput with what of outputs is led to an end before
their limit, by request id; and of a Request."""

STOP_REASON = "close_before_length"
"""The stop reason of outputs that were led to their end; behind it stands whether their
reasoning was."""

READY = "guided_ready"
"""The attribute of a ModelRunnerOutput with the ids of requests whose grammars came."""

Find = Callable[[Any], dict[str, Any]]
"""The attributes that a ModelRunnerOutput carries, once its tokens are on the host."""

DeadRows = tuple[list[GuidedRequest], Tensor]
"""Requests whose own options may have left a row without a token that the grammar
allows, so that a stop token was put there; and [positions, requests] on the host,
whether the grammar forbids that."""

AT_ONCE = -1
"""In place of a step: the request was closed before its first one."""


def _with_news(output: Any, find: Find) -> Any:
    news = find(output)
    if news:
        output = copy.copy(output)  # vLLM has one for all steps without a token
        vars(output).update(news)
    return output


def add_request(
    self: Any, request: Any, *args: Any, original: Any, **kwargs: Any
) -> Any:
    """`Scheduler.add_request`: a guided request carries its id, by which its failure is
    reported."""
    drafts = drafts_by_size(self)
    spec = engine_spec(request.sampling_params)
    if spec is not None:
        if drafts is not None:
            drafts.guided[request.request_id] = request
        # Params may be shared, by the children of one request among others.
        params = request.sampling_params = copy.copy(request.sampling_params)
        told = spec._replace(made=None, request_id=request.request_id)
        params.extra_args = {**params.extra_args, GUIDED: told}
        state = state_of(self)
        if spec.read().start_after:
            state.watched[request.request_id] = request
        state.ask(request)
    return original(self, request, *args, **kwargs)


def update_from_output(
    self: Any,
    scheduler_output: Any,
    model_runner_output: Any,
    *args: Any,
    original: Any,
    **kwargs: Any,
) -> Any:
    """`Scheduler.update_from_output`."""
    news = vars(model_runner_output)
    state = state_of(self)
    state.release(news.get(READY, ()))
    state.turns.tell(news.get(SLOW, {}))
    for request_id, led in news.get(LED, {}).items():
        request = self.requests.get(request_id)
        if _is_live(request):
            # one that was preempted has been led before
            setattr(request, LED, led | getattr(request, LED, 0))
            state.watched[request_id] = request
    failed = {}
    for request_id, reason in news.get(FAILED, {}).items():
        if not _is_live(self.requests.get(request_id)):
            continue
        failed[request_id] = reason
        _log.error("request %s: output cut off: %s", printable(request_id), reason)
        # It ends at the end of this update, also without a token in this step.
        ending = self.grammar_compile_error_reqs
        if isinstance(ending, dict):  # since 0.33
            ending[request_id] = _error(reason)
        else:
            ending.add(request_id)
    # The scheduler may drop a request in this update.
    watched = dict(state.watched)
    outputs = original(self, scheduler_output, model_runner_output, *args, **kwargs)
    if failed or watched:
        for of_client in outputs.values():
            for output in of_client.outputs:
                if output.finish_reason is not None:
                    _tell_end(
                        output,
                        failed.get(output.request_id, ""),
                        watched.get(output.request_id),
                    )
    return outputs


def _tell_end(output: Any, reason: str, request: Any) -> None:
    """Tell that an output was led to its end. Turn one into an error that failed for a
    reason, which a stop token ended before the scheduler could, or that stopped before
    its constrained part began."""
    from vllm.v1.engine import FinishReason

    if request is not None and output.finish_reason is FinishReason.STOP and not reason:
        spec = request.sampling_params.extra_args[GUIDED].read()
        state = RequestState(spec.start_after or (), ())
        state.extend(array("q", request.output_token_ids))
        if not state.begun:
            reason = never_began(spec).reason
            _log.error("request %s: %s", printable(output.request_id), reason)
        elif hasattr(request, LED):
            output.stop_reason = LED_TEXTS[getattr(request, LED)].replace(
                "led", STOP_REASON
            )
    if reason:
        output.finish_reason = FinishReason.ERROR
        output.stop_reason = reason
        if hasattr(output, "error"):  # since 0.33
            output.error = _error(reason)


def _is_live(request: Any) -> bool:
    return request is not None and not request.is_finished()


def _error(reason: str) -> Any:
    from vllm.outputs import RequestError as VLLMRequestError

    return VLLMRequestError(
        code="guided_request_failed", message=f"guided request failed: {reason}"
    )


class Ledger:
    """Failed requests of one engine by vLLM's id, until an output tells of them.
    Thread-safe: outputs may be fetched in another thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closures: list[Closure] = []
        self.tells = True
        """True if this rank's output is the one that vLLM takes; nothing is noted
        elsewhere."""
        self._dead: list[DeadRows] = []
        """Failed rows of the step that is being sampled."""
        self._ready: list[str] = []
        """Requests in the scheduler whose grammars came since."""

    def __bool__(self) -> bool:
        return bool(self._closures or self._dead or self._ready)

    def tell_ready(self, request_id: str, _: object = None) -> None:
        """The grammar of a request that the scheduler holds is there, or is refused."""
        if self.tells:
            with self._lock:
                self._ready.append(request_id)

    def add(self, closure: Closure) -> None:
        """A request is closed from a step on, or led."""
        if self.tells:
            with self._lock:
                self._closures.append(closure)

    def limited(self, requests: list[GuidedRequest], flags: Tensor) -> None:
        """Rows of these may be given a stop token in this step; [positions, requests]
        `flags`, on the device, say where the grammar forbids it."""
        if self.tells:
            # vLLM waits for the current stream before it reads the tokens of the step:
            # then these are there.
            self._dead.append((requests, flags.to("cpu", non_blocking=True)))

    def attach(self, output: Any, runtime: Any, ahead: int = 0) -> Any:
        """The output of a step. It will carry the failures that belong to it when its
        tokens are on the host.
        `runtime`: of the pipeline, which is so many steps ahead of it."""
        dead = self._dead
        self._dead = []
        newest = AT_ONCE if runtime is None else runtime.newest - ahead
        find = partial(self._news, newest, dead, runtime)
        if not hasattr(output, "get_output"):
            complete = hasattr(output, "sampled_token_ids")
            return _with_news(output, find) if complete else output

        def get_output() -> Any:  # called once, by any thread
            del output.get_output  # in a cycle it would keep the output's tensors alive
            return _with_news(output.get_output(), find)

        output.get_output = get_output
        return output

    def _news(
        self, step: int, dead: list[DeadRows], runtime: Any, output: Any
    ) -> dict[str, Any]:
        """The tokens of the step are on the host, so its masks were complete. Any
        thread."""
        # A step without a token is over before the one ahead of it, whose failures go
        # with its own output.
        step = step if output.sampled_token_ids else AT_ONCE
        for requests, flags in dead:
            # An accepted draft may be that token, too.
            for request, *cut in zip(requests, *flags.tolist(), strict=True):
                tokens = _tokens_of(output, request.request_id)
                if any(
                    token == request.stop and forbidden
                    for token, forbidden in zip(tokens, cut, strict=False)
                ):
                    error = RequestError(
                        f"{request.limits} leave no token that the grammar allows",
                        hint="change them, or the spec",
                    )
                    self.add(Closure(request.request_id, step, error.reason))
        for closure in () if runtime is None else runtime.take_closed():
            self.add(closure)
        with self._lock:
            ready = tuple(self._ready)
            self._ready.clear()
            due = [closure for closure in self._closures if closure.step <= step]
            self._closures = [one for one in self._closures if one.step > step]
        # The first reason stays. A request that has ended may be noticed once more in
        # another place: the scheduler passes over that.
        failed = {one.request_id: one.reason for one in reversed(due) if one.reason}
        led = {
            one.request_id: one.led
            for one in due
            if one.led and one.place < max(1, len(_tokens_of(output, one.request_id)))
        }
        slow = {} if runtime is None else runtime.slow()
        news = {FAILED: failed, LED: led, READY: ready, SLOW: slow}
        return {name: told for name, told in news.items() if told}


def _tokens_of(output: Any, request_id: str) -> list[int]:
    """The tokens of a step that a request took; `output` is its ModelRunnerOutput."""
    row = output.req_id_to_index.get(request_id)
    if row is None or not output.sampled_token_ids:
        return []
    tokens: list[int] = output.sampled_token_ids[row]
    return tokens
