"""When two JSON texts are the same value. Depends on nothing."""

from __future__ import annotations

import json
from collections.abc import Hashable
from decimal import Decimal, InvalidOperation
from typing import Any


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


class _Members(list[tuple[str, Any]]):
    """An object's members; of a repeated name the last one counts."""


def _number(text: str) -> Hashable:
    try:
        return "number", Decimal(text)
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
