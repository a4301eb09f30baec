"""One compiler per tokenizer, shared by all requests and threads. Depends on backends and helpers.

Specs compile once: identical ones that arrive together wait for the first, and the results stay in a
cache bounded in bytes. Failures are not cached, except those of specs that went over a limit: those are
refused at once when they come again. All but small specs compile in helper processes (guard.py).
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass

from guided_plugin.compiling.background import Background
from guided_plugin.compiling.cache import GrammarCache
from guided_plugin.compiling.chooser import Chooser
from guided_plugin.compiling.guard import Allowance, CompileGuard
from guided_plugin.compiling.limits import check_limits, is_small
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import CompileLimitError, GrammarError, GuidedError
from guided_plugin.grammar.base import Backend, Grammar, Prepared
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec, identity_of, language_of
from guided_plugin.spec.memo import ENTRY_BYTES, Latest, texts_bytes

__all__ = ["CacheStatistics", "GrammarCompiler", "shared_compiler"]

_REFUSED_BYTES = 4 << 20
"""What is remembered of specs that went over a limit: by digest, with the error."""

_TRUSTED_BYTES = 2 << 20
"""What is remembered of specs that compiled in another process: by digest."""

_QUARANTINE_SECONDS = 600.0
"""For how long a spec is refused whose masks took too long."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Counters since start, and what the cache holds now."""

    hits: int
    misses: int
    waits: int
    """Requests that waited for a compile which another request had started."""
    evictions: int
    entries: int
    size_bytes: int
    limit_bytes: int


class GrammarCompiler:
    """Compiles specs for one vocabulary, each with the backend that it names or the first that can."""

    def __init__(
        self, vocabulary: Vocabulary, *, config: GuidedConfig | None = None, plugins: Plugins | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self.config = config or GuidedConfig.from_environment()
        self.plugins = plugins or Plugins(disabled=self.config.disabled_plugins)
        self._chooser = Chooser(vocabulary, self.config, self.plugins)
        self._guard = CompileGuard(vocabulary, self.config, self.plugins)
        weakref.finalize(self, self._guard.close)
        self._background: Background[Grammar] = Background()
        self._lock = threading.Lock()
        self._cache = GrammarCache(self.config.cache_bytes)
        self._running: dict[OutputSpec, Future[Grammar]] = {}
        self._refused: Latest[bytes, tuple[float, GrammarError]] = Latest(_REFUSED_BYTES)
        """Specs that went over a limit: until when they are refused (of `time.monotonic`), and why."""
        self._trusted: Latest[bytes, bool] = Latest(_TRUSTED_BYTES)
        self._misses = self._waits = 0

    def start(self) -> None:
        """Start a helper process in the background, so that the first large spec doesn't wait for it."""
        if self.config.isolate_compiles:
            self._guard.start(self._chooser.candidates(OutputSpec.json_schema({}))[0].backend)

    def warm_up(self, name: str) -> None:
        """Have a backend build what the first request would wait for."""
        with contextlib.suppress(GrammarError):  # it may not take choices
            self.compile(OutputSpec.choice(["a"], backend=name))
        self._chooser.warm_up(name)

    def close(self) -> None:
        """End the helper processes; their compiles fail. Grammars in the cache are still given out."""
        self._guard.close()

    def trust(self, spec: OutputSpec) -> None:
        """A spec has compiled within the limits in another process: here it needs no helper process."""
        with self._lock:
            self._trusted.put(identity_of(spec), True, ENTRY_BYTES)

    def trusts(self, spec: OutputSpec) -> bool:
        """Whether a spec has compiled within the limits, as far as this compiler was told."""
        return identity_of(spec) in self._trusted

    def compile_async(self, spec: OutputSpec) -> Future[Grammar]:
        """The same in the background. Never blocks, and the future can be cancelled until it runs."""
        return self._background.submit(lambda: self.compile(spec))

    def compile(self, spec: OutputSpec) -> Grammar:
        """The grammar of a spec; from any thread. Raises a GrammarError or PluginError."""
        key = language_of(spec)
        with self._lock:
            cached = self._cache.get(key)
            if cached is not None:
                return cached
            refusal = self._refusal(key)
            if refusal is not None:
                raise refusal
            running = self._running.get(key)
            if running is None:
                mine = self._running[key] = Future[Grammar]()
                self._misses += 1
            else:
                self._waits += 1
        if running is not None:
            return running.result()
        try:
            grammar = self._compile(key)
        except BaseException as error:
            with self._lock:
                del self._running[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._running[key]
            self._cache.put(key, grammar, grammar.size_bytes)
        mine.set_result(grammar)
        return grammar

    def cached(self, spec: OutputSpec) -> Grammar | None:
        """The grammar of a spec if it is there; never waits for a compile."""
        with self._lock:
            return self._cache.get(language_of(spec))

    def quarantine(self, spec: OutputSpec, error: GuidedError) -> None:
        """Refuse a spec for some minutes: `error` says what its requests cost."""
        refusal = CompileLimitError(f"is refused for now: {error.what}", where=spec.kind, hint=error.hint)
        key = language_of(spec)
        with self._lock:
            self._cache.drop(key)
            self._refuse(key, time.monotonic() + _QUARANTINE_SECONDS, refusal)

    def refusal(self, spec: OutputSpec) -> GrammarError | None:
        """Why a spec is refused without compiling it, if it is: it, or its requests, went over a limit."""
        if not self._refused:
            return None
        with self._lock:
            return self._refusal(spec)

    def backend(self, name: str) -> Backend:
        """A backend by name, made at first use."""
        return self._chooser.backend(name)

    def pace(self, seconds: float) -> None:
        """Tell the backends the time between steps, in which fills are hidden."""
        self._chooser.pace(seconds)

    def learnt_bytes(self) -> int:
        """What matchers have learnt of their grammars, in this process."""
        return self._chooser.learnt_bytes()

    def cache_statistics(self) -> CacheStatistics:
        """Counters since start, and what the cache holds now."""
        with self._lock:
            cache = self._cache
            return CacheStatistics(
                hits=cache.hits,
                misses=self._misses,
                waits=self._waits,
                evictions=cache.evictions,
                entries=len(cache),
                size_bytes=cache.size_bytes,
                limit_bytes=cache.limit_bytes,
            )

    def _refuse(self, spec: OutputSpec, until: float, error: GrammarError) -> None:
        size = ENTRY_BYTES + texts_bytes(error.what, error.where, error.hint)
        self._refused.put(identity_of(spec), (until, error), size)

    def _refusal(self, spec: OutputSpec) -> GrammarError | None:
        if not self._refused:
            return None
        key = identity_of(spec)
        until, error = self._refused.get(key) or (0.0, None)
        if error is None:
            return None
        if time.monotonic() >= until:
            self._refused.drop(key)
            return None
        return copy.copy(error)  # one error that many raise would collect the traceback of each

    def _compile(self, spec: OutputSpec) -> Grammar:
        check_limits(spec, self.config)
        allowed = Allowance(self.config.compile_seconds)
        over_limit = False

        def make(backend: str, last: bool) -> Grammar:
            nonlocal over_limit
            try:
                # The last candidate gets all the time that is left, those before it half of it.
                prepared = self._isolated(backend, spec, allowed, 1.0 if last else 0.5)
            except CompileLimitError:
                over_limit = True
                raise
            if prepared is not None:
                return self._chooser.load(prepared)
            grammar = self._chooser.compile(backend, spec)
            if not self.trusts(spec):
                self._chooser.probe(grammar)
            return grammar

        try:
            return self._chooser.first(spec, make)
        except GrammarError as error:
            if over_limit:  # it would go over it again
                with self._lock:
                    self._refuse(spec, math.inf, copy.copy(error))
            raise

    def _isolated(self, backend: str, spec: OutputSpec, allowed: Allowance, share: float) -> Prepared | None:
        """A spec prepared by a helper process; None where it may, or must, compile in this one."""
        if not self.config.isolate_compiles or self.trusts(spec) or is_small(spec, backend):
            return None
        if not hasattr(self._chooser.backend(backend), "prepare"):
            return None
        return self._guard.prepare(backend, spec, self._chooser, allowed, share)


_shared: weakref.WeakValueDictionary[tuple[str, GuidedConfig], GrammarCompiler] = (
    weakref.WeakValueDictionary()
)
_shared_lock = threading.Lock()


def shared_compiler(vocabulary: Vocabulary, config: GuidedConfig | None = None) -> GrammarCompiler:
    """The one compiler of this process for a vocabulary, kept while it is used."""
    key = (vocabulary.fingerprint, config or GuidedConfig.from_environment())
    with _shared_lock:
        compiler = _shared.get(key)
        if compiler is None:
            compiler = _shared[key] = GrammarCompiler(vocabulary, config=key[1])
        return compiler
