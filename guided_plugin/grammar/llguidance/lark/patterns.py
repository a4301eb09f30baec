"""What a pattern, a format or a regular expression allows, as parts of a terminal, and
what a terminal takes.

A JSON string writes some characters as escapes, so a pattern is rewritten for the text
with its quotes, one spelling for each character: as itself, or where JSON forbids that,
as its short escape. Depends on spec/languages and spec/formats; what a terminal takes
is asked of llguidance.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import groupby
from typing import Any

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.spec.ecma import (
    LINE_ENDS,
    MAX_CODE,
    Alternation,
    Both,
    Characters,
    Node,
    Not,
    Ranges,
    Repeat,
    Sequence,
    children,
    complement,
    meet,
)
from guided_plugin.spec.formats import FORMATS, LENGTHS
from guided_plugin.spec.languages import (
    ANY,
    ANYTHING,
    EMPTY,
    flat,
    searched,
    times,
    tree_bytes,
    whole,
)
from guided_plugin.spec.memo import remembered, texts_bytes
from guided_plugin.spec.properties import has_property

_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_ESCAPED = [*range(32), 34, 92]
_TEXT: Ranges = ((0, 0xD7FF), (0xE000, MAX_CODE))
"""All but surrogates, which are not characters."""
_RAW: Ranges = ((32, 33), (35, 91), (93, 0xD7FF), (0xE000, MAX_CODE))
"""What JSON writes as itself."""
_RAW_CLASS = r'[^"\\\x00-\x1F]'
NOTHING = r"[^\x00-\U0010FFFF]"
_ANY_BYTES = f"(~/{NOTHING}/)"
"""Whatever comes, ill-formed texts included: llguidance sees at once that nothing more
is asked for."""

ANY_CHARACTER = rf'(?:{_RAW_CLASS}|\\["\\bfnrt]|\\u00(?:0[0-7bef]|1[0-9a-f]))'
"""One character of a JSON string, in one spelling."""

_HEX = "[0-9a-fA-F]"
_HIGH_HALF = rf"[dD](?:[0-7]|[89abAB]{_HEX}{{2}}\\u[dD][c-fC-F])"
ANY_SPELLING = rf'(?:{_RAW_CLASS}|\\["\\/bfnrt]|\\u(?:[0-9a-cA-CeEfF]{_HEX}|{_HIGH_HALF}){_HEX}{{2}})'
"""One character of a JSON string, in all its spellings: raw, as a short escape or as
code units."""

# Patterns that meet length bounds need fuel: requests that end with llguidance's own
# limits work with these. A mask that needs all of a step's takes 60 ms; the next ones
# in the same state take none.
FUEL = {"initial_lexer_fuel": 4_000_000, "step_lexer_fuel": 4_000_000}
"""The work that a lexer may do when it is made, and for one mask."""

_MATCHER_BYTES = 200_000
"""A guess at what a matcher and what its lexer learns take."""
_QUOTE = ord('"')
# How many bytes are tried to find out whether a terminal takes only a few texts, and
# how long these may be.
_MAX_STEPS = 3_000
_MAX_BYTES = 100

Leaf = Callable[[Characters], str]


@remembered(texts_bytes)
def pattern(source: str) -> str:
    """The string literals in whose text a pattern is found."""
    return _term(searched(source), _quoted, '"', '"')


@remembered(texts_bytes)
def also_pattern(source: str) -> str:
    """The same for a part, or an opposite, where another part of the intersection takes
    literals only.

    Behind what the pattern looks for it takes any bytes. With any *string* there,
    llguidance would have to go through all states of the other parts to prove that the
    opposite of it leaves no text.
    """
    return _term(searched(source), _quoted, '"', '"', loose=True)


@remembered(texts_bytes)
def whole_text(source: str) -> str:
    """The texts that a regular expression matches from the first to the last
    character."""
    return _term(whole(source), _unquoted, "", "")


@remembered(texts_bytes)
def lead(source: str) -> str | None:
    """Characters of which any number may come first in a string: whatever they are, the
    pattern can be met.

    None where those are not nearly all there are.
    """
    node = searched(source)
    options = node.options if isinstance(node, Alternation) else (node,)
    # With an empty class it may match no text at all.
    leads = {
        _lead(option)
        for option in options
        if NOTHING not in _term(option, _unquoted, "", "")
    }
    return ANY_CHARACTER if ANY_CHARACTER in leads else next(filter(None, leads), None)


def _lead(node: Node) -> str | None:
    first = (flat(node) or [EMPTY])[0]
    if (
        not isinstance(first, Repeat)
        or first.high is not None
        or not isinstance(first.part, Characters)
    ):
        return None
    if first.part == ANY:
        return ANY_CHARACTER
    allowed = first.part.ranges if first.part.negated else complement(first.part.ranges)
    most = all(high < 32 or (low, high) in LINE_ENDS for low, high in allowed)
    return _quoted(first.part) if most and not first.part.properties else None


@remembered(texts_bytes)
def _searched_text(source: str) -> str:
    return _term(searched(source), _unquoted, "", "")


def matches(source: str, text: str) -> bool:
    """Whether a pattern is found in a text."""
    return _takes(_searched_text(source), text, f"pattern {source[:80]!r}")


def matches_format(name: str, text: str) -> bool:
    """Whether a text has a format."""
    body = " & ".join(expression(f"(?:{part})") for part in _format_parts(name))
    return _takes(body, text, f"format {name!r}")


def _takes(body: str, text: str, what: str) -> bool:
    found = _takes_text(body, text.encode(errors="surrogatepass"))
    if found is None:
        raise UnsupportedSpecError(
            f"{what} needs too much work to be compared with {text[:80]!r}",
            where="#",
            hint="write shorter counted repetitions, or no lookahead",
        )
    return found


def quoted_format(name: str) -> str:
    """The string literals of a format. Formats hold no character that JSON escapes."""
    parts = [expression(f'"(?:{body})"') for body in _format_parts(name)]
    return parts[0] if len(parts) == 1 else f"({' & '.join(parts)})"


def _format_parts(name: str) -> list[str]:
    return [FORMATS[name], *([LENGTHS[name]] if name in LENGTHS else [])]


def literal(text: str) -> str:
    """A regular expression for one text without quotes, in the spelling that `pattern`
    uses."""
    return "".join(_quoted(Characters(((ord(char), ord(char)),))) for char in text)


def expression(body: str) -> str:
    """A regular expression as the grammar writes it."""
    return "/" + body.replace("/", "\\/") + "/"


def _term(
    node: Node,
    leaf: Leaf,
    before: str,
    after: str,
    *,
    loose: bool = False,
    last: bool = True,
) -> str:
    """A tree between two marks. Regular expressions have no intersections, terminals
    have.

    `loose`: another part of an intersection says how the text goes on behind ANYTHING,
    and how it ends. `last`: the tree reaches to the end of the text.
    """
    flattened = flat(node)
    if loose and flattened and flattened[-1] == ANYTHING:
        start = _term(Sequence(tuple(flattened[:-1])), leaf, before, "", last=False)
        return f"({start} {_ANY_BYTES})" if before or flattened[:-1] else _ANY_BYTES
    if _is_plain(node) and not (loose and isinstance(node, Alternation)):
        return expression(f"{before}(?:{_text(node, leaf)}){after}")
    match node:
        case Both(parts):
            # One that is no `Not` says what texts there are, unless another part of the
            # whole does.
            full = next(
                (i for i, part in enumerate(parts) if not isinstance(part, Not)), 0
            )
            terms = [
                _term(
                    part,
                    leaf,
                    before,
                    after,
                    loose=loose or (last and i != full),
                    last=last,
                )
                for i, part in enumerate(parts)
            ]
            return "(" + " & ".join(terms) + ")"
        case Alternation(options):
            terms = [
                _term(option, leaf, before, after, loose=loose, last=last)
                for option in options
            ]
            return "(" + " | ".join(terms) + ")"
        case Not(part):
            return "~" + _term(part, leaf, before, after, loose=loose, last=last)
    grouped = [(plain, tuple(parts)) for plain, parts in groupby(flattened, _is_plain)]
    runs = [
        run
        for plain, parts in grouped
        for run in ([Sequence(parts)] if plain else parts)
    ]
    terms = []
    for i, run in enumerate(runs):
        final = i == len(runs) - 1
        ends = after if final else ""
        terms.append(
            _term(
                run,
                leaf,
                "" if i else before,
                ends,
                loose=loose and final,
                last=last and final,
            )
        )
    return "(" + " ".join(terms) + ")"


def _is_plain(node: Node) -> bool:
    return not isinstance(node, Both | Not) and all(map(_is_plain, children(node)))


def _text(node: Node, leaf: Leaf) -> str:
    """A regular expression for a plain tree; `leaf` writes its characters."""
    match node:
        case Sequence(parts):
            return "".join(_text(part, leaf) for part in parts)
        case Alternation(options):
            return "(?:" + "|".join(_text(option, leaf) for option in options) + ")"
        case Repeat(part, low, high):
            return f"(?:{_text(part, leaf)})" + times(low, high)
        case Characters():
            return leaf(node)
    raise TypeError(node)


def _leaf_bytes(node: Characters, text: str) -> int:
    return tree_bytes("", node) + texts_bytes(text)


@remembered(_leaf_bytes)
def _quoted(node: Characters) -> str:
    """One character of a JSON string: raw where JSON allows that, else its escapes."""
    if node == ANY:
        return ANY_CHARACTER
    raw = _class(node, _RAW, _RAW_CLASS)
    escapes = _escapes([code for code in _ESCAPED if _holds(node, code)])
    options = [*([] if raw == NOTHING and escapes else [raw]), *escapes]
    return options[0] if len(options) == 1 else f"(?:{'|'.join(options)})"


@remembered(_leaf_bytes)
def _unquoted(node: Characters) -> str:
    return _class(node, _TEXT, r"[\x00-\U0010FFFF]")


def _class(node: Characters, within: Ranges, within_class: str) -> str:
    """One character of those within some ranges."""
    if node.properties:
        body = "".join(_range(low, high) for low, high in node.ranges)
        body += "".join(f"\\{name}" for name in node.properties)
        return f"[[{'^' if node.negated else ''}{body}]&&{within_class}]"
    wanted = complement(node.ranges) if node.negated else node.ranges
    ranges = meet(wanted, within)
    if not ranges:
        return NOTHING
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _code(ranges[0][0])
    return "[" + "".join(_range(low, high) for low, high in ranges) + "]"


def _holds(node: Characters, code: int) -> bool:
    inside = any(low <= code <= high for low, high in node.ranges)
    return (
        inside or any(has_property(name, code) for name in node.properties)
    ) != node.negated


def _escapes(codes: list[int]) -> list[str]:
    short = "".join(_SHORT[code] for code in codes if code in _SHORT)
    result = (
        ["\\\\[" + "".join("\\" + c if c in '"\\' else c for c in short) + "]"]
        if short
        else []
    )
    for high in (0, 1):
        digits = [
            f"{code & 15:x}"
            for code in codes
            if code >> 4 == high and code not in _SHORT
        ]
        if digits:
            result.append(f"\\\\u00{high}[{''.join(digits)}]")
    return result


def _code(code: int) -> str:
    char = chr(code)
    return char if char.isalnum() and code < 128 else f"\\x{{{code:X}}}"


def _range(low: int, high: int) -> str:
    return _code(low) if low == high else f"{_code(low)}-{_code(high)}"


class _Bytes:
    """A vocabulary of single bytes."""

    eos_token_id = 256
    bos_token_id = unk_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"</s>")
    special_token_ids = (256,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def _tokenizer() -> Any:
    import llguidance

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=257)


def _matcher_of(body: str) -> Any:
    import llguidance

    text = f'%llguidance {{"no_forcing": true}}\nstart: T\nT: {body}\n'
    limits = llguidance.LLParserLimits(**FUEL, verbose_errors=False)
    return llguidance.LLMatcher(_tokenizer(), text, log_level=0, limits=limits)


@remembered(texts_bytes)
def takes_nothing(body: str) -> bool:
    """Whether a terminal takes no text. False where llguidance can't tell."""
    matcher = _matcher_of(body)
    return not matcher.get_error() and not _next_bytes(matcher)


@remembered(lambda body, _: _MATCHER_BYTES + texts_bytes(body))
def _start(body: str) -> Any:
    return _matcher_of(body)


def _takes_text(body: str, text: bytes) -> bool | None:
    """Whether a terminal takes a text, in time linear in its length; None where
    llguidance can't tell.

    Python's `re` would take exponential time for some patterns, and clients write them.
    """
    matcher = _start(body).deep_copy()
    tokens = list(text)
    if matcher.is_error() or matcher.validate_tokens(tokens) != len(tokens):
        return None if matcher.is_error() else False
    return bool(not tokens or matcher.consume_tokens(tokens)) and bool(
        matcher.is_accepting()
    )


@remembered(texts_bytes)
def few_strings(body: str, limit: int) -> tuple[str, ...] | None:
    """The strings whose JSON a terminal takes, where these are short and at most so
    many; else None."""
    matcher = _matcher_of(body)
    if matcher.get_error():
        return None
    found: dict[str, None] = {}
    text = bytearray()
    levels = [_next_bytes(matcher)]
    for _ in range(_MAX_STEPS):
        if not levels[-1]:
            levels.pop()
            if not levels:
                return tuple(found)
            text.pop()
            matcher.rollback(1)
            continue
        byte = levels[-1].pop()
        matcher.consume_token(byte)
        text.append(byte)
        if byte == _QUOTE and len(text) > 1 and matcher.is_accepting():
            found[json.loads(text)] = None
            if len(found) > limit:
                return None
        if len(text) > _MAX_BYTES:
            return None
        levels.append(_next_bytes(matcher))
    return None


def _next_bytes(matcher: Any) -> list[int]:
    """What may come next; quotes last, where they are taken first."""
    bits = int.from_bytes(matcher.compute_bitmask()[:32], "little")
    found = [byte for byte in range(256) if bits >> byte & 1 and byte != _QUOTE]
    return [*found, _QUOTE] if bits >> _QUOTE & 1 else found
