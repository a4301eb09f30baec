"""Which backend takes a spec: the one that is named, else those that say that they
enforce its language.

Depends on plugins and backends. Chooses for each spec by itself; requests of one batch
may be served by different backends. Works where it is called: the compiler sees to
limits.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import (
    GrammarError,
    GuidedError,
    PluginError,
    UnsatisfiableSpecError,
    UnsupportedSpecError,
    printable,
)
from guided_plugin.grammar.base import Backend, Grammar, Made, Prepared
from guided_plugin.grammar.native import native
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.telling import told

_log = logging.getLogger(__name__)

R = TypeVar("R")
M = TypeVar("M", bound=Made)


class Chooser:
    """The backends of one vocabulary, made at first use, and the order in which a spec
    tries them."""

    def __init__(
        self, vocabulary: Vocabulary, config: GuidedConfig, plugins: Plugins
    ) -> None:
        self.vocabulary = vocabulary
        self.config = config
        self.plugins = plugins
        self._backends: dict[str, Backend] = {}
        self._unpaced: set[str] = set()
        """Backends whose `pace` failed."""

    def backend(self, name: str) -> Backend:
        """A backend by name."""
        backend = self._backends.get(name)
        if backend is None:
            factory = self.plugins.backend(name)
            made = _call_plugin(
                f"backend {name!r}", lambda: factory(self.vocabulary, self.config)
            )
            backend = self._backends.setdefault(name, made)
        return backend

    def warm_up(self, name: str) -> None:
        """Have a backend build what the first request would wait for, if it offers
        that."""
        warm_up = getattr(self.backend(name), "warm_up", None)
        if warm_up is not None:
            _call_plugin(f"backend {name!r}", warm_up)

    def pace(self, seconds: float) -> None:
        """Tell the backends that offer `pace` the time between steps."""
        for backend in list(self._backends.values()):
            pace = getattr(backend, "pace", None)
            if pace is None or backend.name in self._unpaced:
                continue
            try:
                pace(seconds)
            except Exception as error:
                self._unpaced.add(backend.name)
                _log.warning(
                    "backend %r: pace updates disabled, because one failed: %r",
                    backend.name,
                    error,
                )

    def learnt_bytes(self) -> int:
        """Bytes that matchers have learnt of their grammars, of the backends that tell
        it."""
        made = list(self._backends.values())
        return sum(
            backend.learnt_bytes()
            for backend in made
            if hasattr(backend, "learnt_bytes")
        )

    def candidates(self, spec: OutputSpec) -> tuple[list[str], str]:
        """The backends to try, and why: the one that is named, else those whose
        `languages` have that of the spec, in the order of registration. No other may
        take it: it might drop what those refused."""
        language = spec.syntax if spec.kind == "grammar" else spec.kind
        found = [
            name
            for name, one in self.plugins.backends.items()
            if language in getattr(one, "languages", ())
        ]
        named = spec.backend if spec.backend != "auto" else self.config.backend
        if named != "auto":
            factory = self.plugins.backends.get(named)
            if named not in found and hasattr(factory, "languages"):
                others = " and ".join(found) or "no enabled backend"
                raise UnsupportedSpecError(
                    f"{language} is not enforced by {named}",
                    where="backend",
                    hint=f"leave the backend out: {others} enforces {language}",
                )
            if spec.backend != "auto":
                return [named], "the spec names it"
            return [named], "the configuration names it"
        if not found:
            enabled = ", ".join(self.plugins.backends)
            hint = f"name one of {enabled}" if enabled else "enable one"
            raise GrammarError(
                f"no enabled backend enforces {language}", where="backend", hint=hint
            )
        return found, f"enforces {language}"

    def first(self, spec: OutputSpec, make: Callable[[str, bool], M]) -> M:
        """Return what `make(backend, whether it is the last)` returns for the first
        candidate that does not refuse, with the reasons why it was this one."""
        refusals: dict[str, GrammarError] = {}
        try:
            candidates, why = self.candidates(spec)
            for backend in candidates:
                try:
                    made = make(backend, backend == candidates[-1])
                except GrammarError as error:
                    # another backend may only overlook that nothing satisfies it
                    if isinstance(error, UnsatisfiableSpecError):
                        raise
                    refusals[f"{backend} refused: {printable(error.what)}"] = error
                    continue
                reason = "; ".join(filter(None, [*refusals, why, made.reason]))
                _log.debug("%s took %s: %s", backend, spec, reason)
                if made.unenforced:
                    _log.info(
                        "not enforced in %s, because of unenforced_keywords: %s",
                        spec,
                        ", ".join(made.unenforced),
                    )
                return dataclasses.replace(made, reason=reason)
            raise next(iter(refusals.values()))
        except GrammarError as error:
            document = spec.document() if error.where.startswith("#/") else None
            raise told(error, spec.kind, document) from error.__cause__

    def compile(self, backend: str, spec: OutputSpec) -> Grammar:
        """Both halves of compiling."""
        act = partial(self.backend(backend).compile, spec.settled(self.config))
        return _call_plugin(f"backend {backend!r}", act)

    def prepare(self, backend: str, spec: OutputSpec) -> Prepared:
        """The first half of compiling."""
        act = partial(self.backend(backend).prepare, spec.settled(self.config))
        return _call_plugin(f"backend {backend!r}", act)

    def load(self, prepared: Prepared) -> Grammar:
        """The second half of compiling."""
        load = self.backend(prepared.backend).load
        grammar = _call_plugin(f"backend {prepared.backend!r}", partial(load, prepared))
        reasons = dict.fromkeys(filter(None, [prepared.reason, grammar.reason]))
        return dataclasses.replace(grammar, reason="; ".join(reasons))


def _call_plugin(what: str, act: Callable[[], R]) -> R:
    """Call a plugin's code: its errors carry its name, and the end of the interpreter
    waits for it."""
    try:
        with native():
            return act()
    except (GuidedError, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise PluginError(
            f"failed: {error!r}", where=what, hint="report it to its authors"
        ) from error
