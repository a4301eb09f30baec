"""The writing of rules and expressions as llguidance's Lark: once, when all are there.
Depends on rules and expressions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring
from operator import attrgetter

from guided_plugin.config import Whitespace
from guided_plugin.grammar.llguidance.lark.expressions import (
    OR,
    Expression,
    Fragment,
    Group,
    Opposite,
    Regex,
    Texts,
    fragments_of,
)
from guided_plugin.grammar.llguidance.lark.rules import (
    Alternative,
    Grammar,
    LarkGrammar,
    Reference,
    Repeated,
    Rule,
    RuleSet,
    Symbol,
    Terminal,
    Text,
    Token,
    both,
)
from guided_plugin.spec import OutputSpec

SPARE_BIT = 63
"""A bit of parameters that no rule sets."""

_SPACE = r"[\x20\x0A\x0D\x09]*"
_BOUNDED_SPACE = r"\x20{0,2}(\x0D?\x0A[\x09\x20]{0,%d})?"
"""Whitespace as models write it: spaces, or a line's end and the next line's
indentation."""
_PUNCTUATION: Mapping[Whitespace, Mapping[str, str]] = {
    "compact": {},
    "spaced": {",": '", "', ":": '": "'},
    "flexible": {
        "{": rf"/\{{{_SPACE}/",
        "[": rf"/\[{_SPACE}/",
        "}": rf"/{_SPACE}\}}/",
        "]": rf"/{_SPACE}\]/",
        ",": f"/{_SPACE},{_SPACE}/",
        ":": f"/{_SPACE}:{_SPACE}/",
    },
}
"""The spellings of JSON's punctuation, with the whitespace next to it."""


def written(
    grammar: Grammar,
    start: Symbol,
    top: str,
    spec: OutputSpec,
    *,
    marked: bool = False,
) -> LarkGrammar:
    """Write what is derived from a symbol. A spec's whitespace is next to JSON's
    punctuation only."""
    rules, symbols = _reachable(grammar.rules, start)
    terminals = list(filter(symbols.__contains__, grammar.terminals.values()))
    punctuation = _punctuation(spec, marked)
    tokens: set[int] = set()
    words: dict[Symbol, str] = {}
    lines: list[str] = []
    for symbol in symbols:
        match symbol:
            case Text(text) if text in punctuation:
                # Written once: llguidance reads an expression where it stands.
                name = words[symbol] = f"P{len(lines)}"
                lines.append(f"{name}: {punctuation[text]}")
            case Text(text):
                words[symbol] = literal(text)
            case Token(number):
                words[symbol] = f"<[{number}]>"
                tokens.add(number)
            case Terminal(name):
                words[symbol] = name
    writer = _Writer(rules, words)
    lines += [writer.rule(name) for name in rules if name not in writer.renamed]
    lines += _terminal_lines(grammar, terminals)
    return LarkGrammar(
        "\n".join([f"{top}start: {writer.sequence((start,))}", *lines, ""]),
        distinct=grammar.distinct,
        left_out=tuple(sorted(grammar.left_out)),
        plain=not tokens and all(map(attrgetter("plain"), terminals)),
        rules=RuleSet(
            start,
            rules,
            tuple(terminals),
            frozenset(tokens),
            spec.whitespace == "spaced",
        ),
    )


def expression_text(expression: Expression, *, inside: bool = False) -> str:
    """An expression as text. `inside`: as a part of another one."""
    operator = OR
    match expression:
        case Regex(source):
            escaped = source.replace("/", "\\/")
            return f"/{escaped}/"
        case Fragment(name, before):
            return f"/{before}/ {name}" if before else name
        case Opposite(part):
            return "~" + expression_text(part, inside=True)
        case Texts(texts):
            parts = [literal(text) for text in texts]
        case Group(operator, expressions):
            parts = [expression_text(part, inside=True) for part in expressions]
    text = operator.join(parts)
    return f"({text})" if inside else text


def literal(text: str) -> str:
    """A text in quotes, as llguidance reads it: its lexer takes no DEL there."""
    return encode_basestring(text).replace("\x7f", "\\u007f")


def _reachable(
    rules: Mapping[str, Rule], start: Symbol
) -> tuple[dict[str, Rule], dict[Symbol, None]]:
    """The rules that a grammar uses, innermost first, and its texts and terminals."""
    used: dict[str, Rule] = {}
    seen: set[str] = set()
    symbols: dict[Symbol, None] = {}
    pending: list[Symbol | str] = [start]
    while pending:
        symbol = pending.pop()
        if isinstance(symbol, str):  # all that the rule needs was looked at
            used[symbol] = rules[symbol]
        elif isinstance(symbol, Repeated):
            pending += symbol.symbols
        elif not isinstance(symbol, Reference):
            symbols[symbol] = None
        elif symbol.rule not in seen:
            seen.add(symbol.rule)
            pending.append(symbol.rule)
            for alternative in rules[symbol.rule].alternatives:
                pending += alternative.symbols
    return used, symbols


def _punctuation(spec: OutputSpec, marked: bool) -> Mapping[str, str]:
    """Return the spellings of JSON's punctuation."""
    # Marks come behind a comma, before its space; the matcher next to the check that
    # reads them holds spaces.
    found = _PUNCTUATION[(not marked and spec.whitespace) or "flexible"]
    most = spec.max_whitespace
    space = _BOUNDED_SPACE % most if most else _SPACE
    return {mark: text.replace(_SPACE, space) for mark, text in found.items()}


def _terminal_lines(grammar: Grammar, terminals: Iterable[Terminal]) -> list[str]:
    """Terminals, and the fragments that they need, each as a line."""
    lines = []
    needed: set[str] = set()
    for terminal in terminals:
        lines.append(f"{terminal.name}: {expression_text(terminal.expression)}")
        if grammar.fragments:
            needed |= fragments_of(terminal.expression)
    for expression, name in reversed(grammar.fragments.items()):
        if name in needed:
            lines.append(f"{name}: {expression_text(expression)}")
            needed |= fragments_of(expression)
    return lines


class _Writer:
    """Writes the rules of one grammar."""

    def __init__(self, rules: Mapping[str, Rule], words: Mapping[Symbol, str]) -> None:
        """`words`: texts, tokens and terminals as they stand in a rule."""
        self._rules = rules
        self._words = words
        self.renamed: dict[str, str] = {}
        """Rules that are another one, with that one's name."""
        for name, rule in rules.items():
            match rule.alternatives:
                case [Alternative((Reference(other, ""),), "", None, "")] if (
                    not rule.parameter
                ):
                    self.renamed[name] = other

    def rule(self, name: str) -> str:
        """A rule as a line."""
        rule = self._rules[name]
        alternatives = rule.alternatives
        if rule.parameter:
            name = f"{name}::_"
            alternatives = [self._with_condition(each) for each in alternatives]
        if rule.parameter and len(alternatives) == 1:
            # llguidance folds rules of one alternative, and then forgets the parameter.
            (one,) = alternatives
            ways = (f"bit_clear({SPARE_BIT})", f"bit_set({SPARE_BIT})")
            alternatives = [
                Alternative(one.symbols, both(one.condition, way)) for way in ways
            ]
        texts = []
        for one in alternatives:
            text = self.sequence(one.symbols) or '""'
            if one.condition:
                text += f" %if {one.condition}"
            texts.append(text)
        return f"{name}: {' | '.join(texts)}"

    def sequence(self, symbols: Iterable[Symbol]) -> str:
        """Symbols as they stand in a rule."""
        found = []
        for symbol in symbols:
            if isinstance(symbol, Repeated):
                inner = self.sequence(symbol.symbols)
                how_often = times(symbol.low, symbol.high)
                found.append('""' if symbol.high == 0 else f"({inner}){how_often}")
            elif isinstance(symbol, Reference):
                name = symbol.rule
                while name in self.renamed:
                    name = self.renamed[name]
                found.append(f"{name}::{symbol.argument}" if symbol.argument else name)
            else:
                found.append(self._words[symbol])
        return " ".join(found)

    def _with_condition(self, alternative: Alternative) -> Alternative:
        """An alternative with all that it asks for in its condition."""
        asked = alternative.condition
        if alternative.bit is not None:
            asked = both(asked, f"bit_clear({alternative.bit})")
        if alternative.some_of:
            asked = _any_of(self._rules[alternative.some_of].alternatives)
        return Alternative(alternative.symbols, asked)


def times(low: int, high: int | None) -> str:
    """A quantifier, of rules and of patterns."""
    if high is None:
        return {0: "*", 1: "+"}.get(low, f"{{{low},}}")
    return "?" if (low, high) == (0, 1) else f"{{{low},{high}}}"


def _any_of(alternatives: list[Alternative]) -> str:
    """A condition that holds where one of several alternatives is possible."""
    bits: dict[str, set[int | None]] = {}
    for each in alternatives:
        bits.setdefault(each.condition, set()).add(each.bit)
    joined = ""
    for condition, clear in bits.items():
        options = [condition]
        if None not in clear:
            options = [
                both(f"bit_count_lt([{run[0]}:{run[-1] + 1}], {len(run)})", condition)
                for run in _runs(clear)
            ]
        for option in options:
            if not option:
                return ""
            joined = f"or({joined}, {option})" if joined else option
    return joined


def _runs(bits: set[int | None]) -> list[list[int]]:
    """Bits in their order, those together that follow each other."""
    runs: list[list[int]] = []
    for bit in sorted(bit for bit in bits if bit is not None):
        if runs and bit == runs[-1][-1] + 1:
            runs[-1].append(bit)
        else:
            runs.append([bit])
    return runs
