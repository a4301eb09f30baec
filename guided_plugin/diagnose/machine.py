"""Sections of `doctor` about the machine: processors, CUDA, and a self-test.

The self-test compiles a spec with each backend and decodes some steps in both modes.
Its vocabulary is the 256 bytes, so that no tokenizer is needed. Torch is imported for
CUDA and the self-test.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from guided_plugin.config import GuidedConfig, Mode
from guided_plugin.errors import (
    GuidedError,
    MissingPackageError,
    PipelineError,
    UnsupportedSpecError,
)
from guided_plugin.ipc import processors
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

DRIVER = Path("/proc/driver/nvidia/version")
STEPS = 20
"""Steps that the self-test decodes in each mode: a fraction of a second. Chosen, not
measured."""
Status = Literal["ok", "note", "unknown", "problem"]
"""`note`: worth knowing, nothing is broken. `unknown`: it cannot be looked at here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    status: Status
    what: str
    remedy: str = ""
    """The way to fix it."""


def processor_time() -> Iterator[Finding]:
    """Report the number of processors, by affinity and by quota, and whether the
    threads fit."""
    count = processors.affine()
    quota = processors.quota()
    limited = "" if quota is None else f", {quota:g} processors' time (cgroup quota)"
    yield Finding("ok", f"{count} of {os.cpu_count()} processors{limited}")
    threads = GuidedConfig.from_environment().thread_count()
    if quota is not None and threads > max(1.0, quota):
        what = f"{threads} threads fill masks within a quota of {quota:g} processors: they are throttled"
        yield Finding("problem", what, "lower threads, or give the container more")
    if min(count, quota or count) < 2:
        what = (
            "with mode process, the engine and the grammar worker share one processor"
        )
        yield Finding("note", what, "give them two, or set mode to inline")


def cuda() -> Iterator[Finding]:
    """Each device; without any that is no failure, unless there is a driver."""
    import torch

    from guided_plugin.pipeline.runtime import cuda_reason
    from guided_plugin.worker.device.streamops import supported

    reason = cuda_reason()
    if reason and DRIVER.exists():
        what = f"there is a driver, but PyTorch cannot use it: {reason}"
        yield Finding("problem", what, "install a CUDA build of torch")
        return
    if reason:
        yield Finding("unknown", f"no CUDA: {reason}")
        return
    for index in range(torch.cuda.device_count()):
        name = f"cuda:{index} {torch.cuda.get_device_name(index)}, CUDA {torch.version.cuda}"
        try:
            able = supported(index)
        except (PipelineError, OSError) as error:
            remedy = "install a driver of CUDA 11.7 or later, or set mode to inline"
            yield Finding("problem", f"{name}: {error}", remedy)
            continue
        if able:
            yield Finding("ok", f"{name}: streams can wait for memory")
        else:
            what = f"{name}: no stream memory operations, so grammars run inline"
            yield Finding("note", what, "nothing: results are correct, only slower")


_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
}
_EBNF = 'root ::= "a"'
_DIGITS = b"0123456789"


def self_test() -> Iterator[Finding]:
    """Yield what compiled and what was decoded."""
    compiler = _compiler()
    for name in sorted(compiler.plugins.backends):
        yield _compiles(compiler, name)
    for mode in ("inline", "process"):
        yield _decodes(compiler, mode)


def _compiler() -> Any:
    from guided_plugin.compiling.compiler import GrammarCompiler
    from guided_plugin.grammar.vocabulary import Vocabulary

    config = GuidedConfig.from_environment()
    vocabulary = Vocabulary.from_tokens(
        [*(bytes([byte]) for byte in range(256)), b""], [256]
    )
    plugins = Plugins(disabled=config.disabled_plugins)
    return GrammarCompiler(vocabulary, config=config, plugins=plugins)


def _compiles(compiler: Any, name: str) -> Finding:
    start = time.perf_counter()
    try:
        if name == "xgrammar":
            compiler.compile(OutputSpec.grammar(_EBNF, backend=name))
        else:
            compiler.compile(OutputSpec.json_schema(_SCHEMA, backend=name))
    except UnsupportedSpecError as error:  # of third parties: they take other kinds
        return Finding("unknown", f"{name} is not tried: {_text(error)}")
    except Exception as error:  # a native library may raise anything
        hint = getattr(error, "hint", "")
        return Finding(
            "unknown" if isinstance(error, MissingPackageError) else "problem",
            f"{name} does not compile: {_text(error)}",
            hint or f"pip install --force-reinstall {name}",
        )
    return Finding(
        "ok", f"{name} compiles its first spec in {time.perf_counter() - start:.1f} s"
    )


def _decodes(compiler: Any, mode: Mode) -> Finding:
    try:
        milliseconds = _run(compiler, mode)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # of the machine: memory, processes, the device
        hint = getattr(error, "hint", "")
        return Finding(
            "problem", f"mode {mode} does not run: {_text(error)}", hint or _REPORT
        )
    return Finding(
        "ok",
        f"mode {mode}: {STEPS} steps, {milliseconds:.2f} ms each, every token allowed",
    )


_REPORT = "report it, with this output and the command's stderr"


def _run(compiler: Any, mode: Mode) -> float:
    """Milliseconds a step. Raises what was wrong: the likeliest token of the guided row
    is always another one than its grammar allows."""
    import torch

    from guided_plugin.pipeline.pipeline import StepPipeline
    from guided_plugin.pipeline.runtime import cuda_reason
    from guided_plugin.step import UNGUIDED

    device = "cpu" if cuda_reason() else "cuda"
    with StepPipeline(compiler, max_slots=1, device=device, mode=mode) as pipeline:
        slot = pipeline.add_request("doctor", OutputSpec.regex(f"[0-9]{{{STEPS + 1}}}"))
        likely = torch.zeros(2, compiler.vocabulary.size, device=device)
        likely[:, ord("x")] = 1.0
        chosen = []
        start = time.perf_counter()
        for _ in range(STEPS):
            logits = likely.clone()
            pipeline.plan([slot, UNGUIDED])
            pipeline.fill_mask()
            pipeline.apply_mask(logits)
            tokens = logits.argmax(dim=1)
            pipeline.schedule_update(tokens)
            pipeline.finish_update()
            chosen.append(tokens)
        guided, free = torch.stack(chosen).cpu().T.tolist()
        seconds = time.perf_counter() - start
        failure = pipeline.request("doctor").error
    if failure is not None:
        raise failure
    if not ({*guided} <= {*_DIGITS} and {*free} == {ord("x")}):
        raise PipelineError("masks allow other tokens")
    return 1e3 * seconds / STEPS


def _text(error: Exception) -> str:
    if isinstance(error, GuidedError):
        return f"{error.where}: {error.what}" if error.where else error.what
    return f"{type(error).__name__}: {error}"
