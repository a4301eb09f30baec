"""Patterns for the whitespace in JSON, as clients of vLLM send them. Depends on languages.

JSON is compact or has any whitespace. So a pattern is honoured that allows any, and one that allows none:
compact JSON matches it, whatever else it allows. One that demands whitespace is refused.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from guided_plugin.errors import SpecError, UnsupportedSpecError
from guided_plugin.spec.languages import nullable, whole

_LONGEST = 1000

_REPEATED = re.compile(r"(?:\((?:\?:)?)?\[((?:\\[ntrs]|[ \n\t\r])+)\]\*\)?|(\\s)\*")
"""A class of whitespace, repeated."""

_ANY = frozenset(" \n\t\r")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r"}


def whitespace_of(pattern: Any, where: str) -> Literal["compact", "flexible"]:
    """The option `whitespace` that honours a pattern. Raises SpecError if none does."""
    if not isinstance(pattern, str):
        raise SpecError(f"must be a string, not {type(pattern).__name__}", where=where)
    if len(pattern) > _LONGEST:
        raise SpecError("is too long for a pattern of whitespace", where=where, hint=_HINT)
    if _allows_any(pattern):
        return "flexible"
    try:
        allows_none = not pattern or nullable(whole(pattern))
    except UnsupportedSpecError as error:
        raise SpecError(error.what, where=where, hint=error.hint or _HINT) from None
    if not allows_none:
        raise SpecError("demands whitespace, which is never forced", where=where, hint=_HINT)
    return "compact"


def _allows_any(pattern: str) -> bool:
    found = _REPEATED.fullmatch(pattern)
    if found is None:
        return False
    members = re.findall(r"\\.|.", found[1] or found[2], re.DOTALL)
    return "\\s" in members or {_ESCAPES.get(one, one) for one in members} >= _ANY


_HINT = "one that matches the empty text makes compact JSON; or use whitespace: compact or flexible"
