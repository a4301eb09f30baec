"""Ways to answer: unguided, guided by this package in each form, or by vLLM's own
backends.

unguided
compact, spaced, flexible   this package; with `+open` (objects are open, in any order), `+close`
                            (`close_before_length`) or both
guidance, xgrammar          vLLM's own, with any whitespace, or `+compact`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from benchmarks.harness import Json
from guided_plugin.cli.loading import InputError
from guided_plugin.config import Whitespace

PLUGIN = "plugin"
UNGUIDED = "unguided"
_FORMS = get_args(Whitespace)
_OWN = ("guidance", "xgrammar")
_CHANGES = {
    **dict.fromkeys(_FORMS, frozenset({"open", "close"})),
    **dict.fromkeys(_OWN, frozenset({"compact"})),
    UNGUIDED: frozenset[str](),
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
        if base not in _CHANGES or not way.changes <= _CHANGES[base]:
            hint = "benchmarks/answers/ways.py lists the ways"
            raise InputError(f"{name!r} is not a way", where="--ways", hint=hint)
        return way

    @property
    def own(self) -> bool:
        """This package guides the whole answer: every finished one must be valid."""
        return self.base in _FORMS

    @property
    def engine(self) -> str:
        """The engine that answers: ways of one engine share a process."""
        return self.name if self.base in _OWN else PLUGIN

    def constraint(self, schema: Json) -> Json:
        """Return the arguments of `SamplingParams` that ask for this schema. `json` is
        vLLM's own."""
        if self.base in _OWN:
            return {"json": schema}
        if not self.own:
            return {}
        spec = {
            "json_schema": schema,
            "whitespace": self.base,
            "strict": "open" not in self.changes,
            "close_before_length": "close" in self.changes,
        }
        return {"guided": spec}


def engine_arguments(engine: str) -> Json:
    """Return the arguments of an engine that choose vLLM's own backend."""
    backend, _, compact = engine.partition("+")
    if backend not in _OWN:
        return {}
    own = {"backend": backend, "disable_any_whitespace": bool(compact)}
    return {"structured_outputs_config": own}
