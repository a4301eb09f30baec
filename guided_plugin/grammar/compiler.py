"""One compiler per tokenizer, shared by all requests and threads. Touches backends and lowerings.

Specs compile once: identical ones that arrive together wait for the first, and the results stay in a
cache bounded in bytes. What failed is not cached here; it costs its request the same error again.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import weakref
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GrammarError, GuidedError
from guided_plugin.grammar.base import Backend, Grammar
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

__all__ = ["CacheStatistics", "GrammarCompiler", "shared_compiler"]

_log = logging.getLogger(__name__)


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
        self._lock = threading.Lock()
        self._backends: dict[str, Backend] = {}
        self._cache: OrderedDict[OutputSpec, Grammar] = OrderedDict()
        self._running: dict[OutputSpec, Future[Grammar]] = {}
        self._size = self._hits = self._misses = self._waits = self._evictions = 0

    def compile(self, spec: OutputSpec) -> Grammar:
        """The grammar of a spec; from any thread. Raises a GrammarError or PluginError."""
        key = _language(spec)
        with self._lock:
            cached = self._cache.get(key)
            if cached is not None:
                self._cache.move_to_end(key)
                self._hits += 1
                return cached
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

    def backend(self, name: str) -> Backend:
        """A backend by name, made at first use."""
        with self._lock:
            backend = self._backends.get(name)
        if backend is None:
            made = self.plugins.backend(name)(self.vocabulary, self.config)
            with self._lock:
                backend = self._backends.setdefault(name, made)
        return backend

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

    def _compile(self, spec: OutputSpec) -> Grammar:
        for lower in self.plugins.lowerings.values():
            spec = lower(spec)
        wanted = spec.backend if spec.backend != "auto" else self.config.backend
        candidates = [wanted] if wanted != "auto" else _by_cost(spec, list(self.plugins.backends))
        refusals: list[GuidedError] = []
        for name in candidates:
            start = time.perf_counter()
            try:
                grammar = self.backend(name).compile(spec)
            except GrammarError as error:
                _log.debug("%s refused %s: %s", name, spec.summary(), error)
                refusals.append(error)
            else:
                _log.debug("%s took %s in %.4f s", name, spec.summary(), time.perf_counter() - start)
                return grammar
        if not refusals:
            raise GrammarError("no backend is registered", hint="enable the plugin `xgrammar`")
        raise refusals[0]

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


def _by_cost(spec: OutputSpec, backends: list[str]) -> list[str]:
    """The backends in the order in which they are tried for a spec.

    As registered, but for JSON schemas: there llguidance enforces more, compiles in milliseconds where
    xgrammar may take seconds, and its slowest masks are 20 times faster (docs/benchmarks).
    """
    if spec.kind == "json_schema" and "llguidance" in backends:
        return ["llguidance", *(name for name in backends if name != "llguidance")]
    return backends


def _language(spec: OutputSpec) -> OutputSpec:
    """The part of a spec that decides its grammar; the rest belongs to each request."""
    return dataclasses.replace(spec, stop_token_ids=None, start_after=None)


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
