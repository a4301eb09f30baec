"""The xgrammar backend, and the plugin that offers it: the only file that depends on
xgrammar.

It takes EBNF, which llguidance does not read. xgrammar, and torch with it, is imported
when the backend is made. It asks torch for GPUs, after which no process that is forked
could use them, but for PYTORCH_NVML_BASED_CUDA_CHECK, which vLLM and `ipc.template` set.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import (
    GrammarError,
    MissingPackageError,
    UnsatisfiableSpecError,
)
from guided_plugin.grammar.base import (
    BackendFactory,
    Grammar,
    MaskArray,
    Matcher,
    Prepared,
    token_bit,
)
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.ebnf import client_ebnf, exact_ebnf
from guided_plugin.hookspecs import hookimpl
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.memo import texts_bytes

_LOCATION = re.compile(
    r"^\[[\d:]+\] \S+?:\d+: (?:Check failed: \(.*?\) is false: (?=\S))?"
)
_EBNF = re.compile(r"^EBNF (?:parser|lexer) error at line (\d+), column (\d+): ")
_HINTS = (
    (
        "unexpected character",
        'for a Lark grammar say syntax="lark"; docs/specs.md describes the EBNF syntax',
    ),
    (
        "root rule",
        'the rule of the whole output is named `root`, as in root ::= "text"',
    ),
    ("is not defined", "define it on a line of its own: name ::= ..."),
    ("string literal", "close the text with a double quote on the same line"),
    (
        "character class",
        "write the smaller character first, and close the class with ]",
    ),
    ("lower bound is larger", "lower the minimum or raise the maximum"),
)


@hookimpl
def register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Offer this backend as `xgrammar`."""
    register("xgrammar", XGrammarBackend)


class XGrammarBackend:
    """A `Backend` that compiles and matches with xgrammar."""

    name = "xgrammar"
    languages = frozenset({"ebnf"})

    def __init__(self, vocabulary: Vocabulary, config: GuidedConfig) -> None:
        try:
            import xgrammar
        except ModuleNotFoundError as error:
            raise MissingPackageError.of(error, "EBNF") from error
        self._xgr: Any = xgrammar
        self._vocabulary = vocabulary
        info = self._xgr.TokenizerInfo(
            list(vocabulary.text_tokens),
            self._xgr.VocabType.RAW,
            # Up to the end of the last mask word: xgrammar would set the bits there
            # that belong to no token.
            vocab_size=32 * vocabulary.words,
            # Each matcher gets its own. xgrammar would still accept those given here,
            # as empty text.
            stop_token_ids=[],
        )
        # The package's GrammarCompiler caches for all backends, with one bound.
        self._compiler = self._xgr.GrammarCompiler(
            info, max_threads=config.thread_count(), cache_enabled=False
        )

    def compile(self, spec: OutputSpec) -> Grammar:
        start = time.perf_counter()
        try:
            compiled = self._compile(spec)
        except (GrammarError, MemoryError):
            raise
        except Exception as error:
            if "bad_alloc" in str(error):
                raise MemoryError(str(error)) from error
            raise _complaint(str(error), spec) from error
        size = int(compiled.memory_size_bytes) + texts_bytes(spec.text)
        seconds = time.perf_counter() - start
        grammar = Grammar(spec, self.name, compiled, size, seconds)
        self._check_satisfiable(grammar)
        return grammar

    def prepare(self, spec: OutputSpec) -> Prepared:
        """Compile the spec under the limits of a helper: as data, what it made takes
        too long to read."""
        self.compile(spec)
        return Prepared(spec, self.name, None)

    def load(self, prepared: Prepared) -> Grammar:
        """Compile again."""
        return self.compile(prepared.spec)

    def _compile(self, spec: OutputSpec) -> Any:
        read = self._xgr.Grammar.from_ebnf
        text = client_ebnf(spec.text)
        read(text)  # its errors have places in the client's text
        return self._compiler.compile_grammar(read(exact_ebnf(text)))

    def _check_satisfiable(self, grammar: Grammar) -> None:
        """Refuse a grammar that derives nothing: xgrammar compiles it, and no token
        would ever be allowed."""
        mask = np.zeros((1, self._vocabulary.words), np.int32)
        matcher = self.start(grammar, self._vocabulary.stop_token_ids)
        matcher.handle.fill_next_token_bitmask(mask)
        if not mask.any():
            raise UnsatisfiableSpecError(
                "allows no output at all",
                where=grammar.spec.kind,
                hint="look for an endless recursion, or for parts that contradict each other",
            )

    def start(
        self, grammar: Grammar, stop_token_ids: tuple[int, ...]
    ) -> XGrammarMatcher:
        handle = self._xgr.GrammarMatcher(
            grammar.handle,
            override_stop_tokens=list(stop_token_ids),
        )
        texts = self._vocabulary.text_tokens
        with_text = tuple(token for token in stop_token_ids if texts[token])
        return XGrammarMatcher(handle, with_text)

    def batch(self, matchers: Sequence[Matcher]) -> XGrammarBatch:
        return XGrammarBatch([cast("XGrammarMatcher", one) for one in matchers])


@dataclass(slots=True, eq=False)
class XGrammarMatcher:
    """A `Matcher` around one of xgrammar's."""

    handle: Any
    stops_with_text: tuple[int, ...]
    """Stop tokens whose text the grammar may have. From 0.2.9 on xgrammar takes one
    whose text completes the output. Hosts leave out the text of stop tokens, so the
    output must be complete before."""

    def accept(self, token: int) -> bool:
        if token in self.stops_with_text and not self.complete:
            return False
        return bool(self.handle.accept_token(token))

    def accept_text(self, text: bytes) -> bool:
        return bool(self.handle.accept_string(text))

    def fork(self) -> XGrammarMatcher:
        return XGrammarMatcher(self.handle.fork(), self.stops_with_text)

    @property
    def complete(self) -> bool:
        return bool(self.handle.is_completed())

    def fill(self, mask: MaskArray, row: int) -> None:
        self.handle.fill_next_token_bitmask(mask, row)
        if self.stops_with_text and not self.complete:
            for token in self.stops_with_text:
                mask[row, token // 32] &= ~token_bit(token)


@dataclass(slots=True, eq=False)
class XGrammarBatch:
    """A `MatcherBatch` of xgrammar's matchers, one after the other: most batches have
    one."""

    _matchers: list[XGrammarMatcher]

    def accept(self, tokens: list[int]) -> list[bool]:
        return [
            one.accept(token) for one, token in zip(self._matchers, tokens, strict=True)
        ]

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        for matcher, row in zip(self._matchers, rows, strict=True):
            matcher.fill(mask, row)


def _complaint(message: str, spec: OutputSpec) -> GrammarError:
    """The error of a spec that xgrammar refuses: it names a C++ file and, in EBNF, a
    place."""
    lines = message.strip().splitlines()
    text = _LOCATION.sub("", lines[0]) if lines else "no reason given"
    ebnf = _EBNF.match(text)
    where: str = spec.kind
    if ebnf is not None:
        text = text[ebnf.end() :]
        where = f"{spec.kind}, line {ebnf[1]}, column {ebnf[2]}"
    hints = (hint for part, hint in _HINTS if part in text.lower())
    return GrammarError(
        text, where=where, hint=next(hints, "docs/specs.md describes the syntax")
    )
