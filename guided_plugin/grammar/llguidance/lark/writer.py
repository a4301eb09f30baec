"""How rules become llguidance's Lark: written once, when all are there. Depends on rules."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping

from guided_plugin.config import Whitespace
from guided_plugin.grammar.llguidance.lark.rules import (
    NEVER,
    Alternative,
    Grammar,
    LarkGrammar,
    Reference,
    Repeated,
    Rule,
    RuleSet,
    Symbol,
    Text,
    both,
)

SPARE_BIT = 63
"""A bit of parameters that no rule sets."""

_SPACE = r"[\x20\x0A\x0D\x09]*"
_BOUNDED_SPACE = r"\x20{0,2}(\x0D?\x0A[\x09\x20]{0,%d})?"
"""Whitespace as models write it: spaces, or a line's end and the next line's
indentation."""
_PUNCTUATION: Mapping[Whitespace, Mapping[str, str]] = {
    "compact": {},
    "spaced": {'","': '", "', '":"': '": "'},
    "flexible": {
        **{f'"{opening}"': rf"/\{opening}{_SPACE}/" for opening in "{["},
        **{f'"{closing}"': rf"/{_SPACE}\{closing}/" for closing in "}]"},
        **{f'"{between}"': f"/{_SPACE}{between}{_SPACE}/" for between in ",:"},
    },
}
"""How JSON's punctuation is written, with the whitespace next to it."""

_MARKED = {'","': "/, ?/", '":"': "/: ?/"}
"""The same for `spaced` in a grammar with marks. They come behind a comma, before its
space, and the check that reads them knows values without spaces; the matcher next to it
holds these."""

_FRAGMENT = re.compile(r"\bF[0-9]+\b")


def written(
    grammar: Grammar,
    start: Symbol,
    top: str,
    whitespace: Whitespace = "compact",
    most: int = 0,
    *,
    marked: bool = False,
) -> LarkGrammar:
    """Write what is derived from a symbol. `whitespace` is next to JSON's punctuation
    only: `most` on each side."""
    rules, terminals = _reachable(grammar.rules, start)
    punctuation = _punctuation(whitespace, most, marked)
    # Each is written once: llguidance reads an expression where it stands.
    used = [mark for mark in punctuation if mark in terminals]
    words = {mark: f"P{number}" for number, mark in enumerate(used)}
    words |= _renamed(grammar.rules)
    lines = [top + f"start: {_symbol(start, words)}"]
    lines += [f"{words[mark]}: {punctuation[mark]}" for mark in used]
    for name in rules:
        if name not in words:
            lines.append(_rule(name, grammar.rules, words))
    known = {
        name: terminal
        for name, terminal in grammar.terminals.items()
        if name in terminals
    }
    bodies = {name: terminal.body for name, terminal in known.items()}
    lines += _terminal_lines(grammar, bodies)
    probes: list[str] = []
    for group in grammar.groups:
        tried = {name: bodies[name] for name in group if name in bodies}
        if tried:
            first = f"{top}start: {' | '.join(tried)}"
            probes.append(_joined([first, *_terminal_lines(grammar, tried)]))
    return LarkGrammar(
        _joined(lines),
        tuple(probes),
        endless=NEVER in rules,
        rules=RuleSet(
            start,
            {name: grammar.rules[name] for name in rules},
            known,
            whitespace == "spaced",
        ),
    )


def _punctuation(whitespace: Whitespace, most: int, marked: bool) -> dict[str, str]:
    """How JSON's punctuation is written."""
    if marked and whitespace == "spaced":
        return dict(_MARKED)
    space = _BOUNDED_SPACE % most if most else _SPACE
    found = _PUNCTUATION[whitespace]
    return {mark: text.replace(_SPACE, space) for mark, text in found.items()}


def _joined(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def _terminal_lines(grammar: Grammar, bodies: Mapping[str, str]) -> list[str]:
    """Terminals, and the fragments that they need, each as a line."""
    lines = [f"{name}: {body}" for name, body in bodies.items()]
    if grammar.fragments:
        lines += _used(grammar.fragments, bodies.values())
    return lines


def _rule(name: str, rules: Mapping[str, Rule], words: Mapping[str, str]) -> str:
    """A rule as a line."""
    rule = rules[name]
    alternatives = rule.alternatives
    if rule.parameter:
        name = f"{name}::_"
        alternatives = [_with_condition(each, rules) for each in alternatives]
    if rule.parameter and len(alternatives) == 1:
        # llguidance folds rules of one alternative, and then forgets the parameter.
        (one,) = alternatives
        ways = (f"bit_clear({SPARE_BIT})", f"bit_set({SPARE_BIT})")
        alternatives = [
            Alternative(one.symbols, both(one.condition, way)) for way in ways
        ]
    texts = [_alternative(each, words) for each in alternatives]
    return f"{name}: {' | '.join(texts)}"


def _renamed(rules: Mapping[str, Rule]) -> dict[str, str]:
    """Rules that are another one, with that one's name."""
    renamed: dict[str, str] = {}
    for name, rule in rules.items():
        match rule.alternatives:
            case [Alternative((Reference(other, ""),), "", None, "")] if (
                not rule.parameter
            ):
                renamed[name] = other
    for name, other in renamed.items():
        while other in renamed:
            other = renamed[other]
        renamed[name] = other
    return renamed


def _with_condition(alternative: Alternative, rules: Mapping[str, Rule]) -> Alternative:
    """An alternative with all that it asks for in its condition."""
    asked = alternative.condition
    if alternative.bit is not None:
        asked = both(asked, f"bit_clear({alternative.bit})")
    if alternative.some_of:
        asked = _any_of(rules[alternative.some_of].alternatives)
    return Alternative(alternative.symbols, asked)


def _any_of(alternatives: list[Alternative]) -> str:
    """A condition that holds where one of several alternatives is possible."""
    bits: dict[str, set[int | None]] = {}
    for each in alternatives:
        bits.setdefault(each.condition, set()).add(each.bit)
    joined = ""
    for condition, clear in bits.items():
        known = sorted(bit for bit in clear if bit is not None)
        options = [condition]
        if None not in clear:
            runs = [
                list(run)
                for _, run in itertools.groupby(
                    known, key=lambda bit: bit - known.index(bit)
                )
            ]
            options = [
                both(f"bit_count_lt([{r[0]}:{r[-1] + 1}], {len(r)})", condition)
                for r in runs
            ]
        for option in options:
            if not option:
                return ""
            joined = f"or({joined}, {option})" if joined else option
    return joined


def _used(fragments: dict[str, str], bodies: Iterable[str]) -> list[str]:
    """The fragments that terminals need, each as a line."""
    lines: list[str] = []
    needed = set(_FRAGMENT.findall(" ".join(bodies)))
    for body, name in reversed(fragments.items()):
        if name in needed:
            needed.update(_FRAGMENT.findall(body))
            lines.append(f"{name}: {body}")
    return lines


def _reachable(rules: dict[str, Rule], start: Symbol) -> tuple[list[str], set[str]]:
    """The rules and terminals that a grammar uses, the rules in the order of their
    use."""
    seen: dict[str, None] = {}
    terminals: set[str] = set()
    pending: list[Symbol] = [start]
    while pending:
        symbol = pending.pop()
        if isinstance(symbol, Text):
            terminals.add(symbol.text)
        elif isinstance(symbol, Repeated):
            pending += symbol.symbols
        elif symbol.rule not in seen:
            seen[symbol.rule] = None
            for alternative in rules[symbol.rule].alternatives:
                pending += alternative.symbols
    return list(seen), terminals


def _alternative(alternative: Alternative, words: Mapping[str, str]) -> str:
    text = " ".join([_symbol(symbol, words) for symbol in alternative.symbols]) or '""'
    return f"{text} %if {alternative.condition}" if alternative.condition else text


def _symbol(symbol: Symbol, words: Mapping[str, str]) -> str:
    """`words`: how some literals and rules are written instead."""
    if isinstance(symbol, Text):
        return words.get(symbol.text, symbol.text)
    if isinstance(symbol, Reference):
        return words.get(symbol.rule, symbol.rule) + (
            f"::{symbol.argument}" if symbol.argument else ""
        )
    inner = " ".join(_symbol(each, words) for each in symbol.symbols)
    match symbol.low, symbol.high:
        case 0, 0:
            return '""'
        case 0, 1:
            return f"({inner})?"
        case low, None if low < 2:
            return f"({inner})" + ("*" if low == 0 else "+")
        case low, high:
            return f"({inner}){{{low},{'' if high is None else high}}}"
