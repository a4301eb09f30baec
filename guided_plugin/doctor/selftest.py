"""A self-test: each backend compiles a schema, and both modes decode some steps. Imports torch.

The vocabulary is the 256 bytes, so that no tokenizer is needed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from guided_plugin.config import GuidedConfig, Mode
from guided_plugin.doctor.finding import Finding, Setup
from guided_plugin.errors import BusyError, CompileLimitError, ConfigError, GuidedError, PipelineError
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec
from guided_plugin.worker.engine.start import borrow_server, return_server

STEPS = 20
_WAIT = 30.0
"""Seconds for a worker's first start: it imports torch."""
_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_DIGITS = b"0123456789"


@contextlib.contextmanager
def workers_importing() -> Iterator[None]:
    """Have the process that workers are forked from import what they need, while this one does the same."""
    try:
        server = borrow_server()
    except PipelineError:  # the self-test tells, which tries again
        yield
        return
    try:
        yield
    finally:
        return_server(server)


def self_test(setup: Setup) -> Iterator[Finding]:
    """What compiled and what was decoded."""
    try:
        compiler = _compiler()
    except (ConfigError, ImportError) as error:
        yield Finding("unknown", f"nothing can be run: {error}")
        return
    except GuidedError as error:
        yield Finding("problem", f"the backends cannot be loaded: {error.what}", error.hint)
        return
    for name in sorted(compiler.plugins.backends):
        yield _compiles(compiler, name)
    for mode in ("inline", "process"):
        yield _decodes(compiler, mode)


def _compiler() -> Any:
    from guided_plugin.compiling.compiler import GrammarCompiler
    from guided_plugin.grammar.vocabulary import Vocabulary

    config = GuidedConfig.from_environment()
    vocabulary = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b""], [256])
    plugins = Plugins(disabled=config.disabled_plugins)
    return GrammarCompiler(vocabulary, config=config, plugins=plugins)


def _compiles(compiler: Any, name: str) -> Finding:
    seconds = []
    try:
        for title in ("first", "second"):  # the first waits for the backend and, perhaps, a helper process
            start = time.perf_counter()
            compiler.compile(OutputSpec.json_schema({**_SCHEMA, "title": title}, backend=name))
            seconds.append(time.perf_counter() - start)
    except (BusyError, CompileLimitError) as error:  # the machine is slow, the backend is whole
        return Finding("problem", f"{name} does not compile: {_text(error)}", error.hint)
    except Exception as error:  # a native library may raise anything
        remedy = f"pip install --force-reinstall {name}"
        return Finding("problem", f"{name} does not compile: {_text(error)}", remedy)
    first, second = seconds
    return Finding("ok", f"{name} compiles a schema in {1e3 * second:.0f} ms, its first in {first:.1f} s")


def _decodes(compiler: Any, mode: Mode) -> Finding:
    try:
        milliseconds, wrong = _run(compiler, mode)
    except Exception as error:  # of the machine: memory, processes, the device
        hint = error.hint if isinstance(error, GuidedError) else ""
        return Finding("problem", f"mode {mode} does not run: {_text(error)}", hint or _REPORT)
    if wrong:
        return Finding("problem", f"mode {mode}: {wrong}", _REPORT)
    return Finding("ok", f"mode {mode}: {STEPS} steps, {milliseconds:.2f} ms each, every token allowed")


_REPORT = "report it, with this page and what the command wrote on stderr"


def _run(compiler: Any, mode: Mode) -> tuple[float, str]:
    """Milliseconds a step, and what was wrong. The likeliest token of the guided row is always another one
    than its grammar allows."""
    import torch

    from guided_plugin.pipeline.device import cuda_reason
    from guided_plugin.pipeline.pipeline import StepPipeline
    from guided_plugin.step import UNGUIDED

    device = "cpu" if cuda_reason() else "cuda"
    with StepPipeline(compiler, max_slots=1, device=device, mode=mode) as pipeline:
        if not pipeline.runtime.ready.wait(_WAIT):
            return 0.0, f"the grammar worker was not ready within {_WAIT:g} s"
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
        return 0.0, f"the request failed: {failure.what}"
    if not set(guided) <= set(_DIGITS):
        return 0.0, "a token left that the grammar forbids"
    if set(free) != {ord("x")}:
        return 0.0, "the unguided row was changed"
    return 1e3 * seconds / STEPS, ""


def _text(error: Exception) -> str:
    if isinstance(error, GuidedError):
        return f"{error.where}: {error.what}" if error.where else error.what
    return f"{type(error).__name__}: {error}"
