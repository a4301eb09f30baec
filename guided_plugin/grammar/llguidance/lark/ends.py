"""The facts that the rules of a grammar tell: the ends of its outputs, text that must
follow, and how deep they nest. Depends on rules and patterns.

Each rule has a shortest text: a least fixed point over the rules. Where a choice is
open, what is chosen may need more than the shortest: the texts that one choice may add
bound how much longer one token can make the shortest ending. Where rules do not nest
without end, no place has an ending longer than a certain one.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from functools import cached_property

from guided_plugin.grammar.llguidance.lark.expressions import Texts
from guided_plugin.grammar.llguidance.lark.patterns import shortest_text
from guided_plugin.grammar.llguidance.lark.rules import (
    NEVER,
    Reference,
    Repeated,
    Rule,
    RuleSet,
    Symbol,
    Terminal,
    Text,
    Token,
    users_of,
)
from guided_plugin.grammar.llguidance.lark.strings import COMMA

_MOST_CHOICES = 16
"""Texts that a choice may add, the longest: shorter ones need fewer tokens."""
_TIMES = 16
"""The number of times a rule's longest ending may turn out to be longer: 12 at most in
real schemas whose rules don't nest without end."""
_MOST_BYTES = 300_000
"""Bytes of a text that is written, at most: no look proves an ending of more tokens
(`endings`), and counts that multiply each other would fill all memory."""
CONTROL_BYTE = 0xFF
"""Begins what stands for a control token in a text; no text has it."""


class Shortest:
    """The shortest texts of one grammar's rules, and what follows from them."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self._texts: dict[Symbol, tuple[bytes, ...]] = {}
        self._known: dict[str, bytes] = {}
        self._users: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """The rules that asked for the text of a rule."""
        self._asking = ""
        self._chosen: dict[bytes | None, None] = {}
        pending = dict.fromkeys(reversed(rules.rules))
        while pending:
            self._asking, _ = pending.popitem()
            if self._improves(self._asking):
                pending |= self._users[self._asking]
        self.whole = self.of_symbol(rules.start)
        """The shortest output."""
        choices = filter(None, self._chosen)
        self.choices = heapq.nlargest(_MOST_CHOICES, choices, len)
        """The longest texts that one choice may add."""

    def _improves(self, name: str) -> bool:
        """Look at a rule. True if a shorter text of it was found."""
        if name == NEVER:
            return False
        rule = self.rules.rules[name]
        texts = [self.of_symbols(each.symbols) for each in rule.alternatives]
        if len(texts) > 1:
            self._chosen |= dict.fromkeys(texts)
        if rule.needed:
            texts = [self.of_symbols(rule.needed)]
        found = min([one for one in texts if one is not None], key=len, default=None)
        known = self._known.get(name)
        if found is None or (known is not None and len(known) <= len(found)):
            return False
        self._known[name] = found
        return True

    @cached_property
    def reach(self) -> int:
        """The most bytes that the rest of a terminal's text may need."""
        return max([0, *(terminal.known.most for terminal in self.rules.terminals)])

    @cached_property
    def longest(self) -> bytes | None:
        """The longest text that an output may need behind the terminal in which it is;
        None where rules nest without end."""
        rules = self.rules.rules
        known = dict.fromkeys(rules, b"")
        users = users_of(rules)
        times = dict.fromkeys(rules, 0)
        pending = dict.fromkeys(reversed(rules))
        while pending:
            name, _ = pending.popitem()
            found = self._end_of_rule(rules[name], known)
            if len(found) > len(known[name]):
                known[name] = found
                times[name] += 1
                if times[name] > _TIMES:
                    return None
                pending |= dict.fromkeys(users.get(name, ()))
        return self._end_of((self.rules.start,), known)

    def _end_of_rule(self, rule: Rule, known: dict[str, bytes]) -> bytes:
        """The longest ending inside of a rule, as far as those of rules are known."""
        found = b""
        for alternative in rule.alternatives:
            symbols = alternative.symbols
            if rule.needed:
                symbols = symbols[:-1]  # without the members behind this one
            found = max(found, self._end_of(symbols, known), key=len)
        if rule.needed:
            found += self.of_symbols(rule.needed) or b""
        return found

    def _end_of(self, symbols: tuple[Symbol, ...], known: dict[str, bytes]) -> bytes:
        found = b""
        after = b""
        for symbol in reversed(symbols):
            whole = self.of_symbol(symbol) or b""
            inner = b""
            if isinstance(symbol, Reference):
                inner = known[symbol.rule]
            elif isinstance(symbol, Repeated):
                inner = self._end_of(symbol.symbols, known) + whole
            elif not isinstance(symbol, Terminal):
                inner = whole
            found = max(found, inner + after, key=len)
            after = whole + after
        return found

    def marks(self) -> str:
        """The characters that may end a free text."""
        known = [terminal.known.marks for terminal in self.rules.terminals]
        return "".join(sorted(frozenset().union(*known)))

    def of_symbols(self, symbols: tuple[Symbol, ...]) -> bytes | None:
        """The shortest text of symbols."""
        whole = b""
        for symbol in symbols:
            text = self.of_symbol(symbol)
            if text is None or len(whole) + len(text) > _MOST_BYTES:
                return None
            whole += text
        return whole

    def of_symbol(self, symbol: Symbol, parameter: int | None = None) -> bytes | None:
        """The shortest text of a symbol; of a rule with such a parameter."""
        if isinstance(symbol, Reference):
            if parameter is not None:
                rule = self.rules.rules[symbol.rule]
                if rule.parameter:
                    return self._of_members(rule, parameter)
            self._users[symbol.rule][self._asking] = None
            return self._known.get(symbol.rule)
        if isinstance(symbol, Repeated):
            once = self.of_symbols(symbol.symbols)
            if symbol.high != symbol.low:
                self._chosen[once] = None
            if not symbol.low:
                return b""
            if once is None or len(once) * symbol.low > _MOST_BYTES:
                return None
            return once * symbol.low
        found = self._texts.get(symbol) or self.texts_of(symbol)
        return found[0]

    def texts_of(self, symbol: Symbol) -> tuple[bytes, ...]:
        """Short texts of a text, a terminal or a token."""
        found = self._texts.get(symbol, ())
        if not found:
            match symbol:
                case Terminal():
                    found = _texts_of(symbol)
                case Token(number):
                    found = (control_text(number),)
                case Text(text):
                    spaced = self.rules.spaced and text in (",", ":")
                    found = (text.encode() + b" " * spaced,)
            self._texts[symbol] = found
        return found

    def _of_members(self, rule: Rule, parameter: int) -> bytes:
        """The shortest text of a rule of members where some were there; those that are
        counted are not added."""
        comma = self.of_symbol(COMMA) or b","
        first = rule.alternatives[-1].some_of
        members = self.rules.rules[first] if first else rule
        missing: list[bytes] = []
        others: list[bytes] = []
        for alternative in members.alternatives:
            bit = alternative.bit
            text = self.of_symbols(alternative.symbols[:-1])
            if text is None or (bit is not None and parameter >> bit & 1):
                continue
            needed = bit is not None and bit < len(members.required)
            (missing if needed else others).append(text)
        if first:
            return b"".join(comma + text for text in missing)
        return comma.join(missing or sorted(others, key=len)[:1])


def _texts_of(terminal: Terminal) -> tuple[bytes, ...]:
    """All texts of a terminal that lists them, else short ones, the shortest first;
    where none are found, what is as long as one."""
    expression = terminal.expression
    known = terminal.known
    texts = known.texts
    if isinstance(expression, Texts):
        texts = tuple(sorted(expression.texts, key=len))
    if texts:
        return tuple(text.encode(errors="replace") for text in texts)
    return (shortest_text(expression) or b"?" * max(known.most, 1),)


def control_text(number: int) -> bytes:
    """Return the bytes that stand for a control token in a text."""
    return b"%c%d;" % (CONTROL_BYTE, number)


def forced_run(rules: RuleSet) -> float:
    """About the most bytes that may have to follow each other."""
    runs = _Runs(rules)
    try:
        for name in rules.rules:
            runs.of_rule(name)
        runs.of_symbols((rules.start,))
    except RecursionError:
        return math.inf
    return runs.most


class _Runs:
    """The bytes of one grammar's parts without a choice in them; None for others."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self._known: dict[str, int | None] = {}
        self.most = 0
        """The most bytes in a row, as far as it was asked."""

    def of_rule(self, name: str) -> int | None:
        """The bytes of a rule."""
        if name not in self._known:
            self._known[name] = None  # where it needs itself
            alternatives = self._rules.rules[name].alternatives
            sizes = [self.of_symbols(one.symbols) for one in alternatives]
            self._known[name] = sizes[0] if len(sizes) == 1 else None
        return self._known[name]

    def of_symbols(self, symbols: tuple[Symbol, ...]) -> int | None:
        """The bytes of symbols one after the other."""
        run = 0
        whole = True
        for symbol in symbols:
            size = self._of_symbol(symbol)
            whole = whole and size is not None
            run = 0 if size is None else run + size
            self.most = max(self.most, run)
        return run if whole else None

    def _of_symbol(self, symbol: Symbol) -> int | None:
        match symbol:
            case Reference():
                return self.of_rule(symbol.rule)
            case Repeated(symbols, low, high):
                size = self.of_symbols(symbols)
                run = low * (size or 0)
                self.most = max(self.most, run)
                return run if size is not None and low == high else None
            case Text(text):
                return len(text.encode())
            case Terminal(literal=str(text)):
                return len(text.encode())
            case Terminal():
                self.most = max(self.most, symbol.known.most)
        return None


def nesting(rules: RuleSet) -> int:
    """Return the depth of rules and brackets as llguidance reads them: from the start,
    each rule where it is first named."""
    seen: set[str] = set()
    deepest = 0
    pending: list[tuple[Symbol, int]] = [(rules.start, 1)]
    while pending:
        symbol, depth = pending.pop()
        match symbol:
            case Repeated():
                inner = [*symbol.symbols]
            case Reference(name) if name not in seen:
                seen.add(name)
                inner = rules.rules[name].symbols()
            case _:
                continue
        deepest = max(deepest, depth)
        pending.extend((each, depth + 1) for each in reversed(inner))
    return deepest
