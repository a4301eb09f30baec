"""One compiler per tokenizer, shared by all requests and threads. Depends on backends
and helpers.

Specs compile once: identical ones that arrive together wait for the first, and the
results stay in a cache bounded in bytes. A spec that was refused is refused at once
when it comes again. All but small specs compile in helper processes (pool.py). What a
helper made is kept, so that another process can load it.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeVar

from guided_plugin.compiling.chooser import Chooser
from guided_plugin.compiling.limits import check_limits, is_small
from guided_plugin.compiling.pool import Allowance, CompilePool
from guided_plugin.compiling.template_process import MODULE, Greeting
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import (
    BusyError,
    CompileLimitError,
    ConfigError,
    GrammarError,
    GuidedError,
    PluginError,
)
from guided_plugin.grammar.base import (
    Backend,
    Grammar,
    Prepared,
    why_unprotected,
)
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.ipc import processors
from guided_plugin.ipc.template import Template
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec, check_is_spec, identity_of, language_of
from guided_plugin.spec.memo import ENTRY_BYTES, Latest, texts_bytes

_REFUSED_BYTES = 4 << 20
"""Memory for specs that were refused: by digest, with the error."""

_KEPT_SHARE = 4
"""The part of the cache's size that results of helpers may take."""

_QUICK_BYTES = 1 << 16
"""Size up to which a result of a helper loads in milliseconds."""

_QUARANTINE_SECONDS = 600.0
"""For how long a spec is refused whose masks took too long."""

_AGAIN_SECONDS = 60.0
"""For how long a spec is refused that went over a limit, or on which a plugin failed:
it may be well again, but each try may cost seconds."""

_PATIENCE = 2.0
"""A request waits for so many times the processor time that its spec may take, unless
it says until when."""

_log = logging.getLogger(__name__)

R = TypeVar("R")


class _Refusals(Latest[bytes, tuple[float, GuidedError]]):
    """Specs that are refused: until when (of `time.monotonic`), and why. Not locked."""

    def refuse(self, key: bytes, seconds: float, error: GuidedError) -> None:
        """Refuse a spec for some seconds."""
        size = ENTRY_BYTES + texts_bytes(error.what, error.where, error.hint)
        self.put(key, (time.monotonic() + seconds, error), size)

    def reason(self, key: bytes) -> GuidedError | None:
        """Why a spec is refused now, if it is."""
        until, error = self.get(key) or (0.0, None)
        if error is None:
            return None
        if time.monotonic() >= until:
            self.drop(key)
            return None
        # one error that many raise would collect the traceback of each
        return copy.copy(error)


class GrammarCompiler:
    """Compiles specs for one vocabulary, each with the backend that it names or the
    first that takes it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        config: GuidedConfig | None = None,
        plugins: Plugins | None = None,
        built: tuple[Chooser, Template] | None = None,
        serves: bool = False,
    ) -> None:
        """`built`: backends and a template that are there, as in a process that a
        template forked. This one leaves that template to its owner. `serves`: the
        template starts now, and builds all that any spec may need, because requests
        would wait for it."""
        self.config = _checked(vocabulary, config)
        self.vocabulary = vocabulary
        self.tells = built is None
        """True if what a spec misspells is logged; not where another process tells
        it."""
        self.plugins = plugins or Plugins(disabled=self.config.disabled_plugins)
        own: Template | None = None
        if built is None:
            disabled = self.plugins.disabled
            entry_points = self.plugins.entry_points
            own = Template(
                MODULE,
                Greeting(vocabulary, self.config, disabled, entry_points, serves),
            )
            if serves and self.config.isolate_compiles:
                own.start()
            built = Chooser(vocabulary, self.config, self.plugins), own
        self.chooser, self.template = built
        self._pool = CompilePool(self.template, self.config)
        self._end = weakref.finalize(self, _end, self._pool, own)
        self._lock = threading.Lock()
        self._cache: Latest[OutputSpec, Grammar] = Latest(self.config.cache_bytes)
        self._kept: Latest[OutputSpec, Prepared] = Latest(
            self.config.cache_bytes // _KEPT_SHARE
        )
        """Results of helpers, here or in another process."""
        self._loads = threading.Semaphore(max(1, processors.count() // 4))
        """Loads that may take long, and are native work in this process."""
        self._running: dict[tuple[OutputSpec, str], Future[Any]] = {}
        """Specs that are being made now."""
        self._refused = _Refusals(_REFUSED_BYTES)
        _compilers.add(self)

    def warm_up(self) -> None:
        """Make the backends that schemas may use, and have them build what the first
        request would wait for.

        A failure is logged; the first spec that needs the backend gets the error.
        """
        try:
            for backend in self.chooser.candidates(OutputSpec.json_schema({}))[0]:
                with contextlib.suppress(GrammarError):  # it may not take choices
                    self.compile(OutputSpec.choice(["a"], backend=backend))
                self.chooser.warm_up(backend)
        except GuidedError as error:
            _log.warning("the warm-up of a backend failed: %s", error)

    def close(self) -> None:
        """End the helper processes and all others that its template forked; later
        compiles fail.

        Cached grammars remain available.
        """
        self._end()

    def keep(self, spec: OutputSpec, prepared: Prepared) -> None:
        """A spec has compiled within the limits in another process: here it is only
        loaded."""
        with self._lock:
            self._kept.put(language_of(spec), prepared, prepared.size_bytes)

    def kept(self, spec: OutputSpec) -> Prepared | None:
        """Return the bytes that another process loads a spec from, if a helper made
        them."""
        with self._lock:
            return self._kept.get(language_of(spec))

    def admit(
        self, spec: OutputSpec, *, deadline: float | None = None, here: bool = False
    ) -> Prepared | None:
        """Make sure that a spec compiles, for another process: returns what that
        process loads it from, or None where it compiles it in place. `here`: without a
        helper, as `why_quick` has said that it is small. `deadline` and errors: as in `compile`."""

        def found(key: OutputSpec) -> Grammar | Prepared | None:
            return self._kept.get(key) or self._cache.get(key)

        make = partial(self._made, travels=True, here=here)
        made = self._once(spec, "admission", found, make, deadline)
        return made if isinstance(made, Prepared) else None

    def why_quick(self, spec: OutputSpec) -> Literal["kept", "small", ""]:
        """Why `compile` and `admit` take milliseconds, whichever backend takes the spec;
        empty where they may take longer."""
        kept = self.kept(spec)
        if kept is not None:
            return "kept" if _is_quick(kept) else ""
        if not self.config.isolate_compiles:
            return "small"
        try:
            backends, _ = self.chooser.candidates(spec)
        except GrammarError:  # there is no backend
            return ""
        return "small" if all(is_small(spec, backend) for backend in backends) else ""

    def compile(self, spec: OutputSpec, *, deadline: float | None = None) -> Grammar:
        """The grammar of a spec; from any thread. Raises a GrammarError or PluginError,
        and BusyError if it gets no helper process until `deadline` (of
        `time.monotonic`): by default twice `compile_seconds` from now. A compile that
        has begun goes on, within its limit."""
        return self._once(spec, "grammar", self._cache.get, self._grammar, deadline)

    def cached(self, spec: OutputSpec) -> Grammar | None:
        """The cached grammar of a spec, if there is one; never waits for a compile."""
        with self._lock:
            return self._cache.get(language_of(spec))

    def begun(self, spec: OutputSpec) -> Future[Grammar] | None:
        """The grammar of a spec that a thread is making now, if one is."""
        return self._running.get((language_of(spec), "grammar"))

    def quarantine(self, spec: OutputSpec, error: GuidedError) -> None:
        """Refuse a spec for some minutes: `error` says what its requests cost. Triggers
        may have cost it: the same language with others is not refused."""
        refusal = CompileLimitError(
            f"is refused for now: {error.what}", where=spec.kind, hint=error.hint
        )
        with self._lock:
            if spec.start_after is None:
                self._cache.drop(language_of(spec))
                self._kept.drop(language_of(spec))
            self._refused.refuse(
                identity_of(spec, triggers=True), _QUARANTINE_SECONDS, refusal
            )

    def refusal(self, spec: OutputSpec) -> GuidedError | None:
        """Why a spec is refused without compiling it, if it is: it was before, or its
        requests went over a limit."""
        if not self._refused:
            return None
        with self._lock:
            return self._refused.reason(identity_of(spec)) or self._refused.reason(
                identity_of(spec, triggers=True)
            )

    def backend(self, name: str) -> Backend:
        """A backend by name, made at first use."""
        return self.chooser.backend(name)

    def _once(
        self,
        spec: OutputSpec,
        what: str,
        found: Callable[[OutputSpec], R | None],
        make: Callable[[OutputSpec, float], R],
        deadline: float | None = None,
    ) -> R:
        """Return what is found of a spec, or made of it; who asks meanwhile waits for
        that."""
        check_is_spec(spec)
        key = language_of(spec)
        if deadline is None:
            deadline = time.monotonic() + _PATIENCE * self.config.compile_seconds
        with self._lock:
            ready = found(key)
            if ready is not None:
                return ready
            refusal = self._refused.reason(identity_of(key)) if self._refused else None
            if refusal is not None:
                raise refusal
            running: Future[R] | None = self._running.get((key, what))
            if running is None:
                mine = self._running[key, what] = Future[R]()
        if running is not None:
            return _awaited(running, deadline)
        try:
            made = make(key, deadline)
        except BaseException as error:
            with self._lock:
                del self._running[key, what]
                self._remember(key, error)
            mine.set_exception(error)
            raise
        with self._lock:
            del self._running[key, what]
        mine.set_result(made)
        return made

    def _remember(self, key: OutputSpec, error: BaseException) -> None:
        """Remember that the spec would be refused again. What says nothing of the spec
        is not remembered: that there was no room, or no helper."""
        seconds = (
            _AGAIN_SECONDS
            if isinstance(error, PluginError | CompileLimitError)
            else math.inf
        )
        if isinstance(error, GrammarError | PluginError):
            # Without its traceback, which holds all that was at work.
            self._refused.refuse(identity_of(key), seconds, copy.copy(error))

    def _grammar(self, key: OutputSpec, deadline: float) -> Grammar:
        made = self.kept(key) or self._made(key, deadline)
        if isinstance(made, Grammar):
            return made
        with contextlib.nullcontext() if _is_quick(made) else self._loads:
            grammar = self.chooser.load(made)
        with self._lock:
            self._cache.put(key, grammar, grammar.size_bytes)
        return grammar

    def _made(
        self,
        key: OutputSpec,
        deadline: float,
        *,
        travels: bool = False,
        here: bool = False,
    ) -> Grammar | Prepared:
        """Return what a helper made of a spec, or its grammar where it needs none; both
        are kept. `travels`: another process needs it, this one does not; then `here`
        says whether it needs no helper."""
        warnings = check_limits(key, self.config)
        allowed = Allowance(self.config.compile_seconds, deadline)

        def make(backend: str, last: bool) -> Grammar | Prepared:
            small = not self.config.isolate_compiles or (
                here if travels else is_small(key, backend)
            )
            prepares = hasattr(self.chooser.backend(backend), "prepare")
            local = backend in self.plugins.local
            if small and prepares and travels and not local:
                return self.chooser.prepare(backend, key)
            # Helpers do not have what was registered as an object.
            if small or not prepares or local:
                return self.chooser.compile(backend, key)
            # The last candidate gets all the time that is left, those before it half of
            # it.
            return self._pool.prepare(backend, key, allowed, 1.0 if last else 0.5)

        made = self.chooser.first(key, make)
        warnings.append(why_unprotected(made))
        for warning in filter(None, warnings if self.tells else ()):
            _log.warning("%s: %s", key, warning)
        with self._lock:
            if isinstance(made, Prepared):
                self._kept.put(key, made, made.size_bytes)
            else:
                self._cache.put(key, made, made.size_bytes)
        return made


def _checked(vocabulary: object, config: GuidedConfig | None) -> GuidedConfig:
    """The config of a compiler, by default that of the environment."""
    if not isinstance(vocabulary, Vocabulary):
        raise ConfigError(
            f"must be a Vocabulary, not {type(vocabulary).__name__}",
            where="vocabulary",
            hint="Vocabulary.from_tokenizer(tokenizer)",
        )
    if config is None:
        return GuidedConfig.from_environment()
    if not isinstance(config, GuidedConfig):
        raise ConfigError(
            f"must be a GuidedConfig, not {type(config).__name__}",
            where="config",
            hint="GuidedConfig(**options) takes those of a mapping",
        )
    return config


def _end(pool: CompilePool, own: Template | None) -> None:
    pool.close()
    if own is not None:
        own.close()


def _awaited(running: Future[R], deadline: float) -> R:
    try:
        return running.result(min(deadline - time.monotonic(), threading.TIMEOUT_MAX))
    except TimeoutError:
        if running.done():
            raise
        raise BusyError(
            "the spec is still being compiled, and the request's time is up",
            where="compiling",
            hint="try again: the compile continues",
        ) from None


def _is_quick(prepared: Prepared) -> bool:
    """True if it loads in milliseconds."""
    return prepared.payload is not None and prepared.size_bytes <= _QUICK_BYTES


_compilers = weakref.WeakSet[GrammarCompiler]()
_shared = weakref.WeakValueDictionary[tuple[str, GuidedConfig], GrammarCompiler]()
_shared_lock = threading.Lock()


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()  # their helpers belong to the parent
    # no thread of this process makes what they are making
    for compiler in list(_compilers):
        compiler._lock = threading.Lock()
        compiler._running = {}


os.register_at_fork(after_in_child=_after_fork)


def shared_compiler(
    vocabulary: Vocabulary, config: GuidedConfig | None = None
) -> GrammarCompiler:
    """The one compiler of this process for a vocabulary, kept while it is used."""
    config = _checked(vocabulary, config)
    key = (vocabulary.fingerprint, config)
    with _shared_lock:
        compiler = _shared.get(key)
        if compiler is None:
            compiler = _shared[key] = GrammarCompiler(vocabulary, config=config)
        return compiler
