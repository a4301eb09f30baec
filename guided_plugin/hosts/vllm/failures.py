"""How a failed request ends as an error in vLLM. Imports vLLM.

    EngineCore    Scheduler.add_request: a guided request's params carry its id, for the worker to name it by
    worker        Worker.sample_tokens, get_output: failures of a step go with its ModelRunnerOutput
    EngineCore    Scheduler.update_from_output: those requests end with FinishReason.ERROR

vLLM offers processors no way to report a failure, so these methods are wrapped. A step without failures costs
a look at one attribute. Where a method is not what is expected, nothing is guided: a failure that cannot be
told would look like a finished output.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from guided_plugin.errors import GuidedError, RequestError
from guided_plugin.hosts.vllm.common import GUIDED, REQUEST
from guided_plugin.hosts.vllm.wrapping import wrap

__all__ = ["FAILED", "attach", "install", "unreported", "wrap_worker"]

_log = logging.getLogger(__name__)

FAILED = "guided_failed"
"""The attribute of a ModelRunnerOutput that says which requests failed: reasons by id."""

_WATCH = "_guided_watch"

Failures = Callable[[Any], dict[str, str]]
"""Tells the failures that belong to a ModelRunnerOutput, once its tokens are on the host."""


def install() -> None:
    """Wrap the scheduler of this process, if it is as expected. Does nothing the second time."""
    if _misfit(_SCHEDULER) is None:
        scheduler = resolve_name(_SCHEDULER[0])
        wrap(scheduler, "add_request", _add_request)
        wrap(scheduler, "update_from_output", _update_from_output)


def unreported(vllm_config: Any) -> GuidedError | None:
    """Why a failure could not be told in an engine of this configuration, if it could not."""
    misfit = _misfit(_SCHEDULER)
    if misfit is not None:
        return misfit
    known = resolve_name(_SCHEDULER[0])
    choose = getattr(getattr(vllm_config, "scheduler_config", None), "get_scheduler_cls", None)
    scheduler = known if choose is None else choose()
    if not (isinstance(scheduler, type) and issubclass(scheduler, known)):
        return RequestError(
            f"the scheduler {scheduler!r} is not one of vLLM's: failed requests could not end as errors",
            hint="leave scheduler_cls out, or derive it from vllm.v1.core.sched.scheduler.Scheduler",
        )
    return None


def wrap_worker(watch: Callable[[Any, Any], Any]) -> None:
    """Have `watch(worker, output)` see each output of the model runner first; it returns the output. Raises
    RequestError where vLLM's worker is not as expected. Once a process."""
    misfit = _misfit(_WORKER)
    if misfit is not None:
        raise misfit

    def make(original: Any) -> Any:
        def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
            return watch(self, original(self, *args, **kwargs))

        return sample_tokens

    wrap(resolve_name(_WORKER[0]), "sample_tokens", make)


def attach(output: Any, failures: Failures) -> Any:
    """An output that will carry its failures when its tokens are on the host."""
    from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

    if isinstance(output, AsyncModelRunnerOutput):
        wrap(type(output), "get_output", _get_output)
        setattr(output, _WATCH, failures)  # not a bound method: that would keep the output's tensors alive
        return output
    return _mark(output, failures) if isinstance(output, ModelRunnerOutput) else output


_Known = tuple[str, dict[str, tuple[str, ...]]]
_SCHEDULER: _Known = (
    "vllm.v1.core.sched.scheduler:Scheduler",
    {
        "add_request": ("self", "request"),
        "update_from_output": ("self", "scheduler_output", "model_runner_output"),
        "finish_requests": ("self", "request_ids", "finished_status"),
    },
)
_WORKER: _Known = "vllm.v1.worker.gpu_worker:Worker", {"sample_tokens": ("self", "grammar_output")}


def _misfit(known: _Known) -> GuidedError | None:
    """Why a class of vLLM's is not as it was, if it is not."""
    path, methods = known
    try:
        owner = resolve_name(path)
    except (ImportError, AttributeError) as error:
        return RequestError(f"this vLLM has no {path}: {error}", hint=_VERSIONS)
    for name, expected in methods.items():
        method = getattr(owner, name, None)
        if method is None or tuple(inspect.signature(method).parameters) != expected:
            return RequestError(
                f"this vLLM's {owner.__name__}.{name} has other arguments than expected", hint=_VERSIONS
            )
    return None


_VERSIONS = "failed requests could not end as errors, so none is guided; see docs/hosts.md for versions"


def _get_output(original: Any) -> Any:
    def get_output(self: Any) -> Any:
        output = original(self)
        failures: Failures | None = self.__dict__.pop(_WATCH, None)
        return output if failures is None else _mark(output, failures)

    return get_output


def _mark(output: Any, failures: Failures) -> Any:
    failed = failures(output)
    if failed:
        output = copy.copy(output)  # vLLM has one for all steps without a token
        setattr(output, FAILED, failed)
    return output


def _add_request(original: Any) -> Any:
    def add_request(self: Any, request: Any) -> Any:
        params = getattr(request, "sampling_params", None)
        extra = None if params is None else params.extra_args
        if extra and extra.get(GUIDED) is not None:
            # Params may be shared, between the children of one request among others.
            request.sampling_params = copy.copy(params)
            request.sampling_params.extra_args = {**extra, REQUEST: request.request_id}
        return original(self, request)

    return add_request


def _update_from_output(original: Any) -> Any:
    def update_from_output(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        failed = getattr(model_runner_output, FAILED, None)
        if not failed:
            return original(self, scheduler_output, model_runner_output)
        live = {one: reason for one, reason in failed.items() if _lives(self.requests.get(one))}
        _end_as_errors(self, live)
        outputs = original(self, scheduler_output, model_runner_output)
        _tell(outputs, live)
        return outputs

    return update_from_output


def _lives(request: Any) -> bool:
    return request is not None and not request.is_finished()


def _end_as_errors(scheduler: Any, failed: dict[str, str]) -> None:
    """Have the scheduler end requests at the end of its update, those without a token in this step too."""
    ending = scheduler.grammar_compile_error_reqs
    for request_id, reason in failed.items():
        _log.error("output cut off: request %s: %s", request_id, reason)
        if isinstance(ending, dict):  # since 0.33
            ending[request_id] = _error(reason)
        else:
            ending.add(request_id)


def _tell(outputs: dict[int, Any], failed: dict[str, str]) -> None:
    """A stop token may have ended a request in this step before the scheduler could."""
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
