"""One `generate` call, step by step: the five verbs, called from a logits processor and a stopping criterion.

    forward n -> processors: apply_mask(n) -> sample, append
              -> criteria:   schedule_update(n), finish_update(n), plan(n+1), fill_mask(n+1)
              -> stop check -> forward n+1

Launching a forward pass kernel by kernel takes the host as long as it takes the device, so masks that the
processor asked for would come late. So a worker gets the next plan from the criterion. In inline mode, where
filling masks blocks the host, and in the first step, the processor plans.

Correctness does not rest on what `surroundings` reads: a processor and a criterion take turns, and each sees
the very token ids that the other saw, one column later. Depends on the pipeline.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Container, Sequence

import torch
from torch import Tensor

from guided_plugin.errors import ConfigError, GuidedError, PipelineError
from guided_plugin.hosts.transformers.pool import Loan, PipelinePool
from guided_plugin.hosts.transformers.rows import GuidedRows
from guided_plugin.hosts.transformers.surroundings import ONE_BY_ONE, Surroundings, surroundings
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED, DecodeStep

_log = logging.getLogger(__name__)
_warned = threading.Event()

_ONE_CALL = "make new ones for every generate call, or say reuse=True when you make them"


class GenerateCall:
    """The state of one `generate` call; with `reuse`, of one after another."""

    def __init__(
        self,
        pool: PipelinePool,
        specs: Sequence[OutputSpec | None],
        *,
        every_row: bool,
        reuse: bool,
        device: torch.device | None,
    ) -> None:
        """`every_row`: the one spec is for all rows. `device`: where the logits will be, if that is known."""
        self._pool = pool
        self._plugins = pool.compiler.plugins
        self.vocabulary = pool.compiler.vocabulary
        self.specs = tuple(specs)
        self._every_row = every_row
        self._reuse = reuse
        self._closed = False
        self._run: _Run | None = None
        self._rows: GuidedRows | None = None
        # In a list of its own: the finalizer must not know this object.
        self._loans: list[Loan] = []
        finalizer = weakref.finalize(self, pool.leave, self._loans)
        finalizer.atexit = False
        if device is not None and any(specs):
            self._loan_for(device, len(self.specs))

    def refused(self) -> dict[int, GuidedError]:
        """Compile the specs where they will run, if that is known. The errors of bad ones, by place."""
        found: dict[int, GuidedError] = {}
        for place, spec in enumerate(self.specs):
            try:
                if spec is not None and self._loans:
                    self._loans[0].pipeline.prepare(spec).result()
                elif spec is not None:
                    self._pool.compiler.compile(spec)
            except GuidedError as error:
                found[place] = error
        return found

    def leave_out(self, places: Container[int]) -> None:
        """Drop specs, and the prompts at the same places with them."""
        self.specs = tuple(spec for place, spec in enumerate(self.specs) if place not in places)

    # A step: `process` before the tokens are sampled, `append` after

    def process(self, processor: object, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Mask the guided rows: plan and fill_mask, unless `append` did so already; apply_mask."""
        if self._closed:
            raise PipelineError("this generate call has ended", hint=_ONE_CALL)
        run = self._run
        if run is None or run.restarts(input_ids, self._reuse):
            run = self._start(surroundings(processor), input_ids, scores)
        elif not run.appended:
            _warn_once()
            self._after_sampling(run, input_ids)
        run.seen, run.appended = input_ids, False
        rows = self._rows
        if rows is None:
            return scores
        if run.around.keeps_logits:
            scores = scores.clone()
        if not run.planned:
            rows.pipeline.plan(run.slots)
            rows.pipeline.fill_mask()
        run.planned = False
        rows.pipeline.apply_mask(scores)
        if not run.around.first:
            rows.open_stops(scores)
        return scores

    def append(self, input_ids: Tensor) -> Tensor:
        """Give the sampled tokens to the grammars. Which rows a stop token of their spec ends: [rows]."""
        run = self._run
        if run is None or run.appended or self._closed:
            surroundings(self).check()  # some versions show assisted candidates to criteria first
            raise PipelineError(
                "a stopping criterion is called without its logits processor",
                hint="pass both that generate_kwargs gives, to the same generate call",
            )
        run.check_append(input_ids)
        run.paired = True
        return self._after_sampling(run, input_ids)

    def _after_sampling(self, run: _Run, input_ids: Tensor) -> Tensor:
        """schedule_update and finish_update; in process mode, plan and fill_mask of the next step too."""
        rows, tokens = self._rows, input_ids[:, -1]
        step = DecodeStep(run.index, run.slots, tokens) if self._plugins.listens_to_steps else None
        if rows is not None:
            rows.pipeline.schedule_update(tokens)
        if step is not None:
            self._plugins.post_sampling(step)
        run.seen, run.appended = input_ids, True
        run.index += 1
        ended = run.nothing if rows is None or rows.host_stops else rows.ended(tokens)
        if rows is not None:
            rows.pipeline.finish_update()
            run.slots = rows.slots
            if rows.pipeline.mode == "process":
                rows.pipeline.plan(run.slots)
                rows.pipeline.fill_mask()
                run.planned = True
            rows.log_failures(input_ids)
        if step is not None:
            self._plugins.after_stop_criteria(step)
        return ended

    # What the guide asks afterwards

    @property
    def prompt_length(self) -> int:
        """How many columns of the token ids were there before the first step."""
        return 0 if self._run is None else self._run.prompt_length

    @property
    def errors(self) -> dict[int, GuidedError]:
        """Rows that failed, as of all that was sampled, and why."""
        if self._rows is None or self._run is None:
            return {}
        return dict(self._rows.errors) if self._closed else self._rows.all_errors(self._run.seen)

    @property
    def unenforced(self) -> dict[int, tuple[str, ...]]:
        """Rows with keywords that nothing enforced, and these."""
        found = {} if self._rows is None else self._rows.unenforced
        return {row: keywords for row, keywords in found.items() if keywords}

    def complete(self) -> dict[int, bool]:
        """For each guided row, whether its output ended as its grammar allows."""
        return {} if self._rows is None or self._closed else self._rows.complete()

    def close(self) -> None:
        """Give the pipeline back. The processor and the criterion can't be used afterwards."""
        self._closed = True
        while self._loans:
            self._pool.give_back(self._loans.pop())

    # The first step

    def _start(self, around: Surroundings, input_ids: Tensor, scores: Tensor) -> _Run:
        around.check()
        specs = self._specs_of(scores.shape[0], around, input_ids)
        for loan in self._loans:
            loan.end_requests()
        self._run = self._rows = None
        slots = [UNGUIDED] * len(specs)
        guided = sum(spec is not None for spec in specs)
        if guided:
            self._rows = GuidedRows(self._loan_for(scores.device, guided), specs, around, input_ids)
            if not around.forced_start:
                slots = self._rows.slots
        self._run = _Run(around, input_ids, slots)
        return self._run

    def _specs_of(self, rows: int, around: Surroundings, input_ids: Tensor) -> list[OutputSpec | None]:
        """The spec of each row; row r belongs to prompt r // num_return_sequences."""
        if self._every_row:
            return list(self.specs) * rows
        count = len(self.specs)
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
        return [spec for spec in self.specs for _ in range(each)]

    def _loan_for(self, device: torch.device, slots: int) -> Loan:
        loan = self._loans[0] if self._loans else None
        if loan is None or loan.pipeline.device != device or loan.slots < slots:
            while self._loans:
                self._pool.give_back(self._loans.pop())
            loan = self._pool.borrow(device, slots)
            self._loans.append(loan)
        return loan


class _Run:
    """One run of `generate`, from its first step on: whose turn it is, and what was seen last."""

    def __init__(self, around: Surroundings, input_ids: Tensor, slots: list[int]) -> None:
        self.around = around
        self.prompt_length = input_ids.shape[1]
        self.seen = input_ids
        """The token ids that were shown last."""
        self.slots = slots
        """Of the rows in this step: UNGUIDED also where the first token is forced."""
        self.nothing = torch.zeros(len(slots), dtype=torch.bool, device=input_ids.device)
        self.index = 0
        """The number of the step."""
        self.planned = False
        """Whether the masks of this step have been asked for."""
        self.appended = False
        """Whether the tokens of the last masked step have been taken."""
        self.paired = False
        """Whether a criterion has been called."""
        self._thread = threading.get_ident()

    def restarts(self, input_ids: Tensor, reuse: bool) -> bool:
        """Whether another `generate` call begins; raises if the processor is called out of run."""
        if threading.get_ident() != self._thread:
            raise PipelineError("two threads use one generate call's processor", hint=_ONE_CALL)
        if input_ids is self.seen if self.appended else not self.paired and self._extends(input_ids):
            return False
        if reuse:
            return True
        if self.paired and not self.appended:
            raise PipelineError("the logits processor is called twice in a step", hint=ONE_BY_ONE)
        raise PipelineError("a logits processor is used by a second generate call", hint=_ONE_CALL)

    def check_append(self, input_ids: Tensor) -> None:
        """Raise unless the token ids have the rows that the processor saw, and one more column."""
        rows, columns = self.seen.shape
        if input_ids.shape[0] != rows or input_ids.shape[1] != columns + 1:
            raise PipelineError(
                f"{rows} rows of {columns} tokens became {input_ids.shape[0]} of {input_ids.shape[1]}",
                hint=ONE_BY_ONE,
            )
        if threading.get_ident() != self._thread:
            raise PipelineError("two threads use one generate call's processor", hint=_ONE_CALL)

    def _extends(self, input_ids: Tensor) -> bool:
        """Without a criterion: whether the token ids are those of the last step and one more column."""
        if input_ids.shape != (self.seen.shape[0], self.seen.shape[1] + 1):
            return False
        return torch.equal(input_ids[:, :-1], self.seen)


def _warn_once() -> None:
    if not _warned.is_set():
        _warned.set()
        _log.warning(
            "a guided logits processor runs without its stopping criterion, which is correct but makes each "
            "step wait for the tokens of the last; model.generate(**inputs, **guide.generate_kwargs(spec)) "
            "passes both"
        )
