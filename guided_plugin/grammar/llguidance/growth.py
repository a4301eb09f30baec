"""What the text of a grammar tells of the ends of its outputs: how much longer one step
can make the shortest.

Each part of a grammar derives at least so many characters. Where a choice is open (an
alternative, an optional part, one more of a repetition), what is chosen may need more
than the shortest. The largest such difference is what one choice may add. Depends on
the regular expressions of spec/ecma.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.spec import ecma

_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")|/(?P<regex>(?:[^/\\]|\\.)+)/[a-z]*|(?P<name>\w+)(?:::\w+(?:\([^()]*\))?)?'
    r"|(?P<token><[^>\n]+>)|(?:\{|~\s*)(?P<low>\d+)(?:,|\.\.)?(?P<high>\d*)\}?"
    r"|%if (?P<condition>.*?)(?= \| |$)|(?P<mark>[()|&~?*+])"
)
_RULE = re.compile(
    r"^[?!]?(\w+)(?:::_)?(?:\.\d+)?(?:\[[^\]\n]*\])?\s*:(?!:)(.*(?:\n\s*\|.*)*)$",
    re.MULTILINE,
)
"""A rule or a terminal, and its alternatives, which may stand on lines of their own."""
_NEEDED = re.compile(r"^(o\d+)t(\w+)::_: .*is_ones\(\[0:(\d+)\]\)", re.MULTILINE)
_FEWEST = re.compile(
    r"^(\w+)t(\w*)::_: .*\b(?:bit_count_)?ge\(\[\d+:\d+\], (\d+)\)", re.MULTILINE
)
_SPACED = re.compile(r"/(?:\[?\\x20[^/]*?)?\\?([\[\]{},:])(?:\[?\\x20[^/]*)?/")
"""Punctuation with the whitespace that may be next to it."""
_BIT = re.compile(r"bit_clear\((\d+)\)")
_CODE = re.compile(r"((?<!\\)(?:\\\\)*)\\x\{")
_UNREAD = 16
"""Characters of a regular expression in a dialect that is not read here: more than most
need."""
_COUNT = re.compile(r"(?<!\\x)\{(\d+)[,}]")
"""How often a part of such an expression is there at least."""
_MOST_EXAMPLES = 64
_LONGEST_EXAMPLE = 256
_WAYS = 8
"""Examples of a part, the shortest. Chosen, not measured."""
_USUAL = b" aA0"
"""Characters that examples have where they may."""
PROBES = b"a 0Z-.{]"
"""Characters that may all come next in a free text."""
_NO_TEXT = ((0x2028, 0x2029), (0xD800, 0xDFFF))
"""What the dot, and the strings of JSON, leave out."""
_CLASS = re.compile(r"\[\^?(?:\\.|[^\]\\])+\]")
_ENDED = re.compile(r"/\(\?s:\.[^/]*?(?:\\x\{(\w+)\}|(\w))/")
_NEVER = float("inf")
_ROUNDS = 200
"""Longer chains of rules that wait for each other are cut: what is left has no end that
is short."""


@dataclass(frozen=True, slots=True)
class _Part:
    kind: Literal["characters", "rule", "all", "any", "most", "repeat"]
    parts: tuple[_Part, ...] = ()
    name: str = ""
    count: int = 0
    """Characters, or the least times of a repetition."""
    more: bool = False
    """Whether it may be repeated more often."""
    bit: int = -1
    """Of an alternative: that of the property which it is."""
    unread: int = 0
    """Characters of a regular expression that is not read here, with its repetitions
    written out."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Characters of a part that must follow each other."""

    whole: bool
    """Whether there is no choice in it."""
    first: int = 0
    """From its beginning on."""
    last: int = 0
    """Up to its end."""
    most: int = 0


def growth(text: str) -> int:
    """The most characters that one choice may add to the shortest ending."""
    rules = {
        name: _read(body) for name, body in _RULE.findall(_SPACED.sub(r'"\1"', text))
    }
    needed = _needed(text)
    for name, state, count in _FEWEST.findall(text):
        for rule in {f"{name}s{state}", name}.intersection(rules):
            rules[rule] = _Part("repeat", (rules[rule],), count=int(count))
    known: dict[str, tuple[float, float]] = dict.fromkeys(rules, (_NEVER, 0.0))
    for _ in range(_ROUNDS):
        before = known.copy()
        # most are written before those that they need
        for name, part in reversed(rules.items()):
            known[name] = _sizes(part, known, needed.get(name, 0))
        if known == before:
            break
    return int(max((most for _, most in known.values() if most < _NEVER), default=0))


def forced_run(text: str) -> float:
    """About the most characters that may have to follow each other without a choice;
    rather too many."""
    known: dict[str, _Run] = {}

    def run(part: _Part) -> _Run:
        if part.kind == "rule":
            if part.name in parts and part.name not in known:
                known[part.name] = _Run(False)  # where it needs itself
                known[part.name] = run(parts[part.name])
            return known.get(part.name, _Run(False))
        if part.kind == "characters":
            size = part.unread or part.count
            return _Run(True, size, size, size)
        inner = [run(one) for one in part.parts]
        if part.kind == "all":
            return functools.reduce(_joined, inner, _Run(True))
        if part.kind == "repeat":
            (once,) = inner
            size = part.count * once.first
            if part.count and once.whole:
                return _Run(True, size, size, size)
            return replace(
                once, whole=False, most=max(once.most, once.last + once.first)
            )
        alike = len({one.first for one in inner}) == 1  # perhaps the same text twice
        whole = any(one.whole for one in inner) and (part.kind == "most" or alike)
        first, last, most = (
            max(getattr(one, end) for one in inner) for end in ("first", "last", "most")
        )
        return _Run(whole, first, last, most)

    try:
        parts = {name: _read(body) for name, body in _RULE.findall(text)}
        for name in reversed(parts):  # most are written before those that they need
            run(_Part("rule", name=name))
    except (UnsupportedSpecError, RecursionError):
        return _NEVER
    return max((one.most for one in known.values()), default=0)


def _joined(before: _Run, after: _Run) -> _Run:
    """Of a part, and another one behind it."""
    first = before.first + after.first if before.whole else before.first
    last = before.last + after.last if after.whole else after.last
    most = max(before.most, after.most, before.last + after.first)
    return _Run(before.whole and after.whole, first, last, most)


def required(text: str) -> set[bytes]:
    """The names, in quotes, that objects of a grammar can't be without."""
    needed = _needed(text)
    text = _SPACED.sub(r'"\1"', text)
    found: set[bytes] = set()
    waiting = [
        (_read(body), needed.get(name, 0))
        for name, body in _RULE.findall(text)
        if '":' in body
    ]
    while waiting:
        part, bits = waiting.pop()
        if part.kind == "any" and any(one.bit >= 0 for one in part.parts):
            waiting += [(one, 0) for one in part.parts if 0 <= one.bit < bits]
        # of names that may come first, the last one is the first that must
        elif part.kind == "any":
            waiting += [(one, 0) for one in part.parts[-1:]]
        elif part.kind != "repeat" or part.count:
            waiting += [(one, 0) for one in part.parts]
        for name, after in itertools.pairwise(part.parts if part.kind == "all" else ()):
            if name.name.startswith('"') and after.name.startswith(":"):
                found.add(name.name.encode(errors="replace"))
    return found


def _needed(text: str) -> dict[str, int]:
    """The rules of properties that come in any order, and how many of each must: those
    with the first bits."""
    return {
        f"{name}s{state}": int(count) for name, state, count in _NEEDED.findall(text)
    }


def _read(body: str) -> _Part:
    tokens = [*_TOKEN.finditer(body)]
    try:
        part, _ = _any(tokens, 0)
    except RecursionError:
        what = "nests too many brackets to be closed before its token limit"
        raise UnsupportedSpecError(
            what, where="grammar", hint="set close_before_length to false"
        ) from None
    return part


def _any(tokens: list[re.Match[str]], at: int) -> tuple[_Part, int]:
    """Alternatives up to the bracket that closes them, and what comes after it."""
    options: list[_Part] = []
    both: list[_Part] = []
    row: list[_Part] = []
    bit = -1
    negated = False

    def ends(also: bool) -> None:
        nonlocal row, both, bit
        both.append(_Part("all", tuple(row)))
        row = []
        if not also:
            option = _Part("most", tuple(both)) if len(both) > 1 else both[0]
            options.append(replace(option, bit=bit))
            both = []
            bit = -1

    while at < len(tokens):
        token = tokens[at]
        at += 1
        mark = token["mark"]
        part: _Part | None = None
        if mark == "(":
            part, at = _any(tokens, at)
        elif mark == ")":
            break
        elif mark in ("|", "&"):
            ends(mark == "&")
        elif mark == "~":
            negated = True
        elif mark is not None or token["low"] is not None:
            low = int(token["low"] or (mark == "+"))
            more = (
                mark in ("*", "+")
                or (mark is None and token["high"] != token["low"])
                or low == 0
            )
            if row:
                row[-1] = _Part("repeat", (row[-1],), count=low, more=more)
        elif token["condition"] is not None:
            found = _BIT.search(token["condition"])
            bit = int(found[1]) if found else -1
        else:
            part = _single(token)
        if part is not None:
            row.append(_Part("characters") if negated else part)
            negated = False
    ends(False)
    return (options[0] if len(options) == 1 else _Part("any", tuple(options))), at


def _single(token: re.Match[str]) -> _Part:
    if token["text"] is not None:
        text = re.sub(r"\\(.)", r"\1", token["text"])[1:-1]
        return _Part("characters", name=text, count=len(text.encode(errors="replace")))
    if token["name"] is not None:
        return _Part("rule", name=token["name"])
    if token["regex"] is None:
        return _Part("characters", count=1)
    try:
        return _expression(_tree(token["regex"]))
    except UnsupportedSpecError:
        times = math.prod(max(int(one), 1) for one in _COUNT.findall(token["regex"]))
        return _Part("characters", count=_UNREAD, unread=len(token["regex"]) * times)


def _tree(regex: str) -> ecma.Node:
    """The tree of a regular expression as Lark grammars write it."""
    return ecma.parse(_CODE.sub(r"\1\\u{", regex))


def _expression(node: ecma.Node) -> _Part:
    match node:
        case ecma.Sequence(parts):
            return _Part("all", tuple(map(_expression, parts)))
        case ecma.Alternation(options):
            return _Part("any", tuple(map(_expression, options)))
        case ecma.Repeat(part, low, high):
            return _Part("repeat", (_expression(part),), count=low, more=high != low)
    if not isinstance(node, ecma.Characters):
        return _Part("characters")
    ranges = ecma.complement(node.ranges) if node.negated else node.ranges
    least = min((low for low, _ in ranges), default=0)
    # each byte may need a token
    return _Part("characters", count=len(chr(least).encode(errors="replace")))


def _sizes(
    part: _Part, known: dict[str, tuple[float, float]], needed: int
) -> tuple[float, float]:
    """Characters of the shortest text, and the most that a choice adds (0: all are as
    long)."""
    if part.kind == "characters":
        return part.count, 0
    if part.kind == "rule":  # its choices count where it is defined
        least, most = known.get(part.name, (0, 0))
        return least, min(most, 1)
    inner = [_sizes(one, known, needed) for one in part.parts]
    sizes = [one[0] for one in inner]
    most = max((one[1] for one in inner), default=0)
    if part.kind == "all":
        return sum(sizes), most
    finite = [size for size in sizes if size < _NEVER] or [0]
    if part.kind == "repeat":
        return part.count and part.count * sizes[0], max(
            most, max(finite) if part.more else 0
        )
    if part.kind == "most":
        return max(sizes), most
    required = sum(
        size
        for one, size in zip(part.parts, sizes, strict=True)
        if 0 <= one.bit < needed
    )
    return max(min(sizes), required), max(most, max(finite) - min(finite))


def examples(text: str) -> list[bytes]:
    """Short texts that the regular expressions of a grammar match, without quotes: with
    those a free text may end that must end in some way."""
    found: dict[bytes, None] = {}
    tokens = _TOKEN.finditer(_SPACED.sub(r'"\1"', text))
    for token in itertools.islice(
        (one for one in tokens if one["regex"]), _MOST_EXAMPLES
    ):
        with contextlib.suppress(UnsupportedSpecError):
            for example in _examples(_tree(token["regex"])):
                found[
                    example.encode(errors="replace")
                    .removeprefix(b'"')
                    .removesuffix(b'"')
                ] = None
    return [example for example in found if 0 < len(example) <= _LONGEST_EXAMPLE]


def _examples(node: ecma.Node) -> list[str]:
    """The shortest first; of a choice one for each way to write it."""
    found = [""]
    match node:
        case ecma.Sequence(parts):
            known = [_examples(part) for part in parts]
            usual = [examples[0] for examples in known]
            others = (
                (at, one) for at, examples in enumerate(known) for one in examples[1:]
            )
            found = [
                "".join(usual),
                *("".join([*usual[:at], one, *usual[at + 1 :]]) for at, one in others),
            ]
        case ecma.Alternation(options):
            found = sorted(
                (one for option in options for one in _examples(option)), key=len
            )
        case ecma.Repeat(part, low, _) if low:
            once = _examples(part)
            found = once if low == 1 else [once[0] * min(low, _LONGEST_EXAMPLE)]
        case ecma.Characters(ranges, _, negated):
            allowed = ecma.complement(ranges) if negated else ranges
            likely = (
                code for low, high in allowed for code in _USUAL if low <= code <= high
            )
            found = [chr(next(likely, allowed[0][0] if allowed else ord("a")))]
    return list(dict.fromkeys(one[: _LONGEST_EXAMPLE + 1] for one in found))[:_WAYS]


def marks(text: str) -> frozenset[str]:
    """Characters with which free text may end, or become another: those that a class of
    it leaves out, and the last ones of what ends it in a tag. One stands for all beyond
    ASCII."""
    found = {
        int(code, 16) if code else ord(letter) for code, letter in _ENDED.findall(text)
    }
    for one in set(_CLASS.findall(text)):
        with contextlib.suppress(UnsupportedSpecError):
            node = _tree(one)
            ranges = node.ranges if isinstance(node, ecma.Characters) else ()
            out = ranges if one[1] == "^" else ecma.complement(ranges)
            if not any(low <= code <= high for low, high in out for code in PROBES):
                for low, high in {*out}.difference(_NO_TEXT):
                    found.update(range(min(low, 128), min(high, 128) + 1))
    return frozenset(
        chr(min(code, 128)) for code in found if code > 31 and code not in b'"\\<'
    )
