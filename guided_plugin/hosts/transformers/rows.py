"""The guided rows of one `generate` call: requests, stop tokens, failures. Depends on the pipeline."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from guided_plugin.errors import GuidedError, RequestError
from guided_plugin.grammar.request_state import Phase
from guided_plugin.hosts.transformers.pool import Loan
from guided_plugin.hosts.transformers.surroundings import Surroundings
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED

_log = logging.getLogger(__name__)

_call_numbers = itertools.count()


class GuidedRows:
    """Adds one request for each guided row to a lent pipeline, and follows them to the end of the call."""

    def __init__(
        self, loan: Loan, specs: Sequence[OutputSpec | None], around: Surroundings, prompt: Tensor
    ) -> None:
        """`specs`: one for each row. `prompt`: [rows, columns], on the device of the logits."""
        self.pipeline = loan.pipeline
        self._around = around
        self._prompt_length = prompt.shape[1]
        self._requests: dict[str, int] = {}
        self.slots = [UNGUIDED] * len(specs)
        self.errors: dict[int, GuidedError] = {}
        self.unenforced: dict[int, tuple[str, ...]] = {}
        """Of guided rows, the keywords that nothing enforces."""
        self._judged: set[int] = set()
        call = next(_call_numbers)
        for row, spec in enumerate(specs):
            if spec is not None:
                request_id = f"generate-{call}-row-{row}"
                self.slots[row] = self.pipeline.add_request(request_id, spec)
                loan.requests.append(request_id)
                self._requests[request_id] = row
                self.unenforced[row] = self.pipeline.unenforced(request_id)
        default = self.pipeline.compiler.vocabulary.stop_token_ids
        self._stop_ids = [() if spec is None else spec.stop_token_ids or default for spec in specs]
        self.host_stops = around.stops.issuperset(itertools.chain.from_iterable(self._stop_ids))
        """Whether `generate` itself stops at all of them."""
        most = max(map(len, self._stop_ids))
        stops = [[*ids, *[-1] * (most - len(ids))] for ids in self._stop_ids]
        # [rows, most], on the device: filled up with -1, which no token is
        self._stops = torch.tensor(stops, device=prompt.device)
        # The same, filled up with the row's first stop token: columns of the logits
        self._stop_columns = self._stops.where(self._stops >= 0, self._stops[:, :1].clamp(min=0))
        # [rows, 1], on the device
        self._is_guided = self._stops[:, :1] >= 0
        # [rows, 1], on the device: rows that `open_stops` had to let stop
        self._opened = torch.zeros_like(self._is_guided)

    def ended(self, tokens: Tensor) -> Tensor:
        """Which rows a stop token of their spec ends: [rows] booleans."""
        return (tokens[:, None] == self._stops).any(1)

    def open_stops(self, scores: Tensor) -> None:
        """Let rows stop in which the processors before this one left none of the grammar's tokens.

        `min_new_tokens` does that to a row whose grammar has ended. A row of -inf would be sampled as
        token 0, or not at all.
        """
        dead = (scores.amax(1, keepdim=True) == -torch.inf) & self._is_guided
        self._opened |= dead
        stops = scores.gather(1, self._stop_columns)
        scores.scatter_(1, self._stop_columns, stops.masked_fill(dead, 0.0))

    def complete(self) -> dict[int, bool]:
        """For each guided row, whether its output ended as its grammar allows."""
        return {row: self.pipeline.phase(name) is Phase.DONE for name, row in self._requests.items()}

    def log_failures(self, input_ids: Tensor) -> None:
        """Log requests that failed since the last call and put them into `errors`."""
        for closure in self.pipeline.runtime.take_closed():
            if closure.request_id in self._requests:
                self._judge(closure.request_id, input_ids)

    def all_errors(self, input_ids: Tensor) -> dict[int, GuidedError]:
        """The rows that failed, as of all that was sampled, and why. Waits for the grammars."""
        for request_id in self._requests:
            self._judge(request_id, input_ids)
        return dict(self.errors)

    def _judge(self, request_id: str, input_ids: Tensor) -> None:
        row = self._requests[request_id]
        if row in self._judged:
            return
        error = self.pipeline.request(request_id).error
        if error is None:
            return
        self._judged.add(row)
        failure = self._failure(row, request_id, error, input_ids)
        if failure is not None:
            self.errors[row] = failure
            _log.error("row %d of a generate call: %s", row, failure)

    def _failure(
        self, row: int, request_id: str, error: GuidedError, input_ids: Tensor
    ) -> GuidedError | None:
        """What to report; None where the token only says that the row had ended."""
        place = len(self.pipeline.tokens(request_id))
        column = self._prompt_length + place + self._around.forced_start  # no grammar saw a forced token
        if "breaks the grammar" not in error.what or column >= input_ids.shape[1]:
            return error
        token = int(input_ids[row, column])
        if token not in self._around.pads and token not in self._stop_ids[row]:
            return error
        if column != self._around.forced_end and bool(self._opened[row]):
            return RequestError(
                "other logits processors forbid every token that the grammar allows",
                where=f"row {row}, token {column - self._prompt_length}",
                hint="check bad_words_ids, suppress_tokens, no_repeat_ngram_size and processors of your own",
                request_id=request_id,
            )
        # Another criterion ended the row (a stop string, say): what follows is padding.
        return None
