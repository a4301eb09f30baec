"""Ways to answer: unguided, guided by this package in each form, or by vLLM's own
backends.

unguided compact, spaced, flexible   this package; with any of `+open` (objects are
open, in any order), `+any` (closed
                            objects in any order), `+close` (`close_before_length`), `+jump` (`jump_forward`)
guidance, xgrammar          vLLM's own, with any whitespace, or `+compact` tools
for the tasks `calls`: what a server makes of `tools` with `tool_choice: auto`,
                            or `+required`; `+held` (`tools_strict`): every call follows its tool's schema
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, get_args

from guided_plugin.cli.loading import InputError
from guided_plugin.config import Whitespace

UNGUIDED = "unguided"
TOOLS = "tools"
_FORMS = get_args(Whitespace)
_OWN = ("guidance", "xgrammar")
_CHANGES = {
    "plugin": {"open", "any", "close", "jump"},
    "own": {"compact"},
    TOOLS: {"required", "held"},
    UNGUIDED: set[str](),
}
_CPU = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""GiB of keys and values; and vLLM does not pin its threads, so that it shares the
machine with others."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way, by its name."""

    name: str
    base: str
    changes: frozenset[str]

    @classmethod
    def named(cls, name: str) -> Way:
        """Read a name. Raises InputError for one that is not a way."""
        base, *changes = name.split("+")
        way = cls(name, base, frozenset(changes))
        known = base in (UNGUIDED, TOOLS, *_FORMS, *_OWN)
        if not known or not way.changes <= _CHANGES[way._kind]:
            hint = "benchmarks/answers/ways.py lists the ways"
            raise InputError(f"{name!r} is not a way", where="--ways", hint=hint)
        return way

    @property
    def _kind(self) -> str:
        if self.base in (UNGUIDED, TOOLS):
            return self.base
        return "plugin" if self.base in _FORMS else "own"

    @property
    def promises_valid(self) -> bool:
        """Tell whether this package guides the whole answer, so that every finished one
        must be valid."""
        return self._kind == "plugin" or self.changes == {"required", "held"}

    def asks(self, kind: str) -> bool:
        """Tell whether this way answers tasks of a kind."""
        return (self.base == TOOLS) == (kind == "calls")

    @property
    def engine(self) -> str:
        """The engine that answers: ways of one engine share a process."""
        if self._kind == "own":
            return self.name
        return "plugin+jump" if "jump" in self.changes else "plugin"

    def constraint(
        self, schema: dict[str, Any], tools: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the arguments of `SamplingParams` that ask for this schema. `json` is
        vLLM's own."""
        if self._kind == UNGUIDED:
            return {}
        if self._kind == TOOLS:
            tag = _server_tag(
                tools, required="required" in self.changes, held="held" in self.changes
            )
            return {} if tag is None else {"guided": {"structural_tag": tag}}
        if self._kind == "own":
            return {"json": schema}
        spec: dict[str, Any] = {"json_schema": schema}
        if "any" in self.changes:
            document = {"type": "json_schema", "json_schema": schema, "any_order": True}
            spec = {"structural_tag": {"format": document}}
        options = {
            "strict": "open" not in self.changes,
            "close_before_length": "close" in self.changes,
        }
        return {"guided": {**spec, "whitespace": self.base, **options}}


def _server_tag(
    tools: list[dict[str, Any]], *, required: bool, held: bool
) -> dict[str, Any] | None:
    """Return the structural tag that vLLM's server makes of a request's tools, of the
    parser `hermes`."""
    from vllm.entrypoints.openai.chat_completion.protocol import (
        ChatCompletionToolsParam,
    )
    from vllm.tool_parsers.structural_tag_registry import get_model_structural_tag
    from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

    tag = get_model_structural_tag(
        model="hermes",
        tools=[ChatCompletionToolsParam(**tool) for tool in tools],
        tool_choice="required" if required else "auto",
        reasoning=False,
        strict_level=ToolStrictLevel.PARAMETER if held else ToolStrictLevel.AUTO,
    )
    return None if tag is None else dict(tag.model_dump(mode="json"))


def engine_environment(engine: str, device: str) -> dict[str, str]:
    """Return the variables that switch this package on or off in an engine. vLLM's V2
    runner needs a GPU."""
    options = {"plugin": "1", "plugin+jump": json.dumps({"jump_forward": True})}
    variables = {"GUIDED_PLUGIN": options.get(engine, "0")}
    if device == "cpu":
        return {**variables, "VLLM_USE_V2_MODEL_RUNNER": "0", **_CPU}
    return {**variables, "VLLM_USE_V2_MODEL_RUNNER": "1"}


def engine_arguments(engine: str) -> dict[str, Any]:
    """Return the arguments of an engine that choose vLLM's own backend."""
    backend, _, compact = engine.partition("+")
    if backend not in _OWN:
        return {}
    return {
        "structured_outputs_config": {
            "backend": backend,
            "disable_any_whitespace": bool(compact),
        }
    }
