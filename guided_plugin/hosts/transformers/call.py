"""One `generate` call, step by step: the five verbs, called from a logits processor and
a stopping criterion.

    forward n -> processors: apply_mask(n) -> sample, append
              -> criteria:   schedule_update(n), finish_update(n), plan(n+1), fill_mask(n+1)
              -> stop check -> forward n+1

Launching a forward pass kernel by kernel takes the host as long as it takes the device,
so masks that the processor asked for would come late. So a worker gets the next plan
from the criterion. In inline mode, where filling masks blocks the host, and in the
first step, the processor plans.

`GenerateCall` is the processor, and what criterion and guide share with it; a `Run` is
one pass of `generate` through it. A processor and a criterion take turns, and each sees the very
token ids that the other saw, one column later. Depends on the pipeline.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from guided_plugin.errors import ConfigError, GuidedError, PipelineError, RequestError
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.hosts.transformers.pool import Loan, PipelinePool
from guided_plugin.hosts.transformers.surroundings import (
    ONE_BY_ONE,
    Surroundings,
    surroundings,
)
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, DecodeStep, RequestInfo

_log = logging.getLogger(__name__)
_run_numbers = itertools.count()

_ONE_CALL = (
    "make new ones for every generate call, or say reuse=True when you make them"
)


class GenerateCall(LogitsProcessor):
    """The state of one `generate` call; with `reuse`, of one after another. As a logits
    processor it masks what their specs don't allow."""

    supports_continuous_batching = False

    def __init__(
        self,
        pool: PipelinePool,
        wanted: Sequence[Any],
        *,
        every_row: bool,
        reuse: bool,
        device: torch.device | None,
        keeps_rows: bool = False,
    ) -> None:
        """`wanted`: specs as users give them; they are compiled where they will run.
        `every_row`: the one spec is for all rows. `device`: of the logits, if it is
        known. `keeps_rows`: a row that can't begin has an error and ends, not the whole
        call."""
        self._pool = pool
        self.vocabulary = pool.compiler.vocabulary
        self._every_row = every_row
        self._reuse = reuse
        self._keeps_rows = keeps_rows
        self._run: Run | None = None
        # In a list of its own: the finalizer must not know this object.
        self._loans: list[Loan] = []
        finalizer = weakref.finalize(self, pool.leave, self._loans)
        finalizer.atexit = False
        self.refused: dict[int, GuidedError] = {}
        """The errors of specs that can't be used, by their place in the list. They have
        no rows."""
        specs = []
        if device is not None and any(one is not None for one in wanted):
            self._loan_for(device, len(wanted))
        for place, one in enumerate(wanted):
            try:
                spec = OutputSpec.parse(one)
                if spec is not None and self._loans:
                    self._loans[0].pipeline.prepare(spec).result()
                elif spec is not None:
                    pool.compiler.compile(spec)
                specs.append(spec)
            except GuidedError as error:
                self.refused[place] = error
        self.specs = tuple(specs)

    def __del__(self) -> None:
        if self._run is None and any(getattr(self, "specs", ())):
            _log.warning("%s", _unused())

    # A step: the call itself before the tokens are sampled, `append` after

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask the guided rows of [rows, width] scores."""
        run = self._run
        if run is None or run.restarts(input_ids, self._reuse):
            run = self._start(surroundings(self), input_ids, scores)
        return run.mask(input_ids, scores)

    def append(self, input_ids: Tensor) -> Tensor:
        """Give the sampled tokens to the grammars. Which rows a stop token of their
        spec ends: [rows]."""
        run = self._run
        if run is None or run.appended:
            # some versions show assisted candidates to criteria first
            surroundings(self)
            raise PipelineError(
                "a stopping criterion is called without its logits processor",
                hint="pass both that generate_kwargs gives, to the same generate call",
            )
        run.check_append(input_ids)
        return run.after_sampling(input_ids)

    # What the guide asks afterwards

    @property
    def run(self) -> Run:
        """The newest one. Raises PipelineError where no `generate` call made one."""
        if self._run is None:
            raise _unused()
        return self._run

    def close(self) -> None:
        """Give the pipeline back: no processor and no criterion is called any more."""
        self.specs = ()
        self._pool.give_back(self._loans)

    # The first step

    def _start(self, around: Surroundings, input_ids: Tensor, scores: Tensor) -> Run:
        specs = self._specs_of(scores.shape[0], around.sequences)
        for old in self._loans:
            old.end_requests()
        self._run = None
        guided = sum(spec is not None for spec in specs)
        loan = self._loan_for(scores.device, guided)
        run = Run(around, input_ids, specs, loan)
        if run.errors and not self._keeps_rows:
            row, error = min(run.errors.items())
            raise (
                error
                if self._every_row
                else error.under(f"spec {row * len(self.specs) // len(specs)}")
            )
        self._run = run
        return run

    def _specs_of(self, rows: int, each: int) -> list[OutputSpec | None]:
        """The spec of each row; row r belongs to prompt r // `each`, which is
        `num_return_sequences`."""
        if self._every_row:
            return list(self.specs) * rows
        count = len(self.specs)
        if rows != count * each:
            hint = "one for each prompt, or one for all"
            raise ConfigError(
                f"{count} specs for {rows // each} prompts", where="specs", hint=hint
            )
        return [spec for spec in self.specs for _ in range(each)]

    def _loan_for(self, device: torch.device, slots: int) -> Loan:
        loan = self._loans[0] if self._loans else None
        if loan is None or loan.pipeline.device != device or loan.slots < slots:
            self._pool.give_back(self._loans)
            loan = self._pool.borrow(device, slots)
            self._loans.append(loan)
        return loan


class Run:
    """One run of `generate`, from its first step on: whose turn it is, and the requests
    of its rows."""

    def __init__(
        self,
        around: Surroundings,
        prompt: Tensor,
        specs: Sequence[OutputSpec | None],
        loan: Loan,
    ) -> None:
        """`prompt`: [rows, columns], on the device of the logits. `specs`: one for each
        row."""
        self._plugins = loan.pipeline.compiler.plugins
        self._around = around
        self._pipeline = loan.pipeline
        self.prompt_length = prompt.shape[1]
        self.seen = prompt
        """The token ids that were shown last."""
        self._index = 0
        """The number of the step."""
        self.appended = False
        """True if the tokens of the last masked step have been taken."""
        self.requests: dict[str, int] = {}
        """The row of each request in the pipeline."""
        self.errors: dict[int, GuidedError] = {}
        self._judged: set[str] = set()
        self._slots = [UNGUIDED] * len(specs)
        number = next(_run_numbers)
        for row, spec in enumerate(specs):
            if spec is not None:
                request_id = f"generate-{number}-row-{row}"
                self._slots[row] = self._add(request_id, row, spec)
                loan.requests.append(request_id)
                self.requests[request_id] = row
        default = loan.pipeline.compiler.vocabulary.stop_token_ids
        self._stop_ids = [
            (-1,) if spec is None else spec.stop_token_ids or default for spec in specs
        ]
        """The stop tokens of each row; -1, which no token is, where nothing guides."""
        most = max(map(len, self._stop_ids))
        stops = [[*ids, *ids[:1] * (most - len(ids))] for ids in self._stop_ids]
        # [rows, most], on the device
        self._stops = torch.tensor(stops, device=prompt.device)
        # [rows, 1], on the device: rows that `_open_stops` had to let stop
        self._opened = torch.zeros_like(self._stops[:, :1], dtype=torch.bool)

    def _add(self, request_id: str, row: int, spec: OutputSpec) -> int:
        """The slot of a row's request. One that can't begin has an error, and its row
        only stops."""
        spec = spec.within(self._around.max_length - self.prompt_length)
        try:
            return self._pipeline.add_request(request_id, spec)
        except RequestError as error:
            self.errors[row] = error
            self._judged.add(request_id)
            return self._pipeline.add_failed(request_id, spec, error)

    def mask(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask the guided rows: plan and fill_mask, unless `after_sampling` did so
        already; apply_mask."""
        self.seen = input_ids
        self.appended = False
        pipeline = self._pipeline
        if self._around.keeps_logits:
            scores = scores.clone()
        if not pipeline.filled:
            pipeline.plan(self._slots)
            pipeline.fill_mask()
        pipeline.apply_mask(scores)
        if not self._around.first:
            self._open_stops(scores)
        return scores

    def after_sampling(self, input_ids: Tensor) -> Tensor:
        """schedule_update and finish_update; in process mode, plan and fill_mask of the
        next step too."""
        pipeline = self._pipeline
        tokens = input_ids[:, -1]
        listens = self._plugins.listens_to_steps
        step = DecodeStep(self._index, self._slots, tokens) if listens else None
        pipeline.schedule_update(tokens)
        if step is not None:
            self._plugins.post_sampling(step)
        self.seen = input_ids
        self.appended = True
        self._index += 1
        ended = (tokens[:, None] == self._stops).any(1)
        pipeline.finish_update()
        if pipeline.mode == "process":
            pipeline.plan(self._slots)
            pipeline.fill_mask()
        closed = (closure.request_id for closure in pipeline.runtime.take_closed())
        self._judge(name for name in closed if name in self.requests)
        if step is not None:
            self._plugins.after_stop_criteria(step)
        return ended

    def restarts(self, input_ids: Tensor, reuse: bool) -> bool:
        """True if another `generate` call begins; raises if the processor is called out
        of run."""
        if self.appended and input_ids is self.seen:
            return False
        alone = not self.appended and self._extends(input_ids)
        if reuse and not alone:
            return True
        if self.appended:
            what = "a logits processor is used by a second generate call"
            raise PipelineError(what, hint=_ONE_CALL)
        what = "a logits processor is called twice, and its stopping criterion not once"
        hint = f"pass both that generate_kwargs gives; {ONE_BY_ONE}"
        raise PipelineError(what, hint=hint)

    def _extends(self, input_ids: Tensor) -> bool:
        """True if the token ids are those of the last step and one more column."""
        if input_ids.shape != (self.seen.shape[0], self.seen.shape[1] + 1):
            return False
        return torch.equal(input_ids[:, :-1], self.seen)

    def check_append(self, input_ids: Tensor) -> None:
        """Raise unless the token ids have the rows that the processor saw, and one more
        column."""
        rows, columns = self.seen.shape
        if input_ids.shape != (rows, columns + 1):
            raise PipelineError(
                f"{rows} rows of {columns} tokens became {input_ids.shape[0]} of {input_ids.shape[1]}",
                hint=ONE_BY_ONE,
            )

    def _open_stops(self, scores: Tensor) -> None:
        """Let rows stop in which the processors before this one left none of the
        grammar's tokens.

        `min_new_tokens` does that to a row whose grammar has ended. A row of -inf would
        be sampled as token 0, or not at all.
        """
        guided = self._stops[:, :1] >= 0
        dead = (scores.amax(1, keepdim=True) == -torch.inf) & guided
        self._opened |= dead
        columns = self._stops.clamp(min=0)
        scores.scatter_(1, columns, scores.gather(1, columns).masked_fill(dead, 0.0))

    # What became of the rows

    def states(self) -> dict[int, RequestState]:
        """For each guided row, its phase and its tokens. Waits for the grammars."""
        return {row: self._pipeline.state(name) for name, row in self.requests.items()}

    def told(self) -> dict[int, RequestInfo]:
        """For each guided row, what became of its request. Waits for the grammars."""
        return {
            row: self._pipeline.request(name) for name, row in self.requests.items()
        }

    def failures(self) -> dict[int, GuidedError]:
        """Rows that failed, as of all that was sampled, and why. Waits for the
        grammars."""
        self._judge(self.requests)
        return dict(self.errors)

    def _judge(self, names: Iterable[str]) -> None:
        """Log those of these requests that failed, once each, and put them into
        `errors`."""
        for name in names:
            error = self._pipeline.request(name).error
            if error is None or name in self._judged:
                continue
            self._judged.add(name)
            row = self.requests[name]
            place = len(self._pipeline.tokens(name))
            failure = self._failure(row, place, error)
            if failure is not None:
                self.errors[row] = failure
                _log.error(
                    "request %s: row %d of a generate call: %s",
                    name,
                    row,
                    failure.reason,
                )

    def _failure(self, row: int, place: int, error: GuidedError) -> GuidedError | None:
        """Return what to report of a row that failed after so many tokens; None where
        the token only says that the row had ended."""
        column = self.prompt_length + place
        if "breaks the grammar" not in error.what or column >= self.seen.shape[1]:
            return error
        token = int(self.seen[row, column])
        if token not in self._around.pads and token not in self._stop_ids[row]:
            return error
        if bool(self._opened[row]):
            return RequestError(
                "other logits processors forbid every token that the grammar allows",
                where=f"row {row}, token {place}",
                hint="check bad_words_ids, suppress_tokens, no_repeat_ngram_size and processors of your own",
                request_id=error.request_id,
            )
        # Another criterion ended the row (a stop string, say): what follows is padding.
        return None


def _unused() -> PipelineError:
    return PipelineError(
        "no generate call ran with these arguments: what was generated without them is unguided",
        hint="pass them to model.generate; continuous batching ignores them",
    )
