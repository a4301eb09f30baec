"""The xgrammar backend, and the plugin that offers it: the only file that depends on xgrammar.

xgrammar drops some keywords with a line on stderr and reports every failure as a RuntimeError with a C++
location in front. Here the former are refused and the latter become a GrammarError.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import CompileLimitError, GrammarError, UnsatisfiableSpecError, shown
from guided_plugin.grammar.base import BackendFactory, Grammar, MaskArray, Matcher, Prepared
from guided_plugin.grammar.threads import AdaptiveThreads
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.complaints import complaint
from guided_plugin.grammar.xgrammar.ebnf import readable_ebnf
from guided_plugin.grammar.xgrammar.patterns import with_expressions, without_surrogates
from guided_plugin.grammar.xgrammar.schema import prepared_schema, regex_text
from guided_plugin.grammar.xgrammar.tags import tag_source, tag_texts
from guided_plugin.hookspecs import hookimpl
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.memo import texts_bytes

# A compiled grammar as text is two to seventy times its size: little where its masks took long, much where it
# has many rules. So it is sent where a megabyte of it took so many processor seconds to compile
# (docs/decisions/compiling.md#what-crosses-from-a-compile-helper).
_MOVABLE_MB = 16.0
_SECONDS_PER_MB = 0.25
# A character of a string with length bounds, as xgrammar writes its rule and as JSON has it. A text from a
# schema can't look the same: in a grammar its backslashes are doubled.
_BOUNDED = r"[^\"\\\r\n]"
_BOUNDED_JSON = r"[^\0-\x1f\"\\\r\n]"
# In the rule for further names of an object, xgrammar leaves out those of `properties` as they are written.
# With escapes a name could be written so that the rule doesn't recognize it.
_KEY_RULE = re.compile(r'(?m)^(\w*_addl_key_\d+ ::= .*?) \| \("\\\\" basic_escape basic_string_sub\)')
# Written out, because xgrammar's own rule for any value writes ", " whatever the separators are.
_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_ANY_OBJECT = json.dumps(
    {
        "$ref": "#/$defs/object",
        "$defs": {
            "object": {"type": "object", "additionalProperties": {"$ref": "#/$defs/value"}},
            "array": {"type": "array", "items": {"$ref": "#/$defs/value"}},
            "value": {"anyOf": [_SCALAR, {"$ref": "#/$defs/object"}, {"$ref": "#/$defs/array"}]},
        },
    }
)


@hookimpl
def register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Offer this backend as `xgrammar`."""
    register("xgrammar", XGrammarBackend)


_LOADING = threading.Lock()
"""Held while the environment is changed for it."""


def _loaded() -> Any:
    """xgrammar. What it imports asks torch whether there is CUDA, after which no process that is forked from
    this one can use CUDA: vLLM's engine, for one. With this variable torch asks the driver's library."""
    asks_nvml = "PYTORCH_NVML_BASED_CUDA_CHECK"
    with _LOADING:
        before = os.environ.get(asks_nvml)
        os.environ[asks_nvml] = "1"
        try:
            import xgrammar
        finally:
            del os.environ[asks_nvml]
            if before is not None:
                os.environ[asks_nvml] = before
    return xgrammar


class XGrammarBackend:
    """A `Backend` that compiles and matches with xgrammar."""

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary, config: GuidedConfig) -> None:
        self._xgr = _loaded()
        self._vocabulary = vocabulary
        self._threads = config.thread_count()
        self.abandon_threads()

    def abandon_threads(self) -> None:
        """Use new threads from now on: the old ones are still in an abandoned call."""
        self._executors: AdaptiveThreads[Any] = AdaptiveThreads(
            lambda threads: self._xgr.BatchGrammarMatcher(max_threads=threads), self._threads
        )
        # Pipelines of one compiler may run in several threads; these threads serve one call at a time.
        self._turn = threading.Lock()

    @cached_property
    def _compiler(self) -> Any:
        return self._make_compiler(self._info)

    @cached_property
    def _tag_compiler(self) -> Any:
        return self._make_compiler(self._tag_info)

    @cached_property
    def _info(self) -> Any:
        return self._make_info(self._vocabulary.text_tokens)

    @cached_property
    def _tag_info(self) -> Any:
        return self._make_info(self._tag_tokens)

    @cached_property
    def _tag_tokens(self) -> tuple[bytes, ...]:
        # Tool-call markers are often control tokens: structural tags may name them.
        stops = set(self._vocabulary.stop_token_ids)
        return tuple(b"" if i in stops else token for i, token in enumerate(self._vocabulary.tokens))

    def _make_info(self, tokens: tuple[bytes, ...]) -> Any:
        return self._xgr.TokenizerInfo(
            list(tokens),
            self._xgr.VocabType.RAW,
            # Up to the end of the last mask word: xgrammar would set the bits there that belong to no token.
            vocab_size=32 * self._vocabulary.words,
            # Each matcher gets its own. xgrammar would still accept those given here, as empty text.
            stop_token_ids=[],
        )

    def _make_compiler(self, info: Any) -> Any:
        # The package's GrammarCompiler caches for all backends, with one bound.
        return self._xgr.GrammarCompiler(info, max_threads=self._threads, cache_enabled=False)

    def compile(self, spec: OutputSpec) -> Grammar:
        """Compile a spec, or raise a GrammarError."""
        start = time.perf_counter()
        try:
            compiled = self._compile(spec)
        except (GrammarError, MemoryError):
            raise
        except RecursionError:
            what = "is nested too deep for xgrammar"
            raise CompileLimitError(what, where=spec.kind, hint="flatten it") from None
        except Exception as error:
            if "bad_alloc" in str(error):
                raise MemoryError(str(error)) from error
            raise complaint(str(error), spec) from error
        grammar = self._grammar(spec, compiled, time.perf_counter() - start)
        self._check_satisfiable(grammar)
        return grammar

    def prepare(self, spec: OutputSpec) -> Prepared:
        """Compile the spec; the result is sent along where reading it takes less time than compiling."""
        start = time.process_time()
        grammar = self.compile(spec)
        seconds = time.process_time() - start
        megabytes = grammar.size_bytes / 1e6
        if megabytes > _MOVABLE_MB or seconds < megabytes * _SECONDS_PER_MB:
            return Prepared(spec, self.name, None)
        text = grammar.handle.grammar.serialize_json()
        return Prepared(spec, self.name, zlib.compress(text.encode(), level=1))

    def load(self, prepared: Prepared) -> Grammar:
        """Read the compiled grammar, or compile again."""
        if prepared.payload is None:
            return self.compile(prepared.spec)
        start = time.perf_counter()
        info = self._tag_info if prepared.spec.kind == "structural_tag" else self._info
        text = zlib.decompress(cast("bytes", prepared.payload)).decode()
        compiled = self._xgr.CompiledGrammar.deserialize_json(text, info)
        return self._grammar(prepared.spec, compiled, time.perf_counter() - start)

    def _grammar(self, spec: OutputSpec, compiled: Any, seconds: float) -> Grammar:
        size = int(compiled.memory_size_bytes) + texts_bytes(spec.text)
        # A list of texts can't be ambiguous, and the grammar of any object is the one above.
        bounded = spec.kind in ("choice", "json_object")
        handle = _Compiled(compiled, self._named_only(spec) if spec.kind == "structural_tag" else None)
        return Grammar(spec, self.name, handle, size, seconds, bounded=bounded)

    def _named_only(self, spec: OutputSpec) -> MaskArray | None:
        """The tokens of a structural tag: all but the control tokens that it doesn't name."""
        vocabulary = self._vocabulary
        named = b"\n".join(text.encode(errors="replace") for text in tag_texts(spec))
        unnamed = [
            token
            for token in vocabulary.special_ids.difference(vocabulary.stop_token_ids)
            if not vocabulary.tokens[token] or vocabulary.tokens[token] not in named
        ]
        if not unnamed:
            return None
        bits = np.ones(32 * vocabulary.words, np.uint8)
        bits[unnamed] = 0
        return np.packbits(bits, bitorder="little").view(np.int32)

    def _compile(self, spec: OutputSpec) -> Any:
        compact: dict[str, Any] = {"any_whitespace": False, "separators": (",", ":")}
        layout = compact if spec.whitespace == "compact" else {"any_whitespace": True}
        grammars = self._xgr.Grammar
        if spec.kind == "json_schema":
            schema = json.dumps(prepared_schema(spec.document(), strict=spec.strict), separators=(",", ":"))
            return self._repaired(grammars.from_json_schema(schema, strict_mode=spec.strict, **layout))
        if spec.kind == "json_object":
            return self._repaired(grammars.from_json_schema(_ANY_OBJECT, strict_mode=True, **layout))
        if spec.kind == "regex":
            return self._repaired(grammars.from_regex(regex_text(spec.text, "regex")))
        if spec.kind == "choice":
            choices = " | ".join(_ebnf_literal(choice) for choice in spec.document())
            return self._compiler.compile_grammar(f"root ::= {choices}")
        if spec.kind == "structural_tag":
            read = grammars.from_structural_tag
            source = tag_source(spec, self._tag_tokens, lambda text: str(read(text)))
            return self._tag_compiler.compile_grammar(_repaired(source))
        if spec.syntax == "lark":
            return self._repaired(grammars.from_lark(spec.text))
        return self._repaired(grammars.from_ebnf(readable_ebnf(spec.text)))

    def _repaired(self, grammar: Any) -> Any:
        return self._compiler.compile_grammar(_repaired(str(grammar)))

    def _check_satisfiable(self, grammar: Grammar) -> None:
        """Refuse a grammar that derives nothing: xgrammar compiles it, and no token would ever be allowed."""
        mask = np.zeros((1, self._vocabulary.words), np.int32)
        matcher = self.start(grammar, self._vocabulary.stop_token_ids)
        matcher.handle.fill_next_token_bitmask(mask)
        if not mask.any():
            raise UnsatisfiableSpecError(
                "allows no output at all",
                where=grammar.spec.kind,
                hint="look for an endless recursion, or for parts that contradict each other",
            )

    def start(self, grammar: Grammar, stop_token_ids: tuple[int, ...]) -> XGrammarMatcher:
        """A matcher at the beginning."""
        stops = list(stop_token_ids)
        compiled: _Compiled = grammar.handle
        handle = self._xgr.GrammarMatcher(compiled.grammar, override_stop_tokens=stops)
        return XGrammarMatcher(handle, compiled.tokens)

    def pace(self, seconds: float) -> None:
        """Adapt the number of threads to the time between two steps."""
        self._executors.pace(seconds)

    def batch(self, matchers: Sequence[Matcher]) -> XGrammarBatch:
        """A batch of matchers of this backend."""
        return XGrammarBatch(self._executors, self._turn, [cast("XGrammarMatcher", m) for m in matchers])


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The handle of a `Grammar` of this backend."""

    grammar: Any
    tokens: MaskArray | None
    """[words] int32: the tokens that the grammar may use anywhere; None: all of them."""


class XGrammarMatcher:
    """A `Matcher` around one of xgrammar's."""

    __slots__ = ("handle", "tokens")

    def __init__(self, handle: Any, tokens: MaskArray | None) -> None:
        self.handle = handle
        self.tokens = tokens
        """[words] int32: the tokens that its grammar may use anywhere; None: all of them."""

    def accept(self, token: int) -> bool:
        """Move past a token."""
        return bool(self.handle.accept_token(token))

    def accept_text(self, text: bytes) -> bool:
        """Move past bytes."""
        return bool(self.handle.accept_string(text))

    def rollback(self, tokens: int) -> None:
        """Undo the last tokens."""
        self.handle.rollback(tokens)

    def fork(self) -> XGrammarMatcher:
        """An independent matcher in the same position."""
        return XGrammarMatcher(self.handle.fork(), self.tokens)

    @property
    def complete(self) -> bool:
        """Whether what was accepted so far is a whole output."""
        return bool(self.handle.is_completed())


class XGrammarBatch:
    """A `MatcherBatch` that xgrammar works on in its own threads."""

    __slots__ = ("_executors", "_handles", "_tokens", "_turn")

    def __init__(
        self, executors: AdaptiveThreads[Any], turn: threading.Lock, matchers: list[XGrammarMatcher]
    ) -> None:
        self._executors = executors
        self._turn = turn
        self._handles = [matcher.handle for matcher in matchers]
        self._tokens = [(i, m.tokens) for i, m in enumerate(matchers) if m.tokens is not None]

    def accept(self, tokens: list[int]) -> list[bool]:
        """Move each matcher past its token."""
        if len(tokens) == 1:
            return [bool(self._handles[0].accept_token(tokens[0]))]
        with self._turn:
            start = time.perf_counter()
            verdicts = cast("list[bool]", self._executors.executor.batch_accept_token(self._handles, tokens))
            self._executors.accepted(time.perf_counter() - start)
            return verdicts

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        """Write the mask of matcher i into mask[rows[i]]."""
        if len(rows) == 1:
            self._handles[0].fill_next_token_bitmask(mask, rows[0])
        else:
            with self._turn:
                start = time.perf_counter()
                self._executors.executor.batch_fill_next_token_bitmask(self._handles, mask, rows)
                self._executors.took(time.perf_counter() - start)
        for i, tokens in self._tokens:
            mask[rows[i]] &= tokens


def _repaired(source: str) -> str:
    """A grammar as xgrammar prints it, without the texts that it lets through beyond those that it should.

    They are raw control characters in bounded strings, other spellings of names, and surrogates.
    """
    source = _KEY_RULE.sub(r"\1", source.replace(_BOUNDED, _BOUNDED_JSON))
    return with_expressions(without_surrogates(source))


def _ebnf_literal(text: str) -> str:
    """An EBNF string literal, with an escape for every character outside plain ASCII."""
    if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        raise GrammarError(
            "has a lone surrogate, which no text can hold",
            where=f"choice {shown(text)}",
            hint="leave the surrogate out, or write the character as a pair",
        )
    return '"' + "".join(_ebnf_character(character) for character in text) + '"'


def _ebnf_character(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if " " <= character <= "~":
        return character
    return f"\\U{ord(character):08x}" if ord(character) > 0xFFFF else f"\\u{ord(character):04x}"
