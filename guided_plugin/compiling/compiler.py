"""One compiler per tokenizer, shared by all requests and threads. Touches backends and lowerings.

Specs compile once: identical ones that arrive together wait for the first, and the results stay in a
cache bounded in bytes. What failed is not cached, but for specs that went over a limit: those are
refused at once when they come again. All but small specs compile in helper processes (guard.py).
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass

from guided_plugin.compiling.background import Background
from guided_plugin.compiling.chooser import Candidate, Chooser
from guided_plugin.compiling.guard import Allowance, CompileGuard
from guided_plugin.compiling.limits import check_limits, is_small
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import CompileLimitError, GrammarError, GuidedError
from guided_plugin.grammar.base import Backend, Grammar, Prepared
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec, language_of

__all__ = ["CacheStatistics", "GrammarCompiler", "shared_compiler"]

_MAX_REFUSED = 1024
"""Specs that went over a limit are remembered, so many of them."""

_MAX_TRUSTED = 4096
"""Specs that compiled in another process are remembered, so many of them."""

_QUARANTINE_SECONDS = 600.0
"""For how long a spec is refused whose masks took too long."""


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """What the cache did so far and holds now."""

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
        self.config = config or GuidedConfig()
        self.plugins = plugins or Plugins(disabled=self.config.disabled_plugins)
        self._chooser = Chooser(vocabulary, self.config, self.plugins)
        self._guard = CompileGuard(vocabulary, self.config, self.plugins)
        weakref.finalize(self, self._guard.close)
        self._background: Background[Grammar] = Background()
        self._lock = threading.Lock()
        self._cache: OrderedDict[OutputSpec, Grammar] = OrderedDict()
        self._running: dict[OutputSpec, Future[Grammar]] = {}
        self._refused: OrderedDict[OutputSpec, GrammarError] = OrderedDict()
        self._trusted: OrderedDict[OutputSpec, None] = OrderedDict()
        self._quarantined: OrderedDict[OutputSpec, tuple[float, GrammarError]] = OrderedDict()
        self._size = self._hits = self._misses = self._waits = self._evictions = 0

    def start(self) -> None:
        """Start a helper process in the background, so that the first large spec doesn't wait for it."""
        if self.config.isolate_compiles:
            first = self._chooser.candidates(OutputSpec.json_schema({}))[0]
            self._guard.start(first.backend)

    def warm_up(self, name: str) -> None:
        """Have a backend build what it needs of the vocabulary, before anybody waits for that."""
        with contextlib.suppress(GrammarError):  # choices may not be among what it takes
            self.compile(OutputSpec.choice(["a"], backend=name))
        self._chooser.warm_up(name)

    def close(self) -> None:
        """End the helper processes; what they are at fails. Grammars in the cache are still given out."""
        self._guard.close()

    def trust(self, spec: OutputSpec) -> None:
        """A spec has compiled within the limits in another process: here it needs no helper process."""
        with self._lock:
            self._trusted[language_of(spec)] = None
            while len(self._trusted) > _MAX_TRUSTED:
                self._trusted.popitem(last=False)

    def trusts(self, spec: OutputSpec) -> bool:
        """Whether a spec has compiled within the limits, as far as this compiler was told."""
        return language_of(spec) in self._trusted

    def compile_async(self, spec: OutputSpec) -> Future[Grammar]:
        """The same in the background. Never blocks, and the future can be cancelled until it runs."""
        return self._background.submit(lambda: self.compile(spec))

    def compile(self, spec: OutputSpec) -> Grammar:
        """The grammar of a spec; from any thread. Raises a GrammarError or PluginError."""
        key = language_of(spec)
        with self._lock:
            cached = self._look_up(key)
            if cached is not None:
                return cached
            refused = self._refusal(key)
            if refused is not None:
                # A copy: one that many raise would gather the traceback of each.
                raise copy.copy(refused)
            running = self._running.get(key)
            if running is None:
                mine: Future[Grammar] = Future()
                self._running[key] = mine
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
            self._keep(key, grammar)
        mine.set_result(grammar)
        return grammar

    def cached(self, spec: OutputSpec) -> Grammar | None:
        """The grammar of a spec if it is there; never waits for a compile."""
        with self._lock:
            return self._look_up(language_of(spec))

    def quarantine(self, spec: OutputSpec, error: GuidedError) -> None:
        """Refuse a spec for some minutes: `error` says what its requests cost."""
        refusal = CompileLimitError(f"is refused for now: {error.what}", where=spec.kind, hint=error.hint)
        key = language_of(spec)
        with self._lock:
            dropped = self._cache.pop(key, None)
            self._size -= dropped.size_bytes if dropped is not None else 0
            self._quarantined[key] = time.monotonic() + _QUARANTINE_SECONDS, refusal
            while len(self._quarantined) > _MAX_REFUSED:
                self._quarantined.popitem(last=False)

    def quarantined(self, spec: OutputSpec) -> GrammarError | None:
        """Why a spec is refused because of what its requests cost, if it is."""
        if not self._quarantined:
            return None
        with self._lock:
            return self._in_quarantine(language_of(spec))

    def backend(self, name: str) -> Backend:
        """A backend by name, made at first use."""
        return self._chooser.backend(name)

    def pace(self, seconds: float) -> None:
        """Tell the backends how far apart steps come, where nobody waits for masks meanwhile."""
        self._chooser.pace(seconds)

    def cache_statistics(self) -> CacheStatistics:
        """Counters since start, and what the cache holds now."""
        with self._lock:
            return CacheStatistics(
                hits=self._hits,
                misses=self._misses,
                waits=self._waits,
                evictions=self._evictions,
                entries=len(self._cache),
                size_bytes=self._size,
                limit_bytes=self.config.cache_bytes,
            )

    def _refusal(self, key: OutputSpec) -> GrammarError | None:
        """Why a spec is refused unseen."""
        refused = self._refused.get(key)
        if refused is not None:
            self._refused.move_to_end(key)
        return refused or self._in_quarantine(key)

    def _in_quarantine(self, key: OutputSpec) -> GrammarError | None:
        until, error = self._quarantined.get(key, (0.0, None))
        if error is not None and time.monotonic() >= until:
            del self._quarantined[key]
            return None
        return copy.copy(error)

    def _look_up(self, key: OutputSpec) -> Grammar | None:
        grammar = self._cache.get(key)
        if grammar is not None:
            self._cache.move_to_end(key)
            self._hits += 1
        return grammar

    def _compile(self, spec: OutputSpec) -> Grammar:
        check_limits(spec, self.config)
        allowed = Allowance(self.config.compile_seconds)
        left = len(self._chooser.candidates(spec))
        over_limit = False

        def make(candidate: Candidate) -> Grammar:
            nonlocal left, over_limit
            # The last one gets all the time there is, those before it leave it half.
            share = 1.0 if left == 1 else 0.5
            left -= 1
            try:
                prepared = self._isolated(candidate, spec, allowed, share)
            except CompileLimitError:
                over_limit = True
                raise
            if prepared is not None:
                return self._chooser.load(prepared)
            return self._chooser.compile(candidate, spec)

        try:
            return self._chooser.first(spec, make)
        except GrammarError as error:
            if over_limit:
                self._remember(spec, error)
            raise

    def _isolated(
        self, candidate: Candidate, spec: OutputSpec, allowed: Allowance, share: float
    ) -> Prepared | None:
        """A spec prepared by a helper process; None where it may, or must, compile in this one."""
        if not self.config.isolate_compiles or spec in self._trusted or is_small(spec, candidate.backend):
            return None
        if not hasattr(self._chooser.backend(candidate.backend), "prepare"):
            return None
        return self._guard.prepare(candidate, spec, self._chooser, allowed, share)

    def _remember(self, spec: OutputSpec, error: GrammarError) -> None:
        """A spec that went over a limit would do so again."""
        with self._lock:
            self._refused[spec] = copy.copy(error)
            while len(self._refused) > _MAX_REFUSED:
                self._refused.popitem(last=False)

    def _keep(self, key: OutputSpec, grammar: Grammar) -> None:
        limit = self.config.cache_bytes
        if grammar.size_bytes > limit:
            return
        self._cache[key] = grammar
        self._size += grammar.size_bytes
        while self._size > limit:
            _, oldest = self._cache.popitem(last=False)
            self._size -= oldest.size_bytes
            self._evictions += 1


_shared: weakref.WeakValueDictionary[tuple[str, GuidedConfig], GrammarCompiler] = (
    weakref.WeakValueDictionary()
)
_shared_lock = threading.Lock()


def shared_compiler(vocabulary: Vocabulary, config: GuidedConfig | None = None) -> GrammarCompiler:
    """The one compiler of this process for a vocabulary, kept as long as anybody uses it."""
    key = (vocabulary.fingerprint, config or GuidedConfig())
    with _shared_lock:
        compiler = _shared.get(key)
        if compiler is None:
            compiler = _shared[key] = GrammarCompiler(vocabulary, config=key[1])
        return compiler
