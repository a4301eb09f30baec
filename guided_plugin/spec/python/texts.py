"""Outputs as texts: JSON, one of several texts, what a regex matches. Depends on errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from guided_plugin.errors import OutputError, SpecError, shown

__all__ = ["json_value", "match", "pattern_text", "value_of_text"]

_AGAIN = "only a complete output can be read: look at whether it was cut"

_KEPT_FLAGS = re.UNICODE | re.ASCII
_WAYS_OUT = {
    re.IGNORECASE: "write both cases, as in [aA]",
    re.DOTALL: "write [^] for any character",
    re.MULTILINE: "write the line ends",
    re.VERBOSE: "write it without spaces and comments",
}


def json_value(text: str) -> Any:
    """What a JSON text stands for."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise OutputError(f"is not JSON: {error.msg}", where=where, hint=_AGAIN) from None
    except (ValueError, RecursionError, TypeError) as error:
        raise OutputError(f"is not JSON that can be read: {error}", hint=_AGAIN) from None


def value_of_text(values: Mapping[str, Any], text: str) -> Any:
    """The value that a text stands for."""
    try:
        return values[text]
    except KeyError:
        raise OutputError(f"{shown(text)} is none of {shown(list(values))}", hint=_AGAIN) from None


def pattern_text(pattern: re.Pattern[Any]) -> str:
    """The regex of a compiled pattern. Raises SpecError for flags that change what it says."""
    if not isinstance(pattern.pattern, str):
        raise SpecError("is a pattern of bytes", where="re.Pattern", hint="compile a text")
    for flag, hint in _WAYS_OUT.items():
        if pattern.flags & flag:
            what = f"the flag {flag.name} changes what it says, and cannot be kept"
            raise SpecError(what, where="re.Pattern", hint=hint)
    if pattern.flags & ~_KEPT_FLAGS:
        what = f"it has flags that cannot be kept: {re.RegexFlag(pattern.flags & ~_KEPT_FLAGS)!r}"
        raise SpecError(what, where="re.Pattern", hint="compile it without flags")
    return pattern.pattern


def match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """The match of a whole text."""
    found = pattern.fullmatch(text)
    if found is None:
        raise OutputError(
            f"{shown(text)} does not match {shown(pattern.pattern)}",
            hint="if it is complete, Python reads this regex otherwise: docs/specs.md#python-types",
        )
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
