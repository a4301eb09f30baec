"""How a failed request ends as an error in vLLM. Imports vLLM lazily.

    EngineCore    Scheduler.add_request: a guided request carries its id, by which its failure is reported
    worker        Worker.sample_tokens, get_output: failures of a step go with its ModelRunnerOutput
    EngineCore    Scheduler.update_from_output: those requests end with FinishReason.ERROR

vLLM has no way for a processor to report a failure, so these methods are wrapped. Where one is not as
expected, nothing is guided: a failure that is not reported looks like a finished output.
"""

from __future__ import annotations

import copy
import logging
import weakref
from array import array
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, RequestError, printable
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.grammar.table import never_began
from guided_plugin.hosts.vllm.common import ADMITTED, GUIDED, REQUEST, frontend_parts, unsupported_reason
from guided_plugin.hosts.vllm.contract import broken
from guided_plugin.hosts.vllm.leaving import count
from guided_plugin.hosts.vllm.parts import Part
from guided_plugin.hosts.vllm.wrapping import wrap
from guided_plugin.spec import OutputSpec

_log = logging.getLogger(__name__)

FAILED = "guided_failed"
"""The attribute of a ModelRunnerOutput that says which requests failed: reasons by id."""

_WATCH = "_guided_watch"

_UNBEGUN = "_guided_unbegun"
"""The attribute of a scheduler with its requests, by id, whose constrained part may not have begun."""

Failures = Callable[[Any], dict[str, str]]
"""The failures that belong to a ModelRunnerOutput, once its tokens are on the host."""

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_WORKER = "vllm.v1.worker.gpu_worker:Worker"


def install() -> None:
    """Wrap the scheduler of this process, if it is as expected. Does nothing the second time."""
    if broken(Part.SCHEDULER) is None:
        scheduler = resolve_name(_SCHEDULER)
        wrap(scheduler, "add_request", _add_request)
        wrap(scheduler, "update_from_output", _update_from_output)


def unreported(vllm_config: Any) -> GuidedError | None:
    """Why failures could not be reported in an engine of this configuration, if they could not."""
    error = broken(Part.SCHEDULER)
    if error is not None:
        return error
    choose = getattr(getattr(vllm_config, "scheduler_config", None), "get_scheduler_cls", None)
    known = resolve_name(_SCHEDULER)
    scheduler = known if choose is None else choose()
    if not (isinstance(scheduler, type) and issubclass(scheduler, known)):
        return RequestError(
            f"the scheduler {scheduler!r} is not one of vLLM's: failed requests could not end as errors",
            hint="leave scheduler_cls out, or derive it from vllm.v1.core.sched.scheduler.Scheduler",
        )
    return None


def refused_unseen(vllm_config: Any, options: GuidedConfig) -> GuidedError | None:
    """Why no guided request may go to an engine of this configuration, as a frontend knows it."""
    reason = unsupported_reason(vllm_config, options) or broken(*frontend_parts(vllm_config))
    return reason or unreported(vllm_config)


def wrap_worker(watch: Callable[[Any, Any], Any]) -> None:
    """Pass each output of the model runner through `watch(worker, output)`. Raises RequestError where vLLM's
    worker is not as expected. Does nothing the second time."""
    error = broken(Part.WORKER)
    if error is not None:
        raise error

    def make(original: Any) -> Any:
        def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
            return watch(self, original(self, *args, **kwargs))

        return sample_tokens

    wrap(resolve_name(_WORKER), "sample_tokens", make)


def attach(output: Any, failures: Failures) -> Any:
    """An output that will carry its failures when its tokens are on the host."""
    kind = _kinds.get(type(output)) or _kind_of(type(output))
    if kind == "asynchronous":
        setattr(output, _WATCH, failures)  # not a bound method: that would keep the output's tensors alive
        return output
    return _with_failures(output, failures) if kind == "complete" else output


_kinds: dict[type, str] = {}
"""What each class of output is: `complete`, `asynchronous`, or `other`. Looked up in each step."""


def _kind_of(output: type) -> str:
    from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

    kind = "complete" if issubclass(output, ModelRunnerOutput) else "other"
    if issubclass(output, AsyncModelRunnerOutput):
        kind = "asynchronous"
        wrap(output, "get_output", _get_output)
    _kinds[output] = kind
    return kind


def _get_output(original: Any) -> Any:
    def get_output(self: Any) -> Any:
        output = original(self)
        failures: Failures | None = self.__dict__.pop(_WATCH, None)
        return output if failures is None else _with_failures(output, failures)

    return get_output


def _with_failures(output: Any, failures: Failures) -> Any:
    failed = failures(output)
    if failed:
        output = copy.copy(output)  # vLLM has one for all steps without a token
        setattr(output, FAILED, failed)
    return output


def _add_request(original: Any) -> Any:
    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        params = getattr(request, "sampling_params", None)
        extra = None if params is None else params.extra_args
        if extra:
            count(extra)
        if extra and extra.get(GUIDED) is not None:
            # Params may be shared, by the children of one request among others.
            request.sampling_params = copy.copy(params)
            request.sampling_params.extra_args = {**extra, REQUEST: request.request_id}
            if extra.get(ADMITTED) is True and extra[GUIDED].get("start_after"):
                waiting = self.__dict__.setdefault(_UNBEGUN, weakref.WeakValueDictionary())
                waiting[request.request_id] = request
        return original(self, request, *args, **kwargs)

    return add_request


def _update_from_output(original: Any) -> Any:
    def update_from_output(
        self: Any, scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any
    ) -> Any:
        failed = getattr(model_runner_output, FAILED, None)
        unbegun = dict(self.__dict__.get(_UNBEGUN) or ())
        if not failed and not unbegun:
            return original(self, scheduler_output, model_runner_output, *args, **kwargs)
        live = {one: reason for one, reason in (failed or {}).items() if _is_live(self.requests.get(one))}
        for request_id, reason in live.items():
            _log.error("output cut off: request %s: %s", printable(request_id), reason)
            _end_as_error(self, request_id, reason)
        outputs = original(self, scheduler_output, model_runner_output, *args, **kwargs)
        _correct(outputs, live)
        if unbegun:
            _correct(outputs, _ended_too_early(outputs, unbegun))
        return outputs

    return update_from_output


def _ended_too_early(outputs: dict[int, Any], unbegun: dict[str, Any]) -> dict[str, str]:
    """Reasons by id of requests that stopped before their constrained part began: nothing of them is."""
    from vllm.v1.engine import FinishReason

    found = {}
    for of_client in outputs.values():
        for output in of_client.outputs:
            request = unbegun.get(output.request_id)
            if request is None or output.finish_reason is not FinishReason.STOP:
                continue
            spec = OutputSpec(**request.sampling_params.extra_args[GUIDED])
            state = RequestState(spec.start_after or (), ())
            state.extend(array("q", request.output_token_ids))
            if not state.begun:
                found[output.request_id] = reason = never_began(spec).reason
                _log.error("request %s: %s", printable(output.request_id), reason)
    return found


def _is_live(request: Any) -> bool:
    return request is not None and not request.is_finished()


def _end_as_error(scheduler: Any, request_id: str, reason: str) -> None:
    """Have the scheduler end a request at the end of its update, also one without a token in this step."""
    ending = scheduler.grammar_compile_error_reqs
    if isinstance(ending, dict):  # since 0.33
        ending[request_id] = _error(reason)
    else:
        ending.add(request_id)


def _correct(outputs: dict[int, Any], failed: dict[str, str]) -> None:
    """Turn outputs of failed requests into errors which a stop token ended before the scheduler could."""
    from vllm.v1.engine import FinishReason

    for of_client in outputs.values():
        for output in of_client.outputs:
            reason = failed.get(output.request_id)
            if reason is None or output.finish_reason is None:
                continue
            output.finish_reason = FinishReason.ERROR
            output.stop_reason = reason
            if hasattr(output, "error"):  # since 0.33
                output.error = _error(reason)


def _error(reason: str) -> Any:
    from vllm.outputs import RequestError as VLLMRequestError

    return VLLMRequestError(code="guided_request_failed", message=f"guided request failed: {reason}")
