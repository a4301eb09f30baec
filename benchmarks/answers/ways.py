"""Ways to answer: unguided, guided by this package in each form, or by vLLM's own
backends.

unguided
compact, spaced, flexible   this package; with `+open` (objects are open, in any order), `+close`
                            (`close_before_length`) or both
guidance, xgrammar          vLLM's own, with any whitespace, or `+compact`
tools                       for the tasks `calls`: what a server makes of `tools` with `tool_choice: auto`,
                            or `+required`; `+held` (`tools_strict`): every call follows its tool's schema
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from benchmarks.harness import Json
from guided_plugin.cli.loading import InputError
from guided_plugin.config import Whitespace

PLUGIN = "plugin"
UNGUIDED = "unguided"
TOOLS = "tools"
_FORMS = get_args(Whitespace)
_OWN = ("guidance", "xgrammar")
_CHANGES = {
    PLUGIN: {"open", "close"},
    "own": {"compact"},
    TOOLS: {"required", "held"},
    UNGUIDED: set[str](),
}


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
        return PLUGIN if self.base in _FORMS else "own"

    @property
    def promises_valid(self) -> bool:
        """Tell whether this package guides the whole answer, so that every finished one
        must be valid."""
        return self._kind == PLUGIN or self.changes == {"required", "held"}

    def asks(self, kind: str) -> bool:
        """Tell whether this way answers tasks of a kind."""
        return (self.base == TOOLS) == kind.startswith("calls")

    @property
    def engine(self) -> str:
        """The engine that answers: ways of one engine share a process."""
        return self.name if self._kind == "own" else PLUGIN

    def constraint(self, schema: Json, tools: list[Json]) -> Json:
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
        spec = {
            "json_schema": schema,
            "whitespace": self.base,
            "strict": "open" not in self.changes,
            "close_before_length": "close" in self.changes,
        }
        return {"guided": spec}


def _server_tag(tools: list[Json], *, required: bool, held: bool) -> Json | None:
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


def engine_arguments(engine: str) -> Json:
    """Return the arguments of an engine that choose vLLM's own backend."""
    backend, _, compact = engine.partition("+")
    if backend not in _OWN:
        return {}
    own = {"backend": backend, "disable_any_whitespace": bool(compact)}
    return {"structured_outputs_config": own}
