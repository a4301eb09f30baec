"""Options of the package, checked and frozen. Depends on errors.

A host builds one `GuidedConfig` at start, from keyword arguments, a mapping or the environment
variable GUIDED_PLUGIN (`0` off, `1` on, or a JSON object of the fields below). A `GrammarCompiler` without a
config reads the variable too, and so do the commands.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from guided_plugin.errors import ConfigError, did_you_mean
from guided_plugin.ipc import processors

ENVIRONMENT_VARIABLE = "GUIDED_PLUGIN"

Mode = Literal["auto", "inline", "process"]
Refused = Literal["error", "vllm"]
Whitespace = Literal["compact", "spaced", "flexible"]
MODES: tuple[Mode, ...] = get_args(Mode)

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SpecLimits:
    """What is refused, so that no spec costs others their time or memory."""

    compile_seconds: float = 10.0
    """Upper bound of one compile, in seconds of processor time. Requests wait twice as long for it."""
    compile_bytes: int = 2048 * _MIB
    """Upper bound of one compile's memory, in bytes."""
    compile_processes: int = 4
    """Helper processes at most; they are started as compiles overlap."""
    compile_queue: int = 32
    """vLLM: specs that may wait for a helper process; more are refused with status 503."""
    max_spec_bytes: int = _MIB
    """Longest spec, in bytes."""
    max_nodes: int = 50_000
    """Most JSON values of one spec: objects, arrays, texts, numbers."""
    max_spec_depth: int = 200
    """Deepest nesting of a schema's own JSON."""
    max_enum: int = 20_000
    """Most values of one enum, or texts of one choice."""
    max_spec_properties: int = 5_000
    """Most properties of one object, or definitions of one schema."""
    max_repetition: int = 1_000_000
    """Largest length bound, and most characters of a pattern with its repetitions written out."""


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """How long a grammar worker, and each of its requests, may take."""

    worker_step_ms: int = 2_000
    """How long the grammar worker may be without progress before it is replaced."""
    worker_grammar_ms: int = 10_000
    """How long a step waits for a grammar that is still compiling before that row fails closed."""
    row_ms: int = 200
    """Processor time that one mask of one request may take where its backend has no bound of its own."""
    worker_spin_us: int = 50
    """How long the grammar worker polls without a pause after work; it sleeps in between later on."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much a model may write where a JSON schema sets no bound; 0 sets none. A request may say each."""

    max_whitespace: int = 40
    """Characters of whitespace between two tokens of JSON that is `flexible`."""
    max_digits: int = 20
    """Digits of a number before the point, after it, and in its exponent."""
    max_string: int = 0
    """Characters of a string or a name."""
    max_items: int = 0
    """Items of an array."""
    max_properties: int = 0
    """Properties of an object."""
    max_depth: int = 0
    """Arrays and objects inside each other, in recursive schemas and in values that no schema describes."""


BOUNDS = tuple(field.name for field in dataclasses.fields(Bounds))
UNBOUNDED = Bounds(max_whitespace=0, max_digits=0)


@dataclass(frozen=True, kw_only=True)
class GuidedConfig(SpecLimits, WorkerLimits, Bounds):
    """Everything an operator can set. Unknown names and wrong types are errors, never ignored."""

    enabled: bool = True
    """False: a host that loads the plugin by itself leaves it out, and guided requests are refused."""
    whitespace: Whitespace = "compact"
    """In JSON of requests that don't say: `compact`, `spaced` (as `json.dumps` writes) or `flexible`."""
    strict: bool = True
    """Unless a request says: objects that describe properties are closed unless opened by the schema."""
    backend: str = "auto"
    """Backend for specs that name none: a registered name, or `auto` to choose per spec."""
    cache_bytes: int = 512 * _MIB
    """Upper bound of the compiled-grammar cache, in bytes, per tokenizer."""
    learnt_bytes: int = 1024 * _MIB
    """What lexers of all grammars may learn (states that make masks cheap), in bytes, per tokenizer."""
    threads: int = 0
    """Threads that fill masks and compile; 0 takes three quarters of the processors, at most 12."""
    isolate_compiles: bool = True
    """Compile all but small specs in helper processes, where the limits of time and memory hold."""
    unenforced_keywords: tuple[str, ...] = ()
    """JSON Schema keywords to treat as annotations, such as `uniqueItems`: output may then break them."""
    disabled_plugins: tuple[str, ...] = ()
    """Names of plugins that must not be loaded."""
    take_over: bool = False
    """vLLM: serve `response_format`, `structured_outputs` and tool calls too, in place of its own manager."""
    tools_strict: bool = False
    """vLLM, with `take_over`: hold every tool to its schema, not only those that say `strict`."""
    refused: Refused = "error"
    """vLLM, with `take_over`: what is refused is the client's `error`, or left to `vllm`'s own manager."""
    mode: Mode = "auto"
    """Where grammars work in vLLM: `inline`, `process`, or `auto`: a process where the logits are on CUDA."""

    jump_forward: bool = False
    """vLLM's V2 runner: text that must follow is verified in one forward pass, as drafts."""
    jump_drafts: int = 7
    """How many tokens of it at most, where no speculative config says that."""
    close_before_length: bool = False
    """For requests that don't say: a guided output ends valid, at the latest at its token limit."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, float) and isinstance(value, int) and not isinstance(value, bool):
                value = float(value)
                object.__setattr__(self, field.name, value)
            _check_type(field.name, value, type(field.default))
            least, hint = _LEAST.get(field.name, (1, ""))
            if isinstance(value, int | float) and not isinstance(value, bool) and value < least:
                raise ConfigError(f"must be at least {least:,}", where=field.name, hint=hint)
        choices = {"mode": MODES, "refused": get_args(Refused), "whitespace": get_args(Whitespace)}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}", where=name, hint=did_you_mean(value, known))
        for name in ("tools_strict", "refused"):
            if not self.take_over and getattr(self, name) != getattr(type(self), name):
                raise ConfigError("has no effect without take_over", where=name, hint="set take_over")

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> GuidedConfig:
        """From a mapping of option names to values, as a config file or a flag gives them."""
        known = {field.name for field in dataclasses.fields(cls)}
        for name in options:
            if name not in known:
                raise ConfigError(f"unknown option {name!r}", hint=did_you_mean(str(name), known))
        values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in options.items()}
        return cls(**values)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> GuidedConfig:
        """From GUIDED_PLUGIN, or the defaults when it is unset or empty."""
        text = (os.environ if environment is None else environment).get(ENVIRONMENT_VARIABLE, "").strip()
        if text in ("", "1"):
            return cls()
        if text == "0":
            return cls(enabled=False)
        try:
            options = json.loads(text, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"not 0, 1 or a JSON object: {text[:60]!r}", where=ENVIRONMENT_VARIABLE, hint=str(error)
            ) from error
        if not isinstance(options, dict):
            raise ConfigError("must be 0, 1 or a JSON object", where=ENVIRONMENT_VARIABLE)
        return cls.from_mapping(options)

    def thread_count(self) -> int:
        """`threads`, with 0 replaced by what this machine has to give."""
        return self.threads or max(1, min(12, processors.count() * 3 // 4))


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


_LEAST: Mapping[str, tuple[float, str]] = {
    "cache_bytes": (0, "0 keeps nothing"),
    "compile_seconds": (0.001, "in seconds"),
    "learnt_bytes": (64 * _MIB, "64 MiB"),
    "threads": (0, "0 chooses for you"),
    "worker_spin_us": (0, "0 sleeps at once"),
    **dict.fromkeys(BOUNDS, (0, "0 sets no bound")),
}
"""The least value of an option that is a number, where it is not 1."""


def _check_type(name: str, value: Any, kind: type) -> None:
    if kind is tuple:
        ok = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        expected = "a list of strings"
    else:
        # bool is an int to Python, never to an operator.
        ok = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        names = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a string"}
        expected = names[kind.__name__]
    if not ok:
        raise ConfigError(f"must be {expected}, not {value!r}", where=name)
