"""Random changes to JSON values, texts and bytes: near what they were, and near what is
well formed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random
from typing import Any

__all__ = [
    "CHARACTERS",
    "copied",
    "mutate_bytes",
    "mutate_text",
    "mutate_value",
    "nodes",
]

CHARACTERS = 'abcxyzABC019_-. /"\\\né€😀\x7f'


def mutate_text(
    chance: Random,
    text: str,
    pieces: Sequence[str] = CHARACTERS,
    others: Sequence[str] = (),
) -> str:
    """One change to a text: a piece put in, a part taken out, replaced or repeated, or
    another's end."""
    at = chance.randint(0, len(text))
    end = min(len(text), at + chance.choice((1, 1, 2, 5, 20)))
    match chance.randrange(7):
        case 0:
            return text[:at] + text[end:]
        case 1 | 2:
            return text[:at] + chance.choice(pieces) + text[at:]
        case 3:
            return text[:at] + text[at:end] * chance.choice((2, 3, 40)) + text[end:]
        case 4 if others:
            other = chance.choice(others)
            return text[:at] + other[chance.randint(0, len(other)) :]
        case 5:
            return (
                text[:at]
                + chr(chance.randrange(chance.choice((128, 0x110000))))
                + text[end:]
            )
    return chance.choice((text.swapcase(), text[::-1], text[:at], text + text))


def mutate_bytes(chance: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Some changes to bytes: flipped, cut, joined, and lengths that are not so."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 6))):
        at = chance.randint(0, len(out))
        match chance.randrange(6):
            case 0 | 1 if out:
                out[at % len(out)] ^= chance.randrange(1, 256)
            case 2:
                del out[at : at + chance.choice((1, 4, 30))]
            case 3:
                out[at:at] = chance.randbytes(chance.choice((1, 4, 9)))
            case 4:
                other = chance.choice(others)
                out[at:] = other[chance.randint(0, len(other)) :]
            case _:
                out[at : at + 8] = chance.choice(
                    (0, 5, 2**31, 2**40, 2**64 - 1)
                ).to_bytes(8, "little")
    return bytes(out)


def mutate_value(
    chance: Random, value: Any, values: Sequence[Any], names: Sequence[Any]
) -> Any:
    """One change to a copy of a JSON value, at any depth; new parts and names come from
    these pools."""
    whole = [copied(value)]
    if whole[0] is value and isinstance(value, dict | list):  # too deep for a copy
        return copied(chance.choice(values))
    holder: Any = whole
    at: Any = 0
    while (
        isinstance(inner := holder[at], dict | list) and inner and chance.random() < 0.6
    ):
        holder = inner
        at = chance.choice([*inner] if isinstance(inner, dict) else range(len(inner)))
    holder[at] = _changed(chance, holder[at], values, names)
    return whole[0]


def _changed(
    chance: Random, value: Any, values: Sequence[Any], names: Sequence[Any]
) -> Any:
    if chance.random() < 0.12:
        return copied(chance.choice(values))
    if isinstance(value, dict):
        return _changed_object(chance, value, copied(chance.choice(values)), names)
    if isinstance(value, list):
        return _changed_array(chance, value, copied(chance.choice(values)))
    if isinstance(value, str):
        return (
            chance.choice((len(value), [value]))
            if chance.random() < 0.2
            else mutate_text(chance, value)
        )
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 1e300
    ):
        steps = (1, -1, 0.5, -0.25, 0.1, 1e-9, 10, -value, value)
        moved = value + chance.choice(steps) if abs(value) < 1e15 else value // 2
        return chance.choice((str(value), float(value), moved, moved, round(moved, 9)))
    return copied(chance.choice((not value, 0, "true", [value], {}, *values)))


def _changed_object(
    chance: Random, value: dict[Any, Any], new: Any, names: Sequence[Any]
) -> Any:
    keys = list(value)
    match chance.randrange(6):
        case 0 if keys:
            del value[chance.choice(keys)]
        case 1 if keys:
            old = chance.choice(keys)
            other = chance.choice((mutate_text(chance, str(old)), chance.choice(names)))
            return {
                (other if name == old else name): child for name, child in value.items()
            }
        case 2:
            chance.shuffle(keys)
            return {name: value[name] for name in keys}
        case 3 if keys:
            value[chance.choice(keys)] = chance.choice(
                (new, copied(value[chance.choice(keys)]))
            )
        case _:
            value[chance.choice(names)] = new
    return value


def _changed_array(chance: Random, value: list[Any], new: Any) -> list[Any]:
    match chance.randrange(5):
        case 0 if value:
            del value[chance.randrange(len(value))]
        case 1 if value:
            value.append(_reordered(copied(chance.choice(value))))
        case 2:
            chance.shuffle(value)
        case 3:
            return value + copied(value)
        case _:
            value.insert(chance.randint(0, len(value)), new)
    return value


def _reordered(value: Any) -> Any:
    """An equal value: an object with its members the other way round."""
    return dict(reversed(value.items())) if isinstance(value, dict) else value


def copied(value: Any) -> Any:
    """A copy of all of it, or the value itself: deep ones, and others that can't be
    copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def nodes(value: Any, most: int = 400) -> list[Any]:
    """What a value is made of, itself first; of large ones a part."""
    found = [value]
    for node in found:
        if len(found) < most and isinstance(node, dict | list):
            found += node.values() if isinstance(node, dict) else node[:50]
    return found
