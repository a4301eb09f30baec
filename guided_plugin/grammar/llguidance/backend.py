"""The llguidance backend, and the plugin that registers it.

Compiles in milliseconds, and refuses what it can't enforce. Depends on sources (what is
compiled), tokenizer, lexers and matcher.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import UnsatisfiableSpecError
from guided_plugin.grammar.base import (
    BackendFactory,
    Grammar,
    Matcher,
    Prepared,
    least_tokens,
)
from guided_plugin.grammar.llguidance.client import tokens_in
from guided_plugin.grammar.llguidance.closing import Closing, steps
from guided_plugin.grammar.llguidance.distinct.check import DistinctCheck, DistinctRules
from guided_plugin.grammar.llguidance.distinct.spellings import Mode, Spellings
from guided_plugin.grammar.llguidance.distinct.track import BYTES
from guided_plugin.grammar.llguidance.endings import Endings
from guided_plugin.grammar.llguidance.lark.ends import Shortest, forced_run
from guided_plugin.grammar.llguidance.lark.patterns import FUEL
from guided_plugin.grammar.llguidance.lark.rules import LarkGrammar
from guided_plugin.grammar.llguidance.learnt import Learnt
from guided_plugin.grammar.llguidance.lexers import LexerPool, Lexers
from guided_plugin.grammar.llguidance.matcher import (
    OVER_LIMIT,
    LLGuidanceBatch,
    LLGuidanceMatcher,
    first_line,
)
from guided_plugin.grammar.llguidance.sources import complaint, lark_of, too_entangled
from guided_plugin.grammar.llguidance.tokenizer import SIZES, Tokenizers
from guided_plugin.grammar.threads import AdaptiveThreads
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.hookspecs import hookimpl
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.memo import texts_bytes

# An object of n optional properties needs n items in a row: llguidance's own limit of
# 2,000 would end such requests in the middle. A mask of so many takes 10 ms. Its
# verbose errors tell what a lexer has spent. They quote a client's schema, too, so only
# their first line goes anywhere.
_MOST_ITEMS = 8_000
_LIMITS: dict[str, Any] = {
    "step_max_items": 100_000,
    **FUEL,
    "verbose_errors": True,
}

# The check that items are distinct works over bytes, whose masks are small, on a
# grammar that may have a mark before each name: that makes four items of one.
_ITEMS_WITH_MARKS = 4

# Grammars that clients write may be ambiguous: a row then costs the third power of its
# items. The limit stops the usual ones before a mask takes 0.2 s; one that has such
# rows only inside of tokens passes it, and meets the deadline that all of them have. A
# rule may call itself 500 times at its end.
_CLIENT_ITEMS = 500

# Text that must follow is looked for while a batch waits, and llguidance goes along all
# of it at once: 1.2 us for a character. The longest of 1,140 real schemas has 214.
# Client grammars may have costly rows there.
_MOST_FORCED = 1_000

# What a grammar takes is not reported. This is 1.0 to 1.4 times what a process grew by
# with 300 schemas of MaskBench: open and closed, compact and flexible, with llguidance
# 1.7.6 and 1.9.1.
_GRAMMAR_BYTES = 1 << 17
_WORD_BYTES = 500
_CHARACTER_BYTES = 16


_PLAIN_CHARACTERS = 1 << 14
"""Up to this length plain grammars compile: 5,000 of random schemas did, 400 of them with
more than 8,000 characters, with counts of up to 100,000, lengths of up to 1,000,000, and
names besides those that are listed (llguidance 1.7.6 and 1.9.1)."""


@hookimpl
def register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Register this backend as `llguidance`."""
    register("llguidance", LLGuidanceBackend)


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The parts from which a grammar's matchers start."""

    lexers: Lexers
    distinct: DistinctRules | None
    """The rules for what the grammar can't remember."""
    endings: Endings | None = None
    """The endings of outputs, where they are closed before their limit."""


class LLGuidanceBackend:
    """Compiles specs with llguidance and matches them for one vocabulary: a
    `Backend`."""

    name = "llguidance"
    languages = frozenset(
        {"json_schema", "json_object", "regex", "choice", "structural_tag", "lark"}
    )

    def __init__(self, vocabulary: Vocabulary, config: GuidedConfig) -> None:
        import llguidance

        self._ll = llguidance
        self._stops = vocabulary.stop_token_ids
        self._unenforced = config.unenforced_keywords
        self._jumps = config.jump_forward
        self._threads = config.thread_count()
        self._executors: AdaptiveThreads = AdaptiveThreads(
            llguidance.LLExecutor, self._threads
        )
        self._lexers = LexerPool(self._threads)
        self._learnt = Learnt(self._lexers, config.learnt_bytes)
        self._tokenizers = Tokenizers(vocabulary)
        self._spellings = Spellings(vocabulary)
        self._byte_tokenizers = Tokenizers(BYTES)
        self._closing_bytes = 4 * len(SIZES) * vocabulary.words

    def compile(self, spec: OutputSpec) -> Grammar:
        start = time.perf_counter()
        lark = self._lark(spec)
        first = self._first(spec, lark.text)
        return self._grammar(self._prepared(spec, lark, ""), lark, first, start)

    def prepare(self, spec: OutputSpec) -> Prepared:
        """A grammar that compiled, or that is known to: `load` compiles it again."""
        lark = self._lark(spec)
        closes = spec.close_before_length is True
        made = self._prepared(spec, lark, lark.packed(closes=closes))
        if not closes:
            if not lark.plain or len(lark.text) > _PLAIN_CHARACTERS:
                self._first(spec, lark.text)
            return made
        grammar = self._grammar(made, lark, self._first(spec, lark.text), 0.0)
        return replace(made, shortest=grammar.shortest, growth=grammar.growth)

    def load(self, prepared: Prepared) -> Grammar:
        start = time.perf_counter()
        lark = LarkGrammar.unpacked(str(prepared.payload))
        first = self._first(prepared.spec, lark.text)
        return self._grammar(prepared, lark, first, start)

    def _prepared(self, spec: OutputSpec, lark: LarkGrammar, payload: str) -> Prepared:
        return Prepared(
            spec,
            self.name,
            payload,
            unenforced=lark.left_out,
            named=self._named(spec, lark),
        )

    def _lark(self, spec: OutputSpec) -> LarkGrammar:
        lark = lark_of(spec, self._tokenizers, self._unenforced)
        if not self._jumps:
            return lark
        forces = lark.rules is not None and forced_run(lark.rules) <= _MOST_FORCED
        return replace(lark, forces=forces)

    def _named(self, spec: OutputSpec, lark: LarkGrammar) -> frozenset[int]:
        """The control tokens that a client's grammar or tag names."""
        found: Iterable[int] = ()
        if lark.rules and spec.kind == "structural_tag":
            found = lark.rules.tokens
        elif spec.kind == "grammar":
            found = itertools.chain.from_iterable(
                map(self._tokenizers.ids, tokens_in(spec.text))
            )
        return frozenset(self._tokenizers.controls.keys() & found)

    def _matcher(
        self, spec: OutputSpec, text: str, tokenizer: Any, times: int = 1
    ) -> Any:
        """`times`: how many items of a row it has for one."""
        most = _CLIENT_ITEMS if spec.kind in ("grammar", "regex") else _MOST_ITEMS
        limits = self._ll.LLParserLimits(max_items_in_row=times * most, **_LIMITS)
        return self._ll.LLMatcher(tokenizer, text, log_level=0, limits=limits)

    def _first(self, spec: OutputSpec, text: str) -> Any:
        """A matcher at the beginning of a grammar that allows something."""
        first = self._matcher(spec, text, self._tokenizers.plain)
        # Filling once builds the lexer's first states, and shows whether anything is
        # allowed.
        allowed = b"" if first.is_error() else first.compute_bitmask()
        if first.is_error():
            error = first.get_error()
            message = first_line(error)
            if OVER_LIMIT.search(message):
                raise too_entangled(spec, message)
            raise complaint(error, spec.kind, int(spec.kind == "grammar"))
        if not allowed.strip(b"\0"):
            raise UnsatisfiableSpecError(
                "allows no output at all",
                where=spec.kind,
                hint="no token of the vocabulary can begin it, or its parts contradict each other",
            )
        return first

    def _grammar(
        self, prepared: Prepared, lark: LarkGrammar, first: Any, start: float
    ) -> Grammar:
        spec = prepared.spec
        text = lark.text

        lexers = Lexers(
            first,
            partial(self._matcher, spec, text, self._tokenizers.plain),
            self._lexers,
            forces=lark.forces,
        )
        size = (
            _GRAMMAR_BYTES
            + _WORD_BYTES * len(text.split())
            + _CHARACTER_BYTES * len(text)
        )
        size += size * lark.distinct  # there are two grammars
        size += texts_bytes(spec.text)
        compiled = _Compiled(
            lexers, self._distinct_rules(spec) if lark.distinct else None
        )
        made = Grammar(
            spec,
            self.name,
            compiled,
            size,
            0.0,
            bounded=spec.kind != "grammar",
            unenforced=prepared.unenforced,
            named=prepared.named,
        )
        if spec.close_before_length:
            endings = Endings(self._tokenizers.spelling, lark.sent or _shortest(lark))
            shortest = prepared.shortest
            grows = prepared.growth
            if shortest is None:
                shortest = endings.first(self.start(made, self._stops))
                grows = endings.growth_in(len)
            if shortest is not None:
                made = replace(
                    made,
                    handle=replace(compiled, endings=endings),
                    size_bytes=size + self._closing_bytes,
                    shortest=shortest,
                    growth=grows,
                )
        return replace(made, seconds=time.perf_counter() - start)

    def ending(
        self, grammar: Grammar, matcher: LLGuidanceMatcher, text: bytes
    ) -> tuple[int, ...] | None:
        """The tokens of a short completion behind a text; the matcher stays where it
        is, behind it."""
        rules = _shortest(self._lark(grammar.spec))
        endings = Endings(self._tokenizers.spelling, rules)
        return endings.first(matcher, text)

    def closing(
        self, grammar: Grammar, room: int, stop_token_ids: tuple[int, ...]
    ) -> Closing:
        """Return what closes one output before its token limit."""
        # Far from its limit a request costs nothing.
        spare = room - least_tokens(grammar.shortest) - 1
        due = steps(spare, grammar.growth)
        return Closing(grammar.handle.endings, room, stop_token_ids, due)

    def _distinct_rules(self, spec: OutputSpec) -> DistinctRules:
        text = lark_of(spec, self._tokenizers, self._unenforced, marked=True).text
        first = self._matcher(
            spec, text, self._byte_tokenizers.plain, _ITEMS_WITH_MARKS
        )
        if first.is_error():
            raise too_entangled(spec, first_line(first.get_error()))
        # What the first check would wait for.
        _ = self._spellings.table(Mode.BETWEEN), self._spellings.opening
        controls = frozenset(self._tokenizers.controls)
        return DistinctRules(first.deep_copy, self._spellings, controls)

    def start(
        self, grammar: Grammar, stop_token_ids: tuple[int, ...]
    ) -> LLGuidanceMatcher:
        """A matcher at the beginning; it shares the lexer states that others have
        built."""
        own = stop_token_ids if set(stop_token_ids) != set(self._stops) else ()
        compiled: _Compiled = grammar.handle
        handle, share = compiled.lexers.take()
        check = (
            DistinctCheck(compiled.distinct) if compiled.distinct is not None else None
        )
        tokenizer = self._tokenizers.plain
        return LLGuidanceMatcher(handle, share, tokenizer, self._stops, own, check)

    def learnt_bytes(self) -> int:
        """Bytes that the lexers of its grammars have learnt, at most."""
        return self._learnt.size_bytes

    def pace(self, seconds: float) -> None:
        """Steps come this far apart."""
        self._executors.pace(seconds)

    def batch(self, matchers: Sequence[Matcher]) -> LLGuidanceBatch:
        own = [cast("LLGuidanceMatcher", matcher) for matcher in matchers]
        return LLGuidanceBatch(self._executors, own, self._learnt)


def _shortest(lark: LarkGrammar) -> Shortest | None:
    return None if lark.rules is None else Shortest(lark.rules)
