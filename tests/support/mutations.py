"""Random changes to JSON values, texts and bytes: near what they were, and near what is
well formed."""

from __future__ import annotations

import copy
import struct
from typing import Any

CHARACTERS = 'abcxyzABC019_-. /"\\\né€😀\x7f'


def mutate_text(
    chance,
    text,
    pieces=CHARACTERS,
    others=(),
):
    """One change to a text: a piece put in, a part taken out, replaced or repeated, or
    another's end."""
    at = chance.randint(0, len(text))
    end = at + chance.choice((1, 1, 2, 5, 20))
    before = text[:at]
    after = text[end:]
    match chance.randrange(7):
        case 0:
            return before + after
        case 1 | 2:
            return before + chance.choice(pieces) + text[at:]
        case 3:
            return before + text[at:end] * chance.choice((2, 3, 40)) + after
        case 4 if others:
            other = chance.choice(others)
            return before + other[chance.randint(0, len(other)) :]
        case 5:
            most = chance.choice((128, 0x110000))
            return before + chr(chance.randrange(most)) + after
    return chance.choice((text.swapcase(), text[::-1], before, text + text))


def mutate_bytes(chance, data, others):
    """Some changes to bytes, and lengths that are not so."""
    text = data.decode("latin-1")
    pieces = [struct.pack("<Q", length).decode("latin-1") for length in _LENGTHS]
    for _ in range(chance.choice((1, 1, 2, 6))):
        if chance.random() < 0.1:
            text = chance.choice(pieces) + text[8:]
        text = mutate_text(
            chance,
            text,
            [*pieces, *map(chr, range(256))],
            [other.decode("latin-1") for other in others],
        )
    return text.encode("latin-1", "ignore")


_LENGTHS = (0, 5, 2**31, 2**40, 2**64 - 1)


def mutate_value(chance, value, values, names):
    """One change to a copy of a JSON value, at any depth; new parts and names come from
    these pools."""
    whole = [copied(value)]
    if whole[0] is value and isinstance(value, dict | list):  # too deep for a copy
        return copied(chance.choice(values))
    holder: Any = whole
    at: Any = 0
    while chance.random() < 0.6:
        inner = holder[at]
        if not isinstance(inner, dict | list) or not inner:
            break
        holder = inner
        keys = holder if isinstance(holder, dict) else range(len(holder))
        at = chance.choice([*keys])
    new = copied(chance.choice(values))
    inner = holder[at]
    if chance.random() < 0.12:
        holder[at] = new
    elif isinstance(inner, dict):
        holder[at] = _changed_object(
            chance,
            inner,
            new,
            names,
        )
    elif isinstance(inner, list):
        _change_array(
            chance,
            inner,
            new,
        )
    else:
        holder[at] = _changed_scalar(
            chance,
            inner,
            new,
        )
    return whole[0]


def _changed_scalar(chance, value, new):
    if isinstance(value, str):
        other = chance.choice((len(value), [value]))
        return other if chance.random() < 0.2 else mutate_text(chance, value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or abs(value) >= 1e300:
        return chance.choice((not value, 0, "true", [value], {}, new))
    if abs(value) >= 1e15:
        return chance.choice((str(value), value // 2))
    moved = value + chance.choice((1, -1, 0.5, -0.25, 0.1, 1e-9, 10, -value, value))
    return chance.choice((str(value), float(value), moved, moved, round(moved, 9)))


def _changed_object(chance, value, new, names):
    keys = list(value)
    key = chance.choice(keys or [None])
    match chance.randrange(6):
        case 0 if keys:
            del value[key]
        case 1 if keys:  # another name, in the same place
            edited = mutate_text(chance, str(key))
            other = chance.choice((edited, chance.choice(names)))
            pairs = value.items()
            return {other if name == key else name: child for name, child in pairs}
        case 2:
            chance.shuffle(keys)
            return {name: value[name] for name in keys}
        case 3 if keys:
            another = copied(value[chance.choice(keys)])
            value[key] = chance.choice((new, another))
        case _:
            value[chance.choice(names)] = new
    return value


def _change_array(chance, value, new):
    place = chance.randint(0, len(value))
    match chance.randrange(5):
        case 0:
            del value[place : place + 1]
        case 1 if value:
            value.append(_reordered(copied(chance.choice(value))))
        case 2:
            chance.shuffle(value)
        case 3:
            value += copied(value)
        case _:
            value.insert(place, new)


def _reordered(value):
    """An equal value: an object with its members the other way round."""
    return dict(reversed(value.items())) if isinstance(value, dict) else value


def copied(value):
    """A copy of all of it, or the value itself: deep ones, and others that can't be
    copied."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def nodes(value, most=400):
    """What a value is made of, itself first; of large ones a part."""
    found = [value]
    for node in found:
        if len(found) < most and isinstance(node, dict | list):
            found += node.values() if isinstance(node, dict) else node[:50]
    return found
