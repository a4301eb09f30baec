"""Whether an answer is what was asked for. Depends on `jsonschema` and `re` alone,
never on the package.

A judge gets the text of an answer and its tool calls (name, arguments), and returns
what is wrong; empty if nothing is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema

Call = tuple[str, str]
Judge = Callable[[str, Sequence[Call]], str]


def anything(text: str, calls: Sequence[Call]) -> str:
    """For requests that ask for nothing."""
    return ""


def of_schema(schema: Any) -> Judge:
    """The text is one JSON value that satisfies the schema."""
    return lambda text, calls: _against(text, schema)


def of_object(text: str, calls: Sequence[Call]) -> str:
    """The text is one JSON object."""
    return _against(text, {"type": "object"})


def of_pattern(pattern: str) -> Judge:
    """The whole text matches. The pattern must be one that `re` searches in bounded
    time."""
    compiled = re.compile(pattern)
    return lambda text, calls: (
        "" if compiled.fullmatch(text) else f"{text[:200]!r} does not match {pattern!r}"
    )


def of_texts(texts: Sequence[str]) -> Judge:
    """The text is one of these."""
    return lambda text, calls: (
        "" if text in texts else f"{text[:200]!r} is none of {texts!r}"
    )


def of_calls(tools: dict[str, Any], *, required: bool) -> Judge:
    """Each call names a tool, and its arguments satisfy the tool's schema; at least
    one, if required."""

    def judge(text: str, calls: Sequence[Call]) -> str:
        if required and not calls:
            return f"no call in {text[:200]!r}"
        for name, arguments in calls:
            if name not in tools:
                return f"{name!r} is no tool"
            wrong = _against(arguments, tools[name])
            if wrong:
                return f"{name}: {wrong}"
        return ""

    return judge


def _against(text: str, schema: Any) -> str:
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{text[:200]!r} is not JSON: {error}"
    wrong = next(jsonschema.Draft202012Validator(schema).iter_errors(value), None)
    if wrong is None:
        return ""
    return f"{text[:200]!r} breaks {json.dumps(schema)[:400]}: {wrong.message[:200]}"
