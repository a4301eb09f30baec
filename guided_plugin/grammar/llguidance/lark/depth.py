"""Recursive rules up to a depth: a copy for each level of arrays and objects. Depends on rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from guided_plugin.errors import CompileLimitError
from guided_plugin.grammar.llguidance.lark.rules import Grammar, Repeated, Rule, Symbol, Text, named, users_of

_MOST_RULES = 5_000
"""Copies of recursive rules: 200 levels of an object with 22 properties, which take 0.35 s to compile."""

_OUTSIDE = frozenset({Text('"["'), Text('"{"')}).isdisjoint
"""Whether symbols are no array or object."""


def limit_depth(grammar: Grammar, start: Symbol, most: int, takes_nothing: Callable[[str], bool]) -> None:
    """Nest arrays and objects at most so deep in each recursion, or as deep as the shortest text is."""
    rules = dict(grammar.rules)
    recursive = _recursive(rules)
    for depth in itertools.count(most) if recursive else ():
        if depth * len(recursive) > _MOST_RULES:
            what = f"{len(recursive)} recursive rules are too many for a max_depth of {depth}"
            hint = f"lower it: their product must be at most {_MOST_RULES:,}"
            raise CompileLimitError(what, where="max_depth", hint=hint)
        copies = [_copies(name, rule, recursive, depth) for name, rule in rules.items()]
        grammar.replace_rules(dict(itertools.chain.from_iterable(copies)))
        if grammar.productive(start, takes_nothing):
            return


def _copies(name: str, rule: Rule, recursive: Mapping[str, str], depth: int) -> Iterator[tuple[str, Rule]]:
    """A rule for each level, with its name; that of the first level stays."""
    group = recursive.get(name)
    if group is None:
        yield name, replace(rule)
        return

    def at(name: str, level: int) -> str:
        return f"{name}d{level}" if level and recursive.get(name) == group else name

    def moved(symbol: Symbol, level: int) -> Symbol:
        if isinstance(symbol, Repeated):
            return symbol._replace(symbols=tuple(moved(each, level) for each in symbol.symbols))
        return symbol if isinstance(symbol, Text) else symbol._replace(rule=at(symbol.rule, level))

    for level in range(depth + 1):
        kept = []
        for each in rule.alternatives:
            inside = level + (not _OUTSIDE(each.symbols))
            if inside <= depth:
                symbols = tuple(moved(symbol, inside) for symbol in each.symbols)
                kept.append(each._replace(symbols=symbols, some_of=at(each.some_of, level)))
        counted = tuple((moved(symbol, level), weight) for symbol, weight in rule.counted)
        yield at(name, level), replace(rule, alternatives=kept, counted=counted)


def _recursive(rules: Mapping[str, Rule]) -> dict[str, str]:
    """The rules that contain themselves in an array or object, each with a name for its recursion."""
    uses: dict[str, set[tuple[str, bool]]] = {}
    for name, rule in rules.items():
        uses[name] = {(o, _OUTSIDE(each.symbols)) for each in rule.alternatives for o in named(each.symbols)}
    # Rules in the order in which a walk leaves them; those that lead back are of the last one's group.
    left: list[str] = []
    seen: set[str] = set()
    walk = list(rules)
    while walk:
        name = walk.pop()
        if not name:
            left.append(walk.pop())
        elif name not in seen:
            seen.add(name)
            walk += [name, "", *(other for other, _ in uses[name])]
    groups: dict[str, str] = {}
    users = users_of(rules, rules)
    for root in reversed(left):
        walk = [root]
        while walk:
            name = walk.pop()
            if name not in groups:
                groups[name] = root
                walk += users.get(name, ())
    inside = [(name, other) for name, used in uses.items() for other, outside in used if not outside]
    nested = {groups[name] for name, other in inside if groups[name] == groups[other]}
    return {name: group for name, group in groups.items() if group in nested}
