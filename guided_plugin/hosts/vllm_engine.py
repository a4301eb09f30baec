"""What both model runners of vLLM share: the pipeline, and how a request begins and ends. Imports torch.

Nothing in here raises for one request. A request that can't be guided is closed: its row allows a stop
token and nothing else, so that it ends at once and no unconstrained text leaves as constrained.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from guided_plugin.errors import GuidedError
from guided_plugin.grammar.compiler import GrammarCompiler
from guided_plugin.hookspecs import hookimpl
from guided_plugin.hosts.vllm_common import (
    KNOWN,
    METRICS,
    PREPARE,
    drafts_of,
    mode_of,
    obstacle,
    options_of,
    read_spec,
    spec_of,
    stop_tokens,
    vocabulary_of,
    with_stops,
)
from guided_plugin.metrics import Recent
from guided_plugin.pipeline import StepPipeline
from guided_plugin.step import UNGUIDED, Admission, RequestInfo

__all__ = ["Engine", "Guided", "mend_indexed", "mend_rows", "upload"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Guided:
    """A guided request in the batch."""

    request_id: str
    slot: int
    """UNGUIDED where it is closed."""
    stop: int
    """A token that ends it."""
    fragile: bool
    """Whether vLLM itself forbids tokens of it: what is left of a row may then be nothing."""


class Engine:
    """The plugin's part of one vLLM engine."""

    def __init__(self, vllm_config: Any, device: torch.device, max_requests: int) -> None:
        self.options = options_of(vllm_config)
        self.obstacle = obstacle(vllm_config, self.options)
        """Why nothing can be guided here, if nothing can."""
        self._pipeline: StepPipeline | None = None
        self._numbers = itertools.count(1)
        self._preparing: dict[str, Future[Admission]] = {}
        """Specs that frontends ask for again and again until they are there."""
        self._spent = Recent()
        self._started = False
        """Whether a spec has compiled here: the grammar worker takes seconds to start."""
        _engines.add(self)
        if self.obstacle is None:
            try:
                _offer_methods()
                compiler = GrammarCompiler(vocabulary_of(vllm_config), config=self.options)
                compiler.plugins.register(_Reporter(), "vllm-reporter")
                mode = mode_of(self.options, device.type)
                self._pipeline = StepPipeline(
                    compiler,
                    max_slots=max_requests,
                    device=device,
                    mode=mode,  # type: ignore[arg-type]
                    drafts=drafts_of(vllm_config),
                )
                if self._pipeline.mode == "inline":
                    compiler.start()
            except GuidedError as error:
                self.refuse(error)

    @property
    def pipeline(self) -> StepPipeline:
        """The pipeline; there is one where a request has a slot."""
        if self._pipeline is None:
            raise self.obstacle or RuntimeError("no pipeline")
        return self._pipeline

    def refuse(self, error: GuidedError) -> None:
        """Guide nothing: every guided request is closed."""
        self.obstacle = error
        _log.warning("guided requests will be refused: %s", error)

    def begin(self, params: Any, tokens: Iterable[int] = ()) -> Guided | None:
        """Start a request, after the output it had already produced. None if nothing guides it."""
        try:
            spec = spec_of(params)
            if spec is None:
                return None
            if self.obstacle is not None:
                raise self.obstacle
            request_id = f"vllm-{next(self._numbers)}"
            vocabulary = self.pipeline.compiler.vocabulary
            stops = stop_tokens(params, vocabulary)
            spec = with_stops(spec, stops)
            known = params.extra_args.get(KNOWN) is True
            # Only who comes before the grammar worker has started waits for it.
            slot = self.pipeline.add_request(
                request_id, spec, tokens=tokens, wait=not self._started, known=known
            )
            self._started = True
        except GuidedError as error:
            # The gate lets no such request pass: somebody went around it.
            _log.error("a request is closed, its output is cut off: %s", error)
            return Guided("", UNGUIDED, min(params.all_stop_token_ids, default=0), False)
        limited = params.min_tokens or params.bad_words or params.allowed_token_ids or params.logit_bias
        return Guided(request_id, slot, (spec.stop_token_ids or stops)[0], bool(limited))

    def prepare(self, text: str) -> bool:
        """Compile a spec that a request will come with; whether that is done. Never blocks."""
        if self._pipeline is None:
            return True
        verdict = self._preparing.get(text)
        if verdict is None:
            spec = read_spec(text)
            if spec is None:
                return True
            verdict = self._preparing[text] = self._pipeline.prepare(spec, known=True)
        if not verdict.done():
            return False
        del self._preparing[text]
        self._started = True
        return True

    def end(self, guided: Guided) -> None:
        """A request has left; it may come back as another one."""
        if guided.slot != UNGUIDED:
            self.pipeline.remove_request(guided.request_id)

    def spent(self, seconds: float) -> None:
        """What a step took of vLLM's thread, the runner's part included."""
        self._spent.add(seconds)

    def metrics(self) -> dict[str, Any]:
        """The figures of its pipeline as plain data, for other processes."""
        if self._pipeline is None:
            return {"refused": str(self.obstacle)}
        metrics = dataclasses.asdict(self._pipeline.metrics())
        metrics["host_thread"] = self._spent.median()
        metrics["choices"] = [[*choice, count] for choice, count in metrics["choices"].items()]
        return metrics

    def close(self) -> None:
        """End the grammar worker, if there is one."""
        if self._pipeline is not None:
            self._pipeline.close()


class _Reporter:
    """Tells operators of requests that failed while they ran: vLLM has no way to tell the client."""

    @hookimpl
    def request_failed(self, request: RequestInfo) -> None:
        """See the hook of this name."""
        _log.error("output cut off: %s", request.error)


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _offer_methods() -> None:
    """Give vLLM's workers the methods that others reach through `collective_rpc`."""
    from vllm.v1.worker.worker_base import WorkerBase

    def guided_prepare(self: Any, text: str) -> bool:
        return all(engine.prepare(text) for engine in list(_engines))

    def guided_metrics(self: Any) -> list[dict[str, Any]]:
        return [engine.metrics() for engine in list(_engines)]

    setattr(WorkerBase, PREPARE, guided_prepare)
    setattr(WorkerBase, METRICS, guided_metrics)


def mend_rows(logits: Tensor, rows: list[tuple[int, Guided]]) -> None:
    """Close the rows of closed requests; leave a stop token to fragile rows that have nothing left."""
    closed = [(row, guided.stop) for row, guided in rows if guided.slot == UNGUIDED]
    fragile = [(row, guided.stop) for row, guided in rows if guided.slot != UNGUIDED and guided.fragile]
    if closed:
        index, stops = _columns(closed, logits.device)
        logits.index_fill_(0, index, -torch.inf)
        logits[index, stops] = 0.0
    if fragile:
        index, stops = _columns(fragile, logits.device)
        dead = logits.index_select(0, index).amax(1) == -torch.inf
        logits[index, stops] = torch.where(dead, 0.0, logits[index, stops])


def mend_indexed(logits: Tensor, indices: Tensor, requests: list[tuple[int, Guided]]) -> None:
    """The same where a request has several rows, found on the device by its index: indices[row]."""
    for closing in (True, False):
        chosen = [(index, one.stop) for index, one in requests if (one.slot == UNGUIDED) == closing]
        if not chosen:
            continue
        index, stops = _columns(chosen, logits.device)
        own = indices.unsqueeze(1) == index
        hit, stop = own.any(1, keepdim=True), (own * stops).sum(1, keepdim=True)
        if closing:
            logits.masked_fill_(hit, -torch.inf)
        else:
            hit = hit & (logits.amax(1, keepdim=True) == -torch.inf)
        logits.scatter_(1, stop, torch.where(hit, 0.0, logits.gather(1, stop)))


def upload(host: Tensor, device: torch.device) -> Tensor:
    """A small tensor of the host on the device; nobody waits for the copy."""
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)


def _columns(pairs: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    there = upload(torch.tensor(pairs, dtype=torch.int64).T.contiguous(), device)
    return there[0], there[1]
