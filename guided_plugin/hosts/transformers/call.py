"""One `generate` call, step by step: the five verbs, called from a logits processor and a stopping criterion.

    forward n -> processors: apply_mask(n) -> sample, append
              -> criteria:   schedule_update(n), finish_update(n), plan(n+1), fill_mask(n+1)
              -> stop check -> forward n+1

A forward pass that is launched kernel by kernel keeps the host busy as long as the device: masks that were
only asked for in the processor would come late. Where filling them would block the host, and before the first
step, the processor asks.

`generate` tells its processors little: neither how it decodes nor when it ends. What they must know to refuse
what they can't guide is read from its stack frame, once a call; what they find without it holds anyway: a
processor and a criterion take turns, and each sees the very token ids that the other saw, one column later.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import ConfigError, GuidedError, PipelineError, RequestError
from guided_plugin.grammar.request_state import Phase
from guided_plugin.hookspecs import hookimpl
from guided_plugin.hosts.transformers.pool import Loan, PipelinePool
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, RequestInfo

__all__ = ["DECODERS", "FailureLog", "GenerateCall", "Surroundings", "surroundings"]

_log = logging.getLogger(__name__)

_numbers = itertools.count()

DECODERS = {"_beam_search": "beam search", "_assisted_decoding": "assisted generation"}
"""Methods of `GenerationMixin` that call processors out of turn, or on rows that move."""

_FRAMES = 64
_ONE_CALL = "make new ones for every generate call, or say reuse=True when you make them"
_ONE_BY_ONE = (
    "guide sampling or greedy decoding: num_beams=1, no assistant_model, no prompt_lookup_num_tokens"
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What `generate` is about to do, as far as it can be seen; the defaults are the careful guesses."""

    decoder: str = ""
    """The name of the decoding method."""
    beams: int = 1
    assistant: bool = False
    sequences: int | None = None
    """Rows of a prompt."""
    stops: frozenset[int] = frozenset()
    """Tokens that `generate` itself stops at."""
    pads: frozenset[int] = frozenset()
    """What it writes into rows that ended."""
    forced_start: bool = False
    """The first token is forced, whatever the grammar says."""
    forced_end: int | None = None
    """The column of a last token that is forced."""
    keeps_logits: bool = True
    """The logits are returned as they were before the processors: they must not be masked in place."""
    first: bool = False
    """No processor has changed the logits before."""


def surroundings(processor: object) -> Surroundings:
    """Read them from the frame of the decoding method that is calling a processor."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame is None:
            break
        names = frame.f_code.co_varnames
        if "generation_config" in names and "logits_processor" in names:
            local = frame.f_locals
            try:
                return _read(frame.f_code.co_name, local, processor)
            finally:
                # Up to Python 3.12 the frame keeps this copy, and with it the prompt's logits.
                if isinstance(local, dict):
                    local.clear()
        frame = frame.f_back
    return Surroundings()


def _read(decoder: str, local: Mapping[str, Any], processor: object) -> Surroundings:
    config = local["generation_config"]
    chain = list(local["logits_processor"] or ()) if decoder == "_sample" else []
    forced_end = getattr(config, "forced_eos_token_id", None) is not None and config.max_length is not None
    return Surroundings(
        decoder=decoder,
        beams=getattr(config, "num_beams", None) or 1,
        assistant=bool(getattr(config, "is_assistant", False)),
        sequences=getattr(config, "num_return_sequences", None) or 1,
        stops=_ids(getattr(config, "_eos_token_tensor", None)),
        pads=_ids(getattr(config, "_pad_token_tensor", None)),
        forced_start=getattr(config, "forced_bos_token_id", None) is not None,
        forced_end=config.max_length - 1 if forced_end else None,
        keeps_logits=bool(getattr(config, "output_logits", True)),
        first=bool(chain) and chain[0] is processor,
    )


def _ids(tokens: Tensor | None) -> frozenset[int]:
    return frozenset() if tokens is None else frozenset(tokens.reshape(-1).tolist())


class GenerateCall:
    """The state of one `generate` call; with `reuse`, of one after another."""

    # Made anew by `_start`.
    _around: Surroundings
    _loan: Loan
    _appended: bool
    _paired: bool
    _steps: int
    _planned: bool
    _guided: list[int]
    _slots: list[int]
    _unguided: list[int]
    _seen: Tensor
    _nothing: Tensor  # [rows] False, on the device
    _stops: Tensor  # [rows, most], on the device: filled up with -1, which no token is
    _stop_columns: Tensor  # the same, filled up with one of them
    _is_guided: Tensor  # [rows, 1], on the device
    _opened: Tensor  # [rows, 1], on the device: rows that `_open_stops` had to let stop

    def __init__(
        self,
        pool: PipelinePool,
        specs: Sequence[OutputSpec | None],
        *,
        every_row: bool,
        reuse: bool,
        loan: Loan | None,
    ) -> None:
        """`every_row`: the one spec is for all rows. `loan`: a pipeline in which the specs have compiled."""
        self._pool = pool
        self._specs = tuple(specs)
        self._every_row = every_row
        self._reuse = reuse
        self._started = self._closed = False
        # In a list of its own: the finalizer must not know this object.
        self._loans: list[Loan] = [loan] if loan is not None else []
        finalizer = weakref.finalize(self, _leave, pool, self._loans)
        finalizer.atexit = False

    # What processors and criteria call

    def process(self, processor: object, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask the guided rows: apply_mask, and what must come before it and has not."""
        if not self._started or self._restarts(input_ids):
            self._start(surroundings(processor), input_ids, scores)
        elif not self._appended:
            self._append_late(input_ids)
        self._seen, self._appended = input_ids, False
        if not self._guided:
            return scores
        if self._around.keeps_logits:
            scores = scores.clone()
        self._plan()
        self._planned = False
        self._loan.pipeline.apply_mask(scores)
        if not self._around.first:
            self._open_stops(scores)
        return scores

    def append(self, input_ids: Tensor) -> Tensor:
        """Send the sampled tokens to the grammars: schedule_update, finish_update; plan the next step. Which
        rows ended."""
        self._check_turn(input_ids)
        self._paired = True
        self._take(input_ids)
        if not self._guided or self._host_stops:
            return self._nothing
        return (input_ids[:, -1:] == self._stops).any(1)

    def failed(self, request: RequestInfo) -> None:
        """A request of this call failed."""
        self._failed.append(self._requests[request.request_id])

    # What the guide asks afterwards

    @property
    def prompt_length(self) -> int:
        """How many columns of the token ids were there before the first step."""
        return self._prompt_length

    @property
    def errors(self) -> dict[int, GuidedError]:
        """Rows that failed, as of all that was sampled, and why."""
        if self._started and not self._closed:
            for request_id, row in self._requests.items():
                if self._loan.pipeline.request(request_id).error is not None and row not in self._failed:
                    self._failed.append(row)
            self._judge()
        return dict(self._errors) if self._started else {}

    def complete(self) -> dict[int, bool]:
        """For each guided row, whether its output ended as its grammar allows."""
        if not self._started or self._closed or not self._guided:
            return {}
        pipeline = self._loan.pipeline
        return {row: pipeline.phase(name) is Phase.DONE for name, row in self._requests.items()}

    def close(self) -> None:
        """Give the pipeline back; the processor and the criterion are of no use afterwards."""
        self._closed = True
        while self._loans:
            self._pool.give_back(self._loans.pop())

    # The first step

    def _start(self, around: Surroundings, input_ids: Tensor, scores: Tensor) -> None:
        if self._closed:
            raise PipelineError("this generate call has ended", hint=_ONE_CALL)
        _refuse(around)
        rows = scores.shape[0]
        specs = self._specs_of(rows, around, input_ids)
        self._end_requests()
        self._around = around
        self._thread = threading.get_ident()
        self._prompt_length = input_ids.shape[1]
        self._steps = 0
        self._planned = False
        self._paired = self._appended = False
        self._failed: list[int] = []
        self._ended: set[int] = set()
        self._errors: dict[int, GuidedError] = {}
        self._requests: dict[str, int] = {}
        self._guided = [row for row, spec in enumerate(specs) if spec is not None]
        self._nothing = torch.zeros(rows, dtype=torch.bool, device=input_ids.device)
        if self._guided:
            self._loan = self._loan_for(scores.device, len(self._guided))
            self._slots = self._add(specs)
            self._unguided = [UNGUIDED] * rows
            self._make_stops(specs, scores.device)
        self._started = True

    def _specs_of(self, rows: int, around: Surroundings, input_ids: Tensor) -> list[OutputSpec | None]:
        """The spec of each row; row r belongs to prompt r // num_return_sequences."""
        if self._every_row:
            return list(self._specs) * rows
        count = len(self._specs)
        each, rest = divmod(rows, count)
        if rest or each == 0 or (around.sequences is not None and each != around.sequences):
            prompts = rows // (around.sequences or 1)
            raise ConfigError(
                f"{count} specs for {prompts} prompts",
                where="specs",
                hint="one for each prompt, or one for all",
            )
        if around.sequences is None and each > 1:
            groups = input_ids.view(count, each, -1)
            if not bool((groups == groups[:, :1]).all()):
                raise ConfigError(f"{count} specs for {rows} rows", where="specs", hint="one for each prompt")
        return [spec for spec in self._specs for _ in range(each)]

    def _loan_for(self, device: torch.device, slots: int) -> Loan:
        loan = self._loans[0] if self._loans else None
        if loan is None or loan.device != device or loan.slots < slots:
            while self._loans:
                self._pool.give_back(self._loans.pop())
            loan = self._pool.borrow(device, slots)
            self._loans.append(loan)
        return loan

    def _add(self, specs: list[OutputSpec | None]) -> list[int]:
        slots = [UNGUIDED] * len(specs)
        call = next(_numbers)
        log = FailureLog.of(self._pool.compiler)
        for row in self._guided:
            spec = specs[row]
            if spec is None:
                continue
            request_id = f"generate-{call}-row-{row}"
            self._requests[request_id] = row
            log.calls[request_id] = self
            slots[row] = self._loan.pipeline.add_request(request_id, spec)
            self._loan.requests.append(request_id)
        return slots

    def _make_stops(self, specs: list[OutputSpec | None], device: torch.device) -> None:
        """What `append` and `_open_stops` need of each row's stop tokens."""
        default = self._pool.compiler.vocabulary.stop_token_ids
        chosen = [() if spec is None else spec.stop_token_ids or default for spec in specs]
        self._stop_ids = chosen
        self._host_stops = self._around.stops.issuperset(itertools.chain.from_iterable(chosen))
        most = max(map(len, chosen))
        self._stops = torch.tensor([[*ids, *[-1] * (most - len(ids))] for ids in chosen], device=device)
        if self._around.first:
            return
        columns = [[*ids, *[ids[0] if ids else 0] * (most - len(ids))] for ids in chosen]
        self._stop_columns = torch.tensor(columns, device=device)
        self._is_guided = torch.tensor([[bool(ids)] for ids in chosen], device=device)
        self._opened = torch.zeros_like(self._is_guided)

    # Later steps

    def _restarts(self, input_ids: Tensor) -> bool:
        """Whether another `generate` call begins, or this one went wrong."""
        if self._closed:
            raise PipelineError("this generate call has ended", hint=_ONE_CALL)
        if self._appended:
            if input_ids is self._seen and threading.get_ident() == self._thread:
                return False
        elif not self._paired and self._extends(input_ids):
            return False
        if self._reuse and threading.get_ident() == self._thread:
            return True
        if threading.get_ident() != self._thread:
            raise PipelineError("two threads use one generate call's processor", hint=_ONE_CALL)
        if self._paired and not self._appended:
            raise PipelineError("the logits processor is called twice in a step", hint=_ONE_BY_ONE)
        raise PipelineError("a logits processor is used by a second generate call", hint=_ONE_CALL)

    def _extends(self, input_ids: Tensor) -> bool:
        """Without a criterion: whether the token ids are those of the last step and one more column."""
        seen = self._seen
        if input_ids.shape != (seen.shape[0], seen.shape[1] + 1):
            return False
        return torch.equal(input_ids[:, :-1], seen)

    def _append_late(self, input_ids: Tensor) -> None:
        """No criterion was there to take the tokens of the last step: take them now."""
        if self._steps == 0:
            _say_once()
        self._take(input_ids)

    def _check_turn(self, input_ids: Tensor) -> None:
        if not self._started or self._appended or self._closed:
            _refuse(surroundings(self))  # some versions show assisted candidates to criteria first
            raise PipelineError(
                "a stopping criterion is called without its logits processor",
                hint="pass both that generate_kwargs gives, to the same generate call",
            )
        rows, columns = self._seen.shape
        if input_ids.shape[0] != rows or input_ids.shape[1] != columns + 1:
            raise PipelineError(
                f"{rows} rows of {columns} tokens became {input_ids.shape[0]} of {input_ids.shape[1]}",
                hint=_ONE_BY_ONE,
            )
        if threading.get_ident() != self._thread:
            raise PipelineError("two threads use one generate call's processor", hint=_ONE_CALL)

    def _plan(self) -> None:
        """Have the masks of the next step filled, if that was not asked for yet."""
        if self._planned:
            return
        pipeline = self._loan.pipeline
        pipeline.plan(self._unguided if self._steps == 0 and self._around.forced_start else self._slots)
        pipeline.fill_mask()
        self._planned = True

    def _take(self, input_ids: Tensor) -> None:
        self._steps += 1
        if self._guided:
            pipeline = self._loan.pipeline
            pipeline.schedule_update(input_ids[:, -1])
            pipeline.finish_update()
            if pipeline.mode == "process":
                self._plan()
        self._seen, self._appended = input_ids, True
        if len(self._failed) > len(self._errors) + len(self._ended):
            self._judge()

    def _open_stops(self, scores: Tensor) -> None:
        """Rows in which the processors before this one left none of the grammar's tokens: let them stop.

        `min_new_tokens` does that to a row whose grammar has ended. A row of -inf would be sampled as
        token 0, or not at all.
        """
        dead = (scores.amax(1, keepdim=True) == -torch.inf) & self._is_guided
        self._opened |= dead
        stops = scores.gather(1, self._stop_columns)
        scores.scatter_(1, self._stop_columns, stops.masked_fill(dead, 0.0))

    # Failures

    def _judge(self) -> None:
        """Tell the failures of the grammar from tokens that only say that a row had ended."""
        for row in self._failed:
            if row in self._errors or row in self._ended:
                continue
            request_id = next(name for name, number in self._requests.items() if number == row)
            error = self._loan.pipeline.request(request_id).error
            if error is None:
                continue
            told = self._told(row, request_id, error)
            if told is None:
                self._ended.add(row)
                continue
            self._errors[row] = told
            _log.error("row %d of a generate call: %s", row, told)

    def _told(self, row: int, request_id: str, error: GuidedError) -> GuidedError | None:
        column = self._prompt_length + len(self._loan.pipeline.tokens(request_id))
        column += self._around.forced_start  # which no grammar saw
        if "breaks the grammar" not in error.what or column >= self._seen.shape[1]:
            return error
        token = int(self._seen[row, column])
        if token not in self._around.pads and token not in self._stop_ids[row]:
            return error
        if column == self._around.forced_end:
            return None
        if not self._around.first and bool(self._opened[row]):
            return RequestError(
                "other logits processors forbid every token that the grammar allows",
                where=f"row {row}, token {column - self._prompt_length}",
                hint="check bad_words_ids, suppress_tokens, no_repeat_ngram_size and processors of your own",
                request_id=request_id,
            )
        # Another criterion ended the row (a stop string, say): what follows is padding.
        return None

    def _end_requests(self) -> None:
        for loan in self._loans:
            while loan.requests:
                loan.pipeline.remove_request(loan.requests.pop())


class FailureLog:
    """Hears of failed requests and tells the calls they belong to. One for a compiler's pipelines."""

    def __init__(self) -> None:
        self.calls: weakref.WeakValueDictionary[str, GenerateCall] = weakref.WeakValueDictionary()

    @classmethod
    def of(cls, compiler: GrammarCompiler) -> FailureLog:
        """The one of a compiler, registered with its plugins."""
        with _logs_lock:
            log = _logs.get(compiler)
            if log is None:
                log = _logs[compiler] = cls()
                compiler.plugins.register(log)
            return log

    @hookimpl
    def request_failed(self, request: RequestInfo) -> None:
        """Note it; the call looks into it between two steps."""
        call = self.calls.get(request.request_id)
        if call is not None:
            call.failed(request)


_logs: weakref.WeakKeyDictionary[GrammarCompiler, FailureLog] = weakref.WeakKeyDictionary()
_logs_lock = threading.Lock()
_said = threading.Event()


def _say_once() -> None:
    if not _said.is_set():
        _said.set()
        _log.warning(
            "a guided logits processor runs without its stopping criterion, which is correct but makes each "
            "step wait for the tokens of the last; model.generate(**inputs, **guide.generate_kwargs(spec)) "
            "passes both"
        )


def _leave(pool: PipelinePool, loans: list[Loan]) -> None:
    for loan in loans:
        pool.leave(loan)


def _refuse(around: Surroundings) -> None:
    wrong = DECODERS.get(around.decoder)
    if around.beams > 1:
        wrong = "beam search"
    if around.assistant:
        wrong = "assisted generation"
    if wrong is not None:
        raise ConfigError(f"{wrong} can't be guided", where="generate", hint=_ONE_BY_ONE)
