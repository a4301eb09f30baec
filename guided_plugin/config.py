"""Options of the package, checked and frozen. Depends on errors.

A host builds one `GuidedConfig` at start, from keyword arguments, a mapping or the
environment variable GUIDED_PLUGIN (`0` off, `1` on, or a JSON object of the fields
below); vLLM's also from `--additional-config`. A `GrammarCompiler` without a config
reads the variable too, and so do the commands.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from guided_plugin.errors import ConfigError, did_you_mean, near_miss
from guided_plugin.ipc import processors

ENVIRONMENT_VARIABLE = "GUIDED_PLUGIN"

OPTIONS_KEY = "guided_plugin"
"""The key of vLLM's `--additional-config` that holds the options."""

FLAG = f"additional_config.{OPTIONS_KEY}"

Mode = Literal["auto", "inline", "process"]
Refused = Literal["error", "vllm"]
Whitespace = Literal["compact", "spaced", "flexible"]
MODES: tuple[Mode, ...] = get_args(Mode)

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SpecLimits:
    """Limits of a spec, so that none costs others their time or memory."""

    compile_seconds: float = 10.0
    """Upper bound of one compile, in seconds of processor time. Requests wait up to
    twice as long."""
    compile_bytes: int = 2048 * _MIB
    """Upper bound of one compile's memory, in bytes."""
    compile_processes: int = 4
    """Most helper processes; they start when compiles overlap."""
    compile_queue: int = 32
    """vLLM: specs that may wait for a helper process; more are refused with status
    503."""
    max_spec_bytes: int = _MIB
    """Longest spec, in bytes; in vLLM also what a client wrote, with whitespace, before
    it is read."""
    max_nodes: int = 50_000
    """Most JSON values of one spec: objects, arrays, texts, numbers."""
    max_spec_depth: int = 200
    """Deepest nesting of a schema's own JSON, and of a pattern's groups."""
    max_repetition: int = 1_000_000
    """Largest length bound, and most characters of a pattern with its repetitions
    written out, or of a spec's categories of Unicode."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits on outputs where a JSON schema sets no bound; 0 sets none. A request
    may set each."""

    max_whitespace: int = 40
    """Characters of a line's indentation in `flexible` JSON."""
    max_digits: int = 20
    """Digits of a number before the point, after it, and in its exponent, which is one
    of a double."""


BOUNDS = tuple(field.name for field in dataclasses.fields(Bounds))
UNBOUNDED = Bounds(max_whitespace=0, max_digits=0)


@dataclass(frozen=True, kw_only=True)
class GuidedConfig(SpecLimits, Bounds):
    """All options. Unknown names and wrong types are errors, never ignored."""

    enabled: bool = True
    """False: hosts that load the plugin by themselves leave it out, and refuse guided
    requests."""
    whitespace: Whitespace = "flexible"
    """Whitespace in JSON, where a request sets none: `flexible` (as models write it),
    `compact` or `spaced` (as `json.dumps` writes)."""
    strict: bool = True
    """True if objects that describe properties are closed unless the schema opens them,
    where a request does not set it. False: they are open, and tool calls in XML are
    refused."""
    backend: str = "auto"
    """Backend for specs that name none: a registered name, or `auto` to choose per
    spec."""
    cache_bytes: int = 512 * _MIB
    """Bytes of compiled grammars, with their specs, that are kept per tokenizer."""
    learnt_bytes: int = 1024 * _MIB
    """Bytes of states that lexers of all grammars may cache per tokenizer; they make
    masks cheap."""
    threads: int = 0
    """Most threads that fill masks and compile; 0 means three quarters of the
    processors, up to 12. A worker uses fewer while tokens and masks take less than a
    third of a step."""
    isolate_compiles: bool = True
    """Compile all but small specs in helper processes, where the limits of time and
    memory hold."""
    unenforced_keywords: tuple[str, ...] = ()
    """JSON Schema keywords to treat as annotations, such as `uniqueItems`: output may
    then break them."""
    disabled_plugins: tuple[str, ...] = ()
    """Names of plugins that are not loaded."""
    take_over: bool = False
    """vLLM: serve `response_format`, `structured_outputs` and tool calls too, in place
    of its own manager."""
    tools_strict: bool = True
    """vLLM, with `take_over`: hold every tool to its schema but those that say
    `"strict": false`. False, or another level in `--tool-strict-level`: as vLLM
    does."""
    refused: Refused = "error"
    """vLLM, with `take_over`: a refused spec is an `error` for the client, or is left
    to `vllm`'s manager."""
    mode: Mode = "auto"
    """The place where grammars run in vLLM: `inline`, `process`, or `auto`: a process
    if the logits are on CUDA."""
    worker_step_ms: int = 2_000
    """Milliseconds without progress after which the grammar worker is replaced."""
    worker_grammar_ms: int = 10_000
    """Milliseconds that a step waits for a grammar that is still compiling before that
    row fails closed. vLLM holds requests back until theirs is there."""
    row_ms: int = 200
    """Processor time that one mask or token of one request may take. Where llguidance
    takes a spec that is no Lark grammar, once a call for all rows has taken as long."""
    worker_spin_us: int = 50
    """Microseconds that the grammar worker polls without a pause after work; later it
    sleeps between polls."""

    jump_forward: bool = False
    """vLLM's V2 runner: verify forced text in one forward pass, as drafts."""
    jump_drafts: int = 7
    """`jump_forward`: tokens at a time, unless a speculative config sets it."""
    jump_rows: int = 128
    """`jump_forward`: batches of more requests have no drafts, unless a speculative
    config is set."""
    close_before_length: bool = False
    """True if guided outputs end valid, within their token limit, where a request does
    not set it."""
    answer_room: float = 0.2
    """`close_before_length`: the part of its token limit that an output keeps for what
    comes after its reasoning, 0 to 1."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            _check_type(field.name, value, type(field.default))
            least, hint = LEAST.get(field.name, (1, ""))
            if (
                isinstance(value, int | float)
                and not isinstance(value, bool)
                and value < least
            ):
                raise ConfigError(
                    f"must be at least {least:,}", where=field.name, hint=hint
                )
        for name, known in CHOICES.items():
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(
                    f"unknown {name} {value!r}",
                    where=name,
                    hint=did_you_mean(value, known),
                )
        if self.answer_room > 1:
            raise ConfigError(
                "must be at most 1", where="answer_room", hint="0.2 is a fifth"
            )
        for name in ("tools_strict", "refused"):
            if not self.take_over and getattr(self, name) != getattr(type(self), name):
                raise ConfigError(
                    "has no effect without take_over", where=name, hint="set take_over"
                )

    @classmethod
    def from_environment(cls) -> GuidedConfig:
        """From GUIDED_PLUGIN, or the defaults when it is unset or empty."""
        return cls.read(None)[0]

    @classmethod
    def read(
        cls, additional: Any, environment: Mapping[str, str] | None = None
    ) -> tuple[GuidedConfig, dict[str, str]]:
        """From GUIDED_PLUGIN and vLLM's additional config, which wins field by field;
        and which of the two each option is from. `GUIDED_PLUGIN=0` switches off:
        nothing else is read then."""
        given = _of_environment(os.environ if environment is None else environment)
        if given == 0:  # false too
            return cls(enabled=False), {"enabled": f"{ENVIRONMENT_VARIABLE}=0"}
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for source, options in (
            (ENVIRONMENT_VARIABLE, given),
            (FLAG, _of_flag(additional)),
        ):
            found = _values(options, source)
            values |= found
            sources |= dict.fromkeys(found, source)
        try:
            return cls(**values), sources
        except ConfigError as error:
            raise error.under(sources[error.where]) from None

    def told(self, sources: Mapping[str, str]) -> str:
        """Return the options that are set, with their values and sources, as a line for
        a log."""
        values = (
            f"{name} = {json.dumps(getattr(self, name))} ({of})"
            for name, of in sources.items()
        )
        return ", ".join(values) or "all options have their defaults"

    def thread_count(self) -> int:
        """`threads`, with 0 replaced by what this machine has to give."""
        return self.threads or max(1, min(12, processors.count() * 3 // 4))


def _of_environment(environment: Mapping[str, str]) -> Any:
    """Return the options that GUIDED_PLUGIN holds."""
    text = environment.get(ENVIRONMENT_VARIABLE, "").strip()
    try:
        return json.loads(text, parse_constant=no_constant) if text else {}
    except (ValueError, RecursionError) as error:
        what = f"not 0, 1 or a JSON object: {text[:60]!r}"
        raise ConfigError(what, where=ENVIRONMENT_VARIABLE, hint=str(error)) from error


def _of_flag(additional: Any) -> Any:
    """Return the options that vLLM's additional config holds for this plugin."""
    if not isinstance(additional, Mapping):
        return {}
    for key in additional:
        # The names that go on from it are the plugin's own, in the configurations of
        # its engines.
        if not str(key).startswith(f"{OPTIONS_KEY}_") and near_miss(key, [OPTIONS_KEY]):
            hint = did_you_mean(key, [OPTIONS_KEY])
            raise ConfigError(
                f"unknown key {key!r}", where="additional_config", hint=hint
            )
    # Other names may belong to a platform or another plugin.
    misplaced = {key: value for key, value in additional.items() if key in _names()}
    if misplaced:
        what = (
            f"{', '.join(misplaced)}: options are one level deeper, under {OPTIONS_KEY}"
        )
        right = json.dumps({OPTIONS_KEY: misplaced}, default=str)
        raise ConfigError(what, where="additional_config", hint=f"write {right}")
    value = additional.get(OPTIONS_KEY)
    return {} if value is None else value


def _values(options: Any, source: str) -> dict[str, Any]:
    """The values of a source's options by their names."""
    if options in (0, 1):
        return {"enabled": bool(options)}
    if not isinstance(options, Mapping):
        what = f"must be 0, 1 or a JSON object, not {options!r}"
        raise ConfigError(what, where=source, hint='for example {"take_over": true}')
    for name in options:
        if name not in _names():
            hint = did_you_mean(str(name), _names())
            raise ConfigError(f"unknown option {name!r}", where=source, hint=hint)
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options.items()
    }


def _names() -> set[str]:
    return {field.name for field in dataclasses.fields(GuidedConfig)}


def no_constant(text: str) -> None:
    """For `parse_constant` of `json`: refuses NaN and infinities."""
    raise ValueError(f"{text} is not JSON")


CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": MODES,
    "refused": get_args(Refused),
    "whitespace": get_args(Whitespace),
}
"""The values of an option that has a few."""

LEAST: Mapping[str, tuple[float, str]] = {
    "answer_room": (0, "0 keeps what the shortest answer takes"),
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
        kinds = (int, float) if kind is float else kind
        ok = isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))
        names = {
            "bool": "true or false",
            "int": "a whole number",
            "float": "a number",
            "str": "a string",
        }
        expected = names[kind.__name__]
    if not ok:
        raise ConfigError(f"must be {expected}, not {value!r}", where=name)
