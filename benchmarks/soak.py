"""Random adds, aborts, slot reuse and mixed specs, for as long as asked; every output is checked again.

    python benchmarks/soak.py [--seconds 60] [--slots 256] [--tokenizer DIR] [--mode process] [--out FILE]

What a request produced must be accepted, token by token, by a fresh matcher of its spec, and nothing may
grow: the memory of this process and of the worker is sampled. Prints JSON; exit code 1 if a matcher refuses
an output.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from guided_plugin.bench import SCHEMAS, environment, refused_at
from guided_plugin.cli.loading import load_tokenizer
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import MODES, Mode
from guided_plugin.demo import MODEL_DIR
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.pipeline.pipeline import StepPipeline
from guided_plugin.spec import OutputSpec
from guided_plugin.step import UNGUIDED

_LONGEST = 96
"""Tokens after which a request is ended."""
_BUFFERS = 5
"""Logits are drawn once, and shifted at random."""
_SAMPLE_SECONDS = 5.0


@dataclass(slots=True)
class SoakResult:
    """What happened. `mismatches` is empty, or something is badly wrong."""

    seconds: float = 0.0
    steps: int = 0
    added: int = 0
    stopped: int = 0
    """Requests that ended with a stop token."""
    ended: int = 0
    """Requests that were ended because they got long."""
    aborted: int = 0
    failed: int = 0
    """Requests whose grammar failed; none should."""
    tokens: int = 0
    mismatches: list[str] = field(default_factory=list)
    memory_mb: dict[str, list[float]] = field(default_factory=dict)
    """Of the engine and the worker: after a quarter, at half, at three quarters, at the end."""


def specs() -> list[OutputSpec]:
    """Of every kind, for both backends; some end soon, some never."""
    person = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
    }
    return [
        OutputSpec.json_schema(SCHEMAS["plain"]),
        OutputSpec.json_schema(SCHEMAS["maxlength"]),
        OutputSpec.json_schema(person, backend="llguidance"),
        OutputSpec.json_schema({"type": "array", "items": {"type": "boolean"}}, backend="xgrammar"),
        OutputSpec.json_schema({"enum": ["a", 1, None, {"b": [True]}]}),
        OutputSpec.regex("[a-z]{3,12}"),
        OutputSpec.regex("(ab|cd)+", backend="llguidance"),
        OutputSpec.choice(["yes", "no", "maybe so"]),
        OutputSpec.grammar('root ::= "(" root ")" | "x"'),
        OutputSpec.json_object(),
    ]


def soak(
    vocabulary: Vocabulary,
    *,
    seconds: float,
    slots: int = 256,
    device: str = "cpu",
    width: int = 0,
    mode: Mode = "auto",
    seed: int = 0,
) -> dict[str, Any]:
    """Run for some seconds."""
    compiler = GrammarCompiler(vocabulary)
    with StepPipeline(compiler, max_slots=slots, device=device, mode=mode) as pipe:
        result = _Soak(pipe, compiler, slots, width or vocabulary.size, seed).run(seconds)
        mode_used = pipe.mode
        restarts = pipe.metrics().worker.restarts
    compiler.close()
    return {
        "benchmark": "soak",
        "environment": environment(device),
        "slots": slots,
        "seed": seed,
        "mode": mode_used,
        "restarts": restarts,
        **asdict(result),
    }


@dataclass(slots=True, eq=False)
class _Request:
    name: str
    slot: int
    spec: OutputSpec
    tokens: list[int] = field(default_factory=list)
    over: bool = False


class _Soak:
    def __init__(
        self, pipe: StepPipeline, compiler: GrammarCompiler, slots: int, width: int, seed: int
    ) -> None:
        self.pipe, self.compiler, self.slots = pipe, compiler, slots
        self.random = random.Random(seed)
        self.specs = specs()
        self.running: list[_Request] = []
        self.result = SoakResult()
        self._late: tuple[Tensor, Any, list[_Request | None]] | None = None
        torch.manual_seed(seed)
        self._logits = torch.randn(_BUFFERS, slots + 8, width, device=pipe.device)

    def run(self, seconds: float) -> SoakResult:
        for verdict in [self.pipe.prepare(spec) for spec in self.specs]:
            verdict.result()
        start = time.monotonic()
        next_sample = 0.0
        samples: list[dict[str, float]] = []
        while (passed := time.monotonic() - start) < seconds:
            if passed >= next_sample:
                samples.append(self._memory())
                next_sample += _SAMPLE_SECONDS
            self._come_and_go()
            self._step()
        self._read()
        samples.append(self._memory())
        self.result.seconds = round(time.monotonic() - start, 1)
        marks = [max(0, len(samples) * quarter // 4 - 1) for quarter in (1, 2, 3, 4)]
        for who in samples[0]:
            self.result.memory_mb[who] = [round(samples[mark][who], 1) for mark in marks]
        return self.result

    def _come_and_go(self) -> None:
        # The batch breathes: sometimes nearly empty, mostly full.
        wanted = self.slots if self.random.random() < 0.9 else self.random.randint(1, self.slots)
        for _ in range(min(wanted - len(self.running), 16)):
            spec = self.random.choice(self.specs)
            name = f"r{self.result.added}"
            self.result.added += 1
            slot = self.pipe.add_request(name, spec)
            self.running.append(_Request(name, slot, spec))
        if self.running and self.random.random() < 0.2:
            request = self.random.choice(self.running)
            self.result.aborted += 1
            self._end(request)

    def _step(self) -> None:
        chosen = [request for request in self.running if self.random.random() < 0.95]
        self.random.shuffle(chosen)
        rows: list[_Request | None] = [*chosen]
        for _ in range(self.random.randint(0, 3)):
            rows.insert(self.random.randint(0, len(rows)), None)
        if not rows:
            return
        pool = self._logits[self.random.randrange(_BUFFERS)]
        logits = pool[: len(rows)].roll(self.random.randrange(10_000), dims=1)
        self.pipe.plan([UNGUIDED if request is None else request.slot for request in rows])
        self.pipe.fill_mask()
        self.pipe.apply_mask(logits)
        tokens = logits.argmax(-1)
        self.pipe.schedule_update(tokens)
        self.pipe.finish_update()
        self.result.steps += 1
        landed = None
        if tokens.is_cuda:
            host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
            tokens = host.copy_(tokens, non_blocking=True)
            landed = torch.cuda.Event()
            landed.record()
        # Read one step late, as engines do, so that the host stays ahead of the device.
        self._read()
        self._late = tokens, landed, rows

    def _read(self) -> None:
        if self._late is None:
            return
        (tokens, landed, rows), self._late = self._late, None
        if landed is not None:
            landed.synchronize()
        for request, token in zip(rows, tokens.tolist(), strict=True):
            if request is None or request.over:
                continue
            request.tokens.append(token)
            self.result.tokens += 1
            if token in self.compiler.vocabulary.stop_token_ids:
                self.result.stopped += 1
                self._end(request)
            elif len(request.tokens) >= _LONGEST:
                self.result.ended += 1
                self._end(request)

    def _end(self, request: _Request) -> None:
        request.over = True
        self.running.remove(request)
        error = self.pipe.remove_request(request.name).error
        if error is not None:
            self.result.failed += 1
            self._note(request, f"failed: {error}")
        place = refused_at(self.compiler, request.spec, request.tokens)
        if place is not None:
            self._note(request, f"token {request.tokens[place]} at {place} is refused by a fresh matcher")

    def _note(self, request: _Request, what: str) -> None:
        if len(self.result.mismatches) < 20:
            self.result.mismatches.append(f"{request.name}, {request.spec.summary()[:80]}: {what}"[:300])

    def _memory(self) -> dict[str, float]:
        found = {"engine": _resident_mb(os.getpid())}
        supervisor = getattr(self.pipe.runtime, "supervisor", None)
        if supervisor is not None and supervisor.worker_pid is not None:
            found["worker"] = _resident_mb(supervisor.worker_pid)
        else:
            found["worker"] = 0.0
        return found


def _resident_mb(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write; 1 if an output was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--slots", type=int, default=256, help="requests at the same time")
    parser.add_argument(
        "--tokenizer", type=Path, default=MODEL_DIR, help="tokenizer folder; default: the demo's"
    )
    parser.add_argument("--width", type=int, default=0, help="logits width; 0: the tokenizer's")
    parser.add_argument("--mode", choices=MODES, default="auto")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    options = vars(parser.parse_args(arguments))
    out, tokenizer = options.pop("out"), options.pop("tokenizer")
    result = soak(Vocabulary.from_tokenizer(load_tokenizer(tokenizer)), **options)
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if out is not None:
        out.write_text(text)
    return int(bool(result["mismatches"]))


if __name__ == "__main__":
    sys.exit(main())
