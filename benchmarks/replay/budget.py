"""How many drafts a step verifies, chosen before they are known: `DraftBudget` next to
vLLM's own choice.

    python -m benchmarks.replay.budget --tokenizer DIR --sample SAMPLE --out FILE.json.gz

No engine: documents wait behind the rows as in `benchmarks.replay`, the drafts of a row
are what must follow, and a step takes what the device needs for its tokens (8B on one
H100, measured without drafts). `longer`: the time of a token, in percent more than
where the drafts are known when a step is scheduled; `places`: verified for each draft.
"""

from __future__ import annotations

import argparse
import random
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.replay.__main__ import write
from benchmarks.replay.documents import Documents
from guided_plugin.bench import environment
from guided_plugin.cli.loading import load_vocabulary
from guided_plugin.cli.results import progress, show_table
from guided_plugin.grammar.forced import DRAFTS
from guided_plugin.hosts.vllm.jump import DraftBudget

ROWS = (1, 8, 32, 64, 128, 256)
_PROMPT = 8
_TOKENS = np.arange(4096)
_PADDED = np.where(_TOKENS <= 256, -(-_TOKENS // 8) * 8, -(-_TOKENS // 16) * 16)
"""CUDA graphs are captured for these sizes."""
COSTS = 6.6 + 0.0107 * np.minimum(_PADDED, 136) + 0.019 * np.maximum(_PADDED - 136, 0)
"""Milliseconds of a step. In `2026-11-28-replay-matrix-h100` (`plain_step_ms`) 6.56,
6.93, 7.82 and 10.55 at 1, 32, 128 and 256 rows."""
_COLUMNS = (
    ("kind", "{kind}"),
    ("form", "{form}"),
    ("rows", "{rows}"),
    ("passes", "{passes:.3f}"),
)
_COLUMNS += (("longer, %", "{longer:.1f}"), ("places", "{places:.2f}"))
_COLUMNS += (
    ("vLLM's: longer, %", "{vllm_longer:.1f}"),
    ("places", "{vllm_places:.2f}"),
)


class Batch:
    """Rows that answer with documents; `flags`: of each document, which of its tokens
    must follow."""

    def __init__(self, flags: Sequence[Sequence[bool]], rows: int) -> None:
        order = list(flags)
        random.Random(1).shuffle(order)
        self._waiting: Iterator[Sequence[bool]] = cycle(order)
        self._documents = [next(self._waiting) for _ in range(rows)]
        self._at = [
            random.Random(row).randrange(len(one))
            for row, one in enumerate(self._documents)
        ]

    def drafts(self) -> NDArray[np.int64]:
        """How many each row has now."""
        runs = [
            one[at : at + DRAFTS] if at else []
            for one, at in zip(self._documents, self._at, strict=True)
        ]
        return np.array([[*run, False].index(False) for run in runs])

    def begin(self) -> NDArray[np.bool_]:
        """Which rows begin a document."""
        return np.array([at == 0 for at in self._at])

    def go_on(self, accepted: NDArray[np.int64]) -> None:
        """Each row takes its accepted drafts and the token behind them."""
        for row, more in enumerate(accepted.tolist()):
            self._at[row] += more + 1
            if self._at[row] >= len(self._documents[row]):
                self._documents[row], self._at[row] = next(self._waiting), 0


def simulate(
    flags: Sequence[Sequence[bool]], rows: int, way: str, steps: int
) -> tuple[float, float, float]:
    """Passes and milliseconds a token, and places for each draft. `way`: known, own or
    vllm."""
    batch = Batch(flags, rows)
    budget = None
    manager = _manager(rows)
    if way == "own":
        budget = DraftBudget(manager)
    names = list(manager.req_states.req_id_to_index)
    sure = np.zeros((rows, DRAFTS), np.float32)
    spent = tokens = places = drafted = 0.0
    for _ in range(steps):
        begin = batch.begin()
        drafts = batch.drafts()
        offered = np.arange(DRAFTS) < drafts[:, np.newaxis]
        others = np.where(begin, _PROMPT, 1)
        least = int(others.sum())
        asked = np.where(begin, 0, DRAFTS)
        if way == "known" or not asked.any():
            most = _best(np.ones(int(drafts.sum())), rows, least)
        elif budget is not None:
            given = {
                name: ["?"] * DRAFTS
                for name, new in zip(names, begin, strict=True)
                if not new
            }
            counts = dict(zip(names, (others + asked).tolist(), strict=True))
            most = budget.get_num_tokens(counts, given) - least
        else:  # of the step before, and all of a new request
            most = _best(np.sort(sure[~begin].ravel())[::-1], rows, least)
        order = np.argsort(
            np.where(offered, np.arange(DRAFTS), DRAFTS), axis=None, kind="stable"
        )[:most]
        chosen = np.zeros(offered.size, np.bool_)
        chosen[order] = True
        accepted = (chosen.reshape(offered.shape) & offered).sum(1)
        spent = spent + COSTS[least + most]
        tokens = tokens + rows + accepted.sum()
        places = places + most
        drafted = drafted + drafts.sum()
        sure = np.where(begin[:, np.newaxis], 1.0, offered).astype(np.float32)
        if budget is not None:
            budget.record_confidences(
                torch.from_numpy(offered.astype(np.float32)), None
            )
            manager._stale_idx = 1 - manager._stale_idx  # a copy takes no time here
        batch.go_on(accepted)
    return rows * steps / tokens, spent / tokens * rows, places / drafted


def _best(chances: NDArray[Any], rows: int, least: int) -> int:
    """How many drafts pay, with these chances."""
    taken = rows + np.concatenate(([0.0], chances.cumsum()))
    return int((taken / COSTS[least : least + len(taken)]).argmax())


def _manager(rows: int) -> Any:
    """As much of vLLM's as `DraftBudget` looks at."""
    stale = [torch.zeros(rows, DRAFTS) for _ in range(2)]
    states = SimpleNamespace(max_num_reqs=rows, device=torch.device("cpu"))
    states.req_id_to_index = {str(row): row for row in range(rows)}
    states.num_computed_tokens_np = np.full(rows, _PROMPT)
    states.prefill_len = SimpleNamespace(np=np.full(rows, _PROMPT))
    done = SimpleNamespace(synchronize=lambda: None, record=lambda: None)
    return SimpleNamespace(
        req_states=states,
        num_bonus_tokens=1,
        query_start_loc=torch.zeros(rows + 1, dtype=torch.int32),
        cost_tables=(np.zeros(rows + 1), COSTS),
        _confidence_probs=stale[0],
        _copy_events=[done, done],
        _cu_num_logits=torch.zeros(rows + 1, dtype=torch.int32),
        _max_total_logits=len(COSTS),
        _stale_confidences=[SimpleNamespace(cpu=one, np=one.numpy()) for one in stale],
        _stale_idx=0,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="tokenizer folder"
    )
    parser.add_argument(
        "--sample",
        type=Path,
        required=True,
        help="MaskBench files: a folder or an archive",
    )
    parser.add_argument(
        "--documents", type=int, default=96, help="different documents of a kind"
    )
    parser.add_argument(
        "--tokens", type=int, default=100_000, help="of a figure, about"
    )
    parser.add_argument(
        "--out", type=Path, help="also write the JSON here, compressed: FILE.json.gz"
    )
    options = parser.parse_args(given)
    known = Documents(
        options.sample, load_vocabulary(options.tokenizer), 512, 1, DRAFTS, strict=True
    )
    figures: list[dict[str, Any]] = []
    pairs = [
        (kind, form) for kind in ("tools", "real") for form in ("compact", "spaced")
    ]
    with progress("budgets", len(pairs) * len(ROWS)) as advance:
        for kind, form in pairs:
            flags = [
                document.forced
                for document in known.choose(kind, form, options.documents)
            ]
            for rows in ROWS:
                steps = max(options.tokens // (2 * rows), 4)
                best, own, theirs = (
                    simulate(flags, rows, way, steps)
                    for way in ("known", "own", "vllm")
                )
                figure = {
                    "kind": kind,
                    "form": form,
                    "rows": rows,
                    "passes": own[0],
                    "places": own[2],
                }
                figure |= {
                    "longer": (own[1] / best[1] - 1) * 100,
                    "vllm_places": theirs[2],
                }
                figures.append(
                    figure | {"vllm_longer": (theirs[1] / best[1] - 1) * 100}
                )
                advance()
    here = environment("cpu")
    command = "python -m benchmarks.replay.budget " + shlex.join(given)
    write(
        {
            "command": command,
            "date": here["date"],
            "environment": here,
            "figures": figures,
        },
        options.out,
    )
    show_table(figures, _COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
