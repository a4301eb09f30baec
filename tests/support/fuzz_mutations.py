"""Inputs that nobody would write: random changes to texts, bytes and values, near what is well formed."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

__all__ = ["Odd", "mutate_bytes", "mutate_text", "mutate_value"]


class Odd:
    """A value that no message can show."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def _deep(depth: int, wrap: str = "list") -> Any:
    value: Any = {}
    for _ in range(depth):
        value = [value] if wrap == "list" else {wrap: value}
    return value


def _circle() -> Any:
    circle: dict[str, Any] = {"type": "object"}
    circle["properties"] = {"a": circle}
    return circle


# Each call makes new ones: mutations write into containers.
_ODD = [
    *(
        lambda one=one: one
        for one in (None, True, False, 0, -1, 1.5, 1e308, 2**63, -(2**31), 10**400, 10**5000)
    ),
    *(lambda one=one: one for one in (float("nan"), float("inf"), -0.0, 1e-320, 0.1, 3.0, 1e22)),
    *(
        lambda one=one: one
        for one in ("", "a", "\n\x1b[31m\x00", "\ud800", "é\u202e", "a" * 5000, "#", "#/", "^$")
    ),
    *(lambda one=one: one for one in (b"{}", b"\xff", (1, 2), frozenset({1}), int, Odd(), object(), 1j)),
    *(
        list,
        dict,
        set,
        bytearray,
        lambda: {1: 2},
        lambda: {(): 1},
        lambda: {None: None},
        lambda: [[]],
        lambda: [{}],
    ),
    *(lambda depth=depth: _deep(depth) for depth in (90, 400, 980, 3000)),
    *(
        lambda wrap=wrap: _deep(300, wrap)
        for wrap in ("not", "items", "properties", "additionalProperties", "elements")
    ),
    lambda: _deep(5000, "items"),
    _circle,
    lambda: {"type": "object"},
    lambda: list(range(3000)),
    lambda: {f"k{i}": {} for i in range(300)},
]

_PIECES = [
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "{2,3}",
        "{0,999999999}",
        "{1000}",
        "*",
        "+",
        "?",
        "|",
        "^",
        "$",
        "\\",
        ".",
    ),
    *(
        "(?=",
        "(?!",
        "(?<=",
        "(?:",
        "[^",
        "a-z",
        "\\d",
        "\\p{L}",
        "\\u{1F600}",
        "\\ud83d",
        "\\b",
        "\\1",
        "-",
        "\x00",
    ),
    *(
        "\ud800",
        "\U0001f600",
        "é",
        "\u2028",
        "\n",
        "\r",
        "\x1b[2J",
        "[[:alpha:]]",
        "(?i)",
        "\\c",
        "\\x",
        '"',
        "'",
    ),
    *(
        "root ::= ",
        "start: ",
        "::=",
        "%llguidance {}",
        "%json {}",
        "%ignore /a/",
        "<tool>",
        "#/$defs/a",
        "~1",
        "%25",
    ),
    *(",", ":", "null", "true", "1e999", "-", "0" * 500, "/", "&", "~", "|" * 50, "((((", "a{1,9}{1,9}"),
]


def mutate_text(random: Random, text: str, others: list[str]) -> str:
    """Some changes to a text: pieces put in, taken out, repeated, joined with another text."""
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randint(0, len(text))
        end = min(len(text), at + random.choice((1, 1, 2, 5, 20)))
        match random.randrange(7):
            case 0:
                text = text[:at] + text[end:]
            case 1 | 2:
                text = text[:at] + random.choice(_PIECES) + text[at:]
            case 3:
                text = text[:at] + text[at:end] * random.choice((2, 3, 40)) + text[end:]
            case 4:
                other = random.choice(others)
                text = text[:at] + other[random.randint(0, len(other)) :]
            case 5:
                text = (
                    text[:at]
                    + chr(random.choice((random.randrange(128), random.randrange(0x110000))))
                    + text[end:]
                )
            case 6 if random.random() < 0.2:
                piece = random.choice(_PIECES)
                text = piece * random.choice((3, 150, 2000)) + text
    return text[:20_000]


def mutate_bytes(random: Random, data: bytes, others: list[bytes]) -> bytes:
    """Some changes to bytes: flipped, cut, joined, and lengths that are not so."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 6))):
        at = random.randint(0, len(out))
        match random.randrange(6):
            case 0 if out:
                out[at % len(out)] ^= 1 << random.randrange(8)
            case 1 if out:
                out[at % len(out)] = random.randrange(256)
            case 2:
                del out[at : at + random.choice((1, 4, 30))]
            case 3:
                out[at:at] = random.randbytes(random.choice((1, 4, 9)))
            case 4:
                other = random.choice(others)
                out[at:] = other[random.randint(0, len(other)) :]
            case 5:
                out[at : at + 8] = random.choice((0, 5, 2**31, 2**40, 2**64 - 1)).to_bytes(8, "little")
    return bytes(out)


def mutate_value(random: Random, value: Any, others: list[Any], words: list[str]) -> Any:
    """Some changes to a value: parts replaced, renamed, repeated, or taken from other values."""
    value = _copied(value)
    for _ in range(random.choice((1, 1, 2, 4))):
        holders = _holders(value)
        if not holders or random.random() < 0.03:
            value = _new(random, others)
            continue
        holder = random.choice(holders)
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = random.choice(keys) if keys else None
        new = _new(random, others)
        match random.randrange(6):
            case 0 if key is not None:
                del holder[key]
            case 1 | 2 if key is not None:
                old = holder[key]
                holder[key] = mutate_text(random, old, words) if isinstance(old, str) else new
            case 3 if key is not None and isinstance(holder, dict):
                holder[random.choice([*words, 7, None, ("a",), "a\n\x1b[1m"])] = holder.pop(key)
            case _ if isinstance(holder, dict):
                holder[random.choice(words)] = new
            case _:
                holder.insert(0 if key is None else key, new)
    return value


def _new(random: Random, others: list[Any]) -> Any:
    """An odd value, or a part of another one."""
    if random.random() < 0.5:
        return random.choice(_ODD)()
    holders = _holders(other := random.choice(others))
    return _copied(random.choice(holders) if holders else other)


def _holders(value: Any, most: int = 400) -> list[Any]:
    """Lists and objects in a value, itself first."""
    found, pending = [], [value]
    while pending and len(found) < most:
        node = pending.pop()
        if isinstance(node, (dict, list)):
            found.append(node)
            pending.extend(node.values() if isinstance(node, dict) else node[:50])
    return found


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # deep ones, and those that can't be copied
        return value
