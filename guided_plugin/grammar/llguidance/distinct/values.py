"""When two JSON texts are the same value. Depends on nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from decimal import Decimal, InvalidOperation
from typing import Any

_ZERO = re.compile(r"-?[0.]+(?:[eE]|$)")


def value_key(text: bytes) -> Hashable:
    """Equal for texts of equal values: 1 and 1.0, objects in any order; but not for 1 and true."""
    if text[:1] == b'"' or text[:1] in b"tfn":
        return text
    if text[:1] not in b"[{":
        return _number(text.decode("ascii", "replace"))
    try:
        value = json.loads(
            text.decode(errors="surrogateescape"),
            parse_float=_number,
            parse_int=_number,
            object_pairs_hook=_Members,
        )
        return _frozen(value)
    except (ValueError, RecursionError):
        return text


def plain_text(text: bytes) -> bytes:
    """A scalar in the one spelling that is kept; what is no number, or a very long one, as it is."""
    if text[:1] not in b"-0123456789":
        return text
    try:
        number = Decimal(text.decode("ascii"))
        if number == 0:
            return b"0"
        return (
            format(number.normalize(), "f").encode()
            if -40 < number.adjusted() < 40 and len(text) < 28
            else text
        )
    except (InvalidOperation, UnicodeDecodeError):
        return text


def plain_end(text: bytes) -> bytes:
    """A text that ends with a number, with that in the one spelling that is kept."""
    before = text.rstrip(b"0123456789+-.eE")
    number = text[len(before) :]
    if b"." in number or b"e" in number.lower() or number == b"-0":
        return before + plain_text(number)
    return text


class _Members(list[tuple[str, Any]]):
    """An object's members; of a repeated name the last one counts."""


def _number(text: str) -> Hashable:
    try:
        return "number", Decimal(0) if _ZERO.match(text) else Decimal(text)
    except InvalidOperation:
        return text


def _frozen(value: Any) -> Hashable:
    if isinstance(value, _Members):
        return "object", frozenset((name, _frozen(member)) for name, member in dict(value).items())
    if isinstance(value, list):
        return "array", tuple(map(_frozen, value))
    if isinstance(value, tuple):
        return value
    return "literal" if isinstance(value, str) else "constant", value
