"""How long steps wait when grammar workers are killed, with a vocabulary of your choice.

    python benchmarks/recovery.py [--tokenizer FOLDER] [--kills 30] [--pause 8] [--rows 12] [--what worker]
        [--out FILE]

Decodes rows of a JSON schema from random logits on the CPU, a step every 10 ms, and sends SIGKILL every
`pause` seconds: to the grammar worker, or to its template, which ends the worker too, and the rows that run.
Afterwards a fresh matcher accepts the tokens of each row. Prints JSON; exit code 1 if a row failed or a token
was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from guided_plugin.bench import environment
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.demo import MODEL_DIR
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.spec import OutputSpec
from guided_plugin.worker.engine import supervisor
from guided_plugin.worker.engine.runtime import WorkerRuntime

_STEP_SECONDS = 0.01
_OUTPUT_TOKENS = 400
"""After so many steps all rows begin again: journals stay as long as those of real outputs."""

SPEC = OutputSpec.json_schema(
    {
        "type": "array",
        "minItems": 500,
        "items": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", default=str(MODEL_DIR), help="folder of a transformers tokenizer")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--pause", type=float, default=8.0, help="seconds between two kills")
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--what", choices=["worker", "template"], default="worker")
    parser.add_argument("--out", help="also write the JSON here")
    options = parser.parse_args(arguments)
    # So many deaths in a minute would have requests refused, which is not what is measured.
    supervisor.DEATHS = options.kills + 1
    result = {
        "command": f"python benchmarks/recovery.py {' '.join(arguments)}".strip(),
        **environment("cpu"),
        **_Run(options).measure(),
    }
    print(json.dumps(result))
    if options.out:
        Path(options.out).write_text(json.dumps(result))
    return int(bool(result["failed_rows"] or result["wrong_tokens"]))


class _Run:
    def __init__(self, options: argparse.Namespace) -> None:
        from transformers import AutoTokenizer

        self._options = options
        self._vocabulary = Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(options.tokenizer))
        self._compiler = self._make_compiler()
        self._checker = self._make_compiler()
        self._random = torch.Generator().manual_seed(0)
        self._slots: dict[str, int] = {}
        self._steps = self._made = self._failed = self._wrong = self._checked = 0

    def _make_compiler(self, **config: Any) -> GrammarCompiler:
        return GrammarCompiler(self._vocabulary, config=GuidedConfig(threads=2, **config))

    def measure(self) -> dict[str, Any]:
        """Decode until the last kill is over."""
        options = self._options
        gaps, quiet = [], []
        with StepPipeline(self._compiler, max_slots=options.rows, mode="process") as pipe:
            for number in range(options.kills):
                quiet.append(self._decode(pipe, options.pause))
                print(f"kill {number + 1} of {options.kills}", file=sys.stderr, flush=True)
                self._kill(pipe)
                gaps.append(self._decode(pipe, 1.0))
            self._check_all(pipe)
        return {
            "vocabulary": self._vocabulary.size,
            "rows": options.rows,
            "kills": options.kills,
            "gap_ms": {
                "p50": round(statistics.median(gaps) * 1e3, 1),
                "max": round(max(gaps) * 1e3, 1),
                "all": [round(gap * 1e3, 1) for gap in gaps],
            },
            "slowest_step_without_kill_ms": round(max(quiet) * 1e3, 1),
            "failed_rows": self._failed,
            "tokens_checked": self._checked,
            "wrong_tokens": self._wrong,
        }

    def _kill(self, pipe: StepPipeline) -> None:
        runtime = pipe.runtime
        if not isinstance(runtime, WorkerRuntime) or (pid := runtime.supervisor.worker_pid) is None:
            raise SystemExit("there is no grammar worker to kill")
        os.kill(pid if self._options.what == "worker" else _parent(pid), signal.SIGKILL)

    def _decode(self, pipe: StepPipeline, seconds: float) -> float:
        """Steps for so long, and one at least; the longest that one took."""
        end = time.monotonic() + seconds
        slowest = 0.0
        while time.monotonic() < end or not slowest:
            began = time.monotonic()
            if self._steps % _OUTPUT_TOKENS == 0:
                self._begin_all(pipe)
            self._steps += 1
            slots = list(self._slots.values())
            logits = torch.rand(len(slots), self._vocabulary.size, generator=self._random)
            made = time.monotonic()
            pipe.plan(slots)
            pipe.fill_mask()
            pipe.apply_mask(logits)
            slowest = max(slowest, time.monotonic() - made)
            pipe.schedule_update(logits.argmax(-1))
            pipe.finish_update()
            time.sleep(max(0.0, began + _STEP_SECONDS - time.monotonic()))
        return slowest

    def _begin_all(self, pipe: StepPipeline) -> None:
        self._check_all(pipe)
        for _ in range(self._options.rows):
            name = f"request {self._made}"
            self._made += 1
            self._slots[name] = pipe.add_request(name, SPEC)

    def _check_all(self, pipe: StepPipeline) -> None:
        """Take all requests away, and judge them."""
        for name in self._slots:
            self._failed += pipe.request(name).error is not None
            tokens = pipe.tokens(name)
            pipe.remove_request(name)
            grammar = self._checker.compile(SPEC)
            matcher = self._checker.backend(grammar.backend).start(grammar, self._vocabulary.stop_token_ids)
            self._checked += len(tokens)
            self._wrong += sum(not matcher.accept(token) for token in tokens)
        self._slots.clear()


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return int(stat.rpartition(") ")[2].split()[1])


if __name__ == "__main__":
    sys.exit(main())
