"""The llguidance backend, and the plugin that registers it.

Compiles in milliseconds, enforces more of JSON Schema than xgrammar and refuses what it can't. Its
matchers never raise for a grammar's or a token's fault: they go into an error state, which is read here after
compiling, filling and going back.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GrammarError, UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.base import BackendFactory, Grammar, MaskArray, Matcher, Prepared
from guided_plugin.grammar.llguidance.lark import lowering_pays, schema_to_lark
from guided_plugin.grammar.llguidance.lexers import LexerPool, Lexers, Share
from guided_plugin.grammar.threads import AdaptiveThreads
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hookspecs import hookimpl
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.regexes import refuse_unsupported
from guided_plugin.spec.schema import pointer, walk

__all__ = ["LLGuidanceBackend"]

# Without this, where the grammar leaves one text only, llguidance allows one spelling of it alone: the first
# token of its own tokenization. A model must be free to take any token that fits.
_HEADER = '%llguidance {"no_forcing": true}\n'

# An object of n optional properties needs n items in a row: its own limit of 2,000 would end such requests in
# the middle. A mask of so many takes 10 ms. What quotes grammars in errors may quote a client's schema.
# Patterns that meet length bounds need fuel: with the limit of 200,000 requests end that work with this one.
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 8_000,
    "step_max_items": 100_000,
    "initial_lexer_fuel": 3_000_000,
    "step_lexer_fuel": 1_000_000,
    "verbose_errors": False,
}

# Grammars that clients write may be ambiguous: a mask then costs the square of the items in a row. With these
# limits a mask of the worst takes 70 ms, with those above 700. A rule may call itself 500 times at its end.
_CLIENT_ITEMS = 500

# A grammar of 20,000 characters takes up to 60 ms (nearly all of MaskBench's), one of 100,000 240.
_QUICK_CHARACTERS = 20_000

# Tokens whose masks are kept ready: where a state allows all of a slice, they are not walked through. Its own
# slices of strings end at 10, 30 and any length. Finer ones pay near the end of a bounded string (a fifth of
# the mean mask, two fifths of the 99th percentile), but each new state costs more: for what many use.
_FINE_SLICES = [r"[\x20\x0A\x0D\x09]+"]
_FINE_SLICES += [rf'[^"\\\x00-\x1F\x7F]{{1,{most}}}' for most in (2, 4, 8, 16, 30)]
_FINE_SLICES += [r'[^"\\\x00-\x1F\x7F]+']

# In front of the name of a control token, as llguidance keeps it.
_MARKER = b"\xff"

# A control token's name that a Lark grammar can write. Names with a space are those made here.
_NAME = re.compile(rb"<[^\s<>\xff]+>")

# Most masks show one of the tokens in these words.
_HEAD_WORDS = 64

# So many tokens are accepted sooner in this thread, which keeps the GIL, than others are woken up for them:
# each takes 5 us. (Masks let go of the GIL, and beside a busy thread each of them would wait for it.)
_FEW = 32

# What a grammar's symbols and lexer cost is not reported: a rough size for the cache's bound.
_BYTES_PER_CHARACTER = 400


@hookimpl
def register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Register this backend as `llguidance`."""
    register("llguidance", LLGuidanceBackend)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What a grammar's matchers start from."""

    lexers: Lexers
    impossible_token: int | None
    """See `LLGuidanceMatcher.impossible_token`."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to write a spec for llguidance."""

    source: Callable[[], str]
    reason: str


class LLGuidanceBackend:
    """See `Backend`."""

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary, config: GuidedConfig) -> None:
        import llguidance

        self._ll = llguidance
        self._vocabulary = vocabulary
        self._unenforced = config.unenforced_keywords
        self._limits = llguidance.LLParserLimits(**_LIMITS)
        self._client_limits = llguidance.LLParserLimits(**_LIMITS | {"max_items_in_row": _CLIENT_ITEMS})
        self._threads = config.thread_count()
        self._executors: AdaptiveThreads[Any] = AdaptiveThreads(llguidance.LLExecutor, self._threads)
        self._lexers = LexerPool(self._threads)
        self._building = threading.Lock()
        """Tokenizers are made once: it takes long, and all other threads stand still."""

    @property
    def _tokenizer(self) -> Any:
        with self._building:
            return self._plain_tokenizer

    @property
    def _fine_tokenizer(self) -> Any:
        with self._building:
            return self._sliced_tokenizer

    @cached_property
    def _plain_tokenizer(self) -> Any:
        wrapper = self._ll.TokenizerWrapper(_Tokens(self._vocabulary))
        stops = list(self._vocabulary.stop_token_ids)
        return self._ll.LLTokenizer(wrapper, eos_token=stops)

    @cached_property
    def _sliced_tokenizer(self) -> Any:
        return self._plain_tokenizer.with_slices(_FINE_SLICES)

    @cached_property
    def _first_texts(self) -> NDArray[np.int32]:
        """Bits of the first tokens, without those that end an output."""
        bits = np.ones(32 * min(_HEAD_WORDS, self._vocabulary.words), np.uint8)
        bits[[token for token in self._vocabulary.special_ids if token < len(bits)]] = 0
        return np.packbits(bits, bitorder="little").view(np.int32)

    @cached_property
    def _impossible_token(self) -> int | None:
        """A token that no mask may show: padding, else a special token that doesn't stop."""
        if 32 * self._vocabulary.words > self._vocabulary.size:
            return self._vocabulary.size
        spare = self._vocabulary.special_ids - set(self._vocabulary.stop_token_ids)
        return max(spare, default=None)

    @cached_property
    def _keeps_names_apart(self) -> bool:
        """Whether a name of `properties` spelled with an escape is not taken for another one. Before 1.9
        llguidance limits the escapes of texts, but not those of names."""
        schema = {"properties": {"a": {"type": "integer"}}, "x-guidance": {"json_allowed_escapes": _ESCAPES}}
        source = _HEADER + "start: %json " + json.dumps(schema)
        matcher = self._ll.LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        tokens = self._tokenizer.tokenize_bytes(b'{"\\u0061":"x"}')
        return not matcher.is_error() and 0 <= matcher.validate_tokens(tokens) < len(tokens)

    def compile(self, spec: OutputSpec) -> Grammar:
        """Compile a spec, or raise a GrammarError."""
        start = time.perf_counter()
        source, base, reason = self._first_way(spec)
        return self._grammar(spec, source, base, reason, start)

    def prepare(self, spec: OutputSpec) -> Prepared:
        """The source of a grammar that was tried."""
        source, _, reason = self._first_way(spec)
        return Prepared(spec, self.name, source, reason)

    def load(self, prepared: Prepared) -> Grammar:
        """The grammar of a source."""
        start = time.perf_counter()
        source = str(prepared.payload)
        base = self._tried(prepared.spec, source)
        return self._grammar(prepared.spec, source, base, prepared.reason, start)

    def _grammar(self, spec: OutputSpec, source: str, base: Any, reason: str, start: float) -> Grammar:
        size = _BYTES_PER_CHARACTER * len(source)
        lexers = Lexers(
            base,
            # With one thread there are no others beside the first, and the finer slices may not be there.
            lambda: self._matcher(
                spec, source, self._fine_tokenizer if self._threads > 1 else self._tokenizer
            ),
            self._lexers,
            quick=len(source) <= _QUICK_CHARACTERS,
        )
        # Grammars that clients write may name any control token; those that are lowered name this one alone.
        names_it = self._impossible_token is not None and f"<[{self._impossible_token}]>" in source
        lowered = spec.kind == "json_schema" and names_it
        compiled = _Compiled(lexers, self._impossible_token if lowered else None)
        seconds = time.perf_counter() - start
        return Grammar(spec, self.name, compiled, size, seconds, reason=reason, bounded=True)

    def _first_way(self, spec: OutputSpec) -> tuple[str, Any, str]:
        """The first way that works: its source, a matcher at the beginning, and why this way."""
        refusals: list[GrammarError] = []
        for way in self._ways(spec):
            try:
                source = way.source()
                return source, self._tried(spec, source), way.reason
            except GrammarError as error:
                refusals.append(error)
        # The lowering names the keyword and its place.
        raise max(
            refusals, key=lambda error: isinstance(error, UnsupportedSpecError | UnsatisfiableSpecError)
        )

    def _matcher(self, spec: OutputSpec, source: str, tokenizer: Any) -> Any:
        limits = self._client_limits if spec.kind in ("grammar", "regex") else self._limits
        return self._ll.LLMatcher(tokenizer, source, log_level=0, limits=limits)

    def _tried(self, spec: OutputSpec, source: str) -> Any:
        """A matcher at the beginning of a grammar that allows something."""
        base = self._matcher(spec, source, self._tokenizer)
        if base.is_error():
            raise _refusal(spec, base.get_error())
        # Filling once builds the lexer's first states, and shows whether anything is allowed.
        mask = np.frombuffer(base.compute_bitmask(), np.int32)
        if base.is_error():
            raise _refusal(spec, base.get_error())
        if not mask.any():
            raise UnsatisfiableSpecError("allows no output at all", where=spec.kind)
        return base

    def _ways(self, spec: OutputSpec) -> list[_Way]:
        """How a spec may be written for llguidance, the cheapest first."""
        if spec.kind != "json_schema":
            return [_Way(lambda: self._source(spec), "")]
        document = spec.document()
        direct = _Way(lambda: self._schema_source(spec), "as a JSON schema")

        def lowered(reason: str) -> _Way:
            return _Way(lambda: self._lowered(spec, document), f"lowered to a grammar: {reason}")

        reason = lowering_pays(document)
        if reason:
            return [lowered(reason), direct]
        return [direct, lowered("llguidance doesn't take the schema as it is")]

    def _lowered(self, spec: OutputSpec, document: Any) -> str:
        return schema_to_lark(
            document,
            strict=spec.strict,
            flexible=spec.whitespace == "flexible",
            unenforced=self._unenforced,
            impossible_token=self._impossible_token,
        )

    def _schema_source(self, spec: OutputSpec) -> str:
        schema = _closed(spec)
        if schema is False:
            raise UnsatisfiableSpecError("allows no output at all", where=spec.kind)
        options: dict[str, Any] = {"whitespace_flexible": spec.whitespace == "flexible"}
        if _has_open_names(schema):
            if not self._keeps_names_apart:
                raise UnsupportedSpecError(
                    "names that are left open beside described ones are not enforced by this version",
                    where="json_schema",
                    hint="set additionalProperties to false, or use a newer llguidance",
                )
            if _CONTROL.search(json.dumps(schema, ensure_ascii=False)):
                raise UnsupportedSpecError(
                    "a control character beside names that are left open", where="json_schema"
                )
            options["json_allowed_escapes"] = _ESCAPES
        return (
            _HEADER
            + "start: %json "
            + json.dumps({**({} if schema is True else schema), "x-guidance": options})
        )

    def _source(self, spec: OutputSpec) -> str:
        if spec.kind == "json_object":
            options = {"whitespace_flexible": spec.whitespace == "flexible"}
            return _HEADER + "start: %json " + json.dumps({"type": "object", "x-guidance": options})
        if spec.kind == "regex":
            refuse_unsupported(spec.text, "regex")
            wrapped = json.loads(self._ll.LLMatcher.grammar_from_regex(spec.text))
            return _HEADER + cast("str", wrapped["grammars"][0]["lark_grammar"])
        if spec.kind == "choice":
            choices = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in spec.document())
            return f"{_HEADER}start: {choices}"
        if spec.kind == "grammar" and spec.syntax == "lark":
            return spec.text if "%llguidance" in spec.text else _HEADER + spec.text
        what = "structural tags" if spec.kind == "structural_tag" else "EBNF grammars"
        raise UnsupportedSpecError(f"{what} are not supported by llguidance", where=spec.kind)

    def start(self, grammar: Grammar, stop_token_ids: tuple[int, ...]) -> LLGuidanceMatcher:
        """A matcher at the beginning; it shares the lexer states that others have built."""
        own = stop_token_ids if set(stop_token_ids) != set(self._vocabulary.stop_token_ids) else ()
        compiled: _Compiled = grammar.handle
        handle, share = compiled.lexers.take()
        usual = self._vocabulary.stop_token_ids
        return LLGuidanceMatcher(handle, self._tokenizer, own, usual, share, compiled.impossible_token)

    def warm_up(self) -> None:
        """Cut the vocabulary into slices now: all other threads stand still for a third of a second."""
        if self._threads > 1:
            _ = self._fine_tokenizer

    def pace(self, seconds: float) -> None:
        """Steps come this far apart."""
        self._executors.pace(seconds)

    def batch(self, matchers: Sequence[Matcher]) -> LLGuidanceBatch:
        """A batch of matchers of this backend."""
        return LLGuidanceBatch(
            self._executors, [cast("LLGuidanceMatcher", m) for m in matchers], self._first_texts
        )


class LLGuidanceMatcher:
    """See `Matcher`."""

    __slots__ = ("_tokenizer", "handle", "impossible_token", "share", "stop_token_ids", "usual_stops")

    def __init__(
        self,
        handle: Any,
        tokenizer: Any,
        stop_token_ids: tuple[int, ...],
        usual_stops: tuple[int, ...],
        share: Share,
        impossible_token: int | None,
    ) -> None:
        self.handle = handle
        self.share = share
        """Of the lexer whose lock it needs."""
        self.impossible_token = impossible_token
        """A token that its grammar names and no mask may show."""
        self._tokenizer = tokenizer
        self.stop_token_ids = stop_token_ids
        """Stop tokens of this request alone; empty: the vocabulary's, which the tokenizer knows."""
        self.usual_stops = usual_stops

    def accept(self, token: int) -> bool:
        """Move past a token. After a refusal the matcher is of no use any more."""
        if self.stop_token_ids:
            if token in self.stop_token_ids:
                return bool(self.handle.is_accepting())
            if token in self.usual_stops:
                return False
        return bool(self.handle.consume_token(token))

    def accept_text(self, text: bytes) -> bool:
        """Move past bytes."""
        tokens = self._tokenizer.tokenize_bytes(text)
        if not tokens:
            return not text
        if self.handle.validate_tokens(tokens) != len(tokens):
            return False
        return bool(self.handle.consume_tokens(tokens))

    def rollback(self, tokens: int) -> None:
        """Take the last tokens back. Raises where llguidance can't: after an error, or with some lexemes."""
        if not self.handle.rollback(tokens):
            raise GrammarError(self.handle.get_error() or "tokens can't be taken back", where="llguidance")

    def fork(self) -> LLGuidanceMatcher:
        """An independent matcher in the same position."""
        return LLGuidanceMatcher(
            self.handle.deep_copy(),
            self._tokenizer,
            self.stop_token_ids,
            self.usual_stops,
            self.share,
            self.impossible_token,
        )

    @property
    def complete(self) -> bool:
        """Whether what was accepted so far is a whole output."""
        return bool(self.handle.is_accepting())

    def rebuild_shared(self) -> bool:
        """Whether its lexer is of no use any more; those that start from now on get another one."""
        return bool(self.handle.is_error()) and self.share.rebuild_shared()

    def limit(self) -> str:
        """Which limit its grammar went over; empty if none."""
        message = self.handle.get_error() if self.handle.is_error() else ""
        return _first_line(message) if _OVER_LIMIT.search(message) else ""

    def fix_stops(self, row: MaskArray) -> None:
        """Allow this request's own stop tokens where the usual ones are allowed, and not those."""
        for token in (*self.usual_stops, *self.stop_token_ids):
            row[token // 32] &= _cleared(token % 32)
        if self.handle.is_accepting():
            for token in self.stop_token_ids:
                row[token // 32] |= np.uint32(1 << (token % 32)).astype(np.int32)


class LLGuidanceBatch:
    """See `MatcherBatch`."""

    __slots__ = ("_executors", "_handles", "_impossible", "_matchers", "_order", "_own_stops", "_texts")

    def __init__(
        self,
        executors: AdaptiveThreads[Any],
        matchers: list[LLGuidanceMatcher],
        first_texts: NDArray[np.int32],
    ) -> None:
        self._executors = executors
        self._matchers = matchers
        self._handles = [matcher.handle for matcher in matchers]
        named = [(i, m.impossible_token) for i, m in enumerate(matchers) if m.impossible_token is not None]
        # It is one token for all grammars of a backend.
        self._impossible = ([i for i, _ in named], *divmod(named[0][1], 32)) if named else None
        self._texts = first_texts
        # Those with one lexer side by side: threads take neighbours, and then don't wait for each other.
        self._order = sorted(range(len(matchers)), key=lambda i: matchers[i].share.place)
        self._own_stops = [i for i, matcher in enumerate(matchers) if matcher.stop_token_ids]

    def accept(self, tokens: list[int]) -> list[bool]:
        """Move each matcher past its token."""
        start = time.perf_counter()
        if self._own_stops or len(tokens) <= _FEW:
            accepted = [m.accept(token) for m, token in zip(self._matchers, tokens, strict=True)]
            self._executors.accepted(time.perf_counter() - start)
            return accepted
        pairs = [(self._handles[i], tokens[i]) for i in self._order]
        verdicts = self._executors.executor.consume_token_par(pairs)
        self._executors.accepted(time.perf_counter() - start)
        accepted = [False] * len(tokens)
        for i, verdict in zip(self._order, verdicts, strict=True):
            accepted[i] = verdict
        return accepted

    def fill(self, mask: MaskArray, rows: list[int]) -> None:
        """Write the mask of matcher i into mask[rows[i]]."""
        if len(rows) == 1:
            row = mask[rows[0]]
            self._handles[0].unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        else:
            self._fill_all(mask, rows)
        if self._impossible is not None:
            naming, word, bit = self._impossible
            own = rows if len(naming) == len(rows) else [rows[i] for i in naming]
            mask[own, word] &= _cleared(bit)
        for i in self._own_stops:
            self._matchers[i].fix_stops(mask[rows[i]])
        # At a dead end or a limit a matcher shows a stop token, as if the output were whole. To ask each
        # of them costs more than to look for rows that show nothing else.
        head = mask[rows, : len(self._texts)] & self._texts
        for i in np.flatnonzero(~head.any(axis=1)).tolist():
            if self._handles[i].is_error():
                mask[rows[i]] = 0

    def _fill_all(self, mask: MaskArray, rows: list[int]) -> None:
        pairs = [(self._handles[i], rows[i]) for i in self._order]
        start = time.perf_counter()
        self._executors.executor.unsafe_compute_mask_ptr(
            pairs, mask.ctypes.data, mask.strides[0], mask.shape[0]
        )
        self._executors.took(time.perf_counter() - start)


def _cleared(bit: int) -> np.int32:
    """A mask word with all bits but one."""
    return np.uint32(~(1 << bit) & 0xFFFFFFFF).astype(np.int32)


class _Tokens:
    """A vocabulary as llguidance's TokenizerWrapper reads it: padded to whole mask words."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        padding = [b""] * (32 * vocabulary.words - vocabulary.size)
        # The byte 0xFF is in no text, and it is what llguidance puts in front of a control token's name.
        tokens = [b"" if _MARKER in token else token for token in vocabulary.text_tokens] + padding
        for token, name in _control_names(vocabulary).items():
            tokens[token] = name
        self.tokens = tokens
        self.eos_token_id = vocabulary.stop_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._by_bytes = {
            token: i for i, token in enumerate(tokens) if token and i not in vocabulary.special_ids
        }

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [self._by_bytes[bytes([byte])] for byte in data if bytes([byte]) in self._by_bytes]


def _control_names(vocabulary: Vocabulary) -> dict[int, bytes]:
    """A name for each control token: its own where a grammar can write it, `<...>`, else one made of its id.

    llguidance matches names by their bytes and allows each token whose bytes begin the expected name. An
    empty name begins all others, and `[1` begins the spelling of a token by its id.
    """
    own = {token: vocabulary.tokens[token] for token in vocabulary.special_ids}
    times = Counter(own.values())
    return {
        token: name if _NAME.fullmatch(name) and times[name] == 1 else b"<|control %d|>" % token
        for token, name in own.items()
    }


_OBJECT_KEYWORDS = {"properties", "required", "minProperties", "maxProperties", "propertyNames"}
_OPENING = {"additionalProperties", "unevaluatedProperties", "patternProperties"}
_COMPOSING = ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "dependencies")


def _closed(spec: OutputSpec) -> Any:
    """The schema with its objects closed where the spec is strict: llguidance has no such mode."""
    document = spec.document()
    if not spec.strict:
        return document
    for path, node in walk(document):
        if not isinstance(node, dict) or _OPENING & node.keys():
            continue
        kind = node.get("type")
        if not (kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node):
            continue
        if _adds_properties(node) or _inside_composition(path, document):
            # Closing one part would forbid the properties of the other parts.
            raise UnsupportedSpecError(
                "an object put together from parts can't be closed",
                where=pointer(path),
                hint="set additionalProperties or use strict=False",
            )
        node["additionalProperties"] = False
    return document


def _adds_properties(node: Mapping[str, Any]) -> bool:
    """Whether the parts beside an object's own properties may describe further ones."""
    if "$ref" in node:
        return True
    parts = {keyword: node[keyword] for keyword in _COMPOSING if keyword in node}
    describing = {"properties", "$ref", "$dynamicRef", *_OPENING}
    return any(isinstance(part, Mapping) and describing & part.keys() for path, part in walk(parts) if path)


def _inside_composition(path: tuple[str | int, ...], document: Any) -> bool:
    """Whether a schema is one part of an object that has others: under allOf, if, not, or beside them."""
    node: Any = document
    for index, part in enumerate(path):
        if part in ("allOf", "if", "then", "else", "not", "dependentSchemas"):
            return True
        beside = isinstance(node, Mapping) and bool(_OBJECT_KEYWORDS & node.keys())
        if part in ("anyOf", "oneOf") and beside and index + 2 == len(path):
            return True
        node = node[part]
    return False


# With escapes by number a name in `properties` could be written so that it counts as another one's. Without
# them every text has one spelling; what is lost are control characters that have no short escape.
_ESCAPES = 'nrbtf\\"'
_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00")


def _has_open_names(schema: Any) -> bool:
    """Whether an object takes other names beside those that it describes."""
    return any(
        isinstance(node, Mapping)
        and bool(node.get("properties") or node.get("patternProperties"))
        and node.get("additionalProperties") is not False
        for _, node in walk(schema)
    )


_DETAILS = re.compile(r"\s*<(?:state|tokens)>.*", re.DOTALL)


_OVER_LIMIT = re.compile(r"too many|max is \d|fuel|exceeded|limit", re.IGNORECASE)


def _first_line(message: str) -> str:
    lines = _DETAILS.sub("", message).strip().splitlines()
    return lines[0] if lines else "no reason given"


def _refusal(spec: OutputSpec, message: str) -> GrammarError:
    text = _first_line(message)
    if "nsatisfiable" in text:
        return UnsatisfiableSpecError(text, where=f"{spec.kind} (llguidance)")
    return GrammarError(text, where=f"{spec.kind} (llguidance)")
