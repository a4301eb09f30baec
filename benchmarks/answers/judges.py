"""Judges of answers. Each takes the parsed answer and what the task expects.

valid    the answer is valid under the task's schema, by `jsonschema`
equals   it is this JSON value; texts are compared as in `same_text`
calls    these calls in any order: name, all required arguments, no others, each one of the accepted values
         (an empty text among them: the argument may be missing)
items    the answer's list has these items, and no others
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Json

_IGNORED = re.compile(r"[ ,./\-_*^'\"]")
"""Characters that BFCL ignores in texts."""
_MISSING = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is found about one answer."""

    right: bool = False
    valid: bool = False
    found: int = 0
    """Expected items that it has."""
    empty: int = 0
    """Empty lists in it."""
    whole: bool = False
    """The output is JSON, without text around it."""


def judged(text: str, schema: Json, expected: Json) -> Verdict:
    """Judge an output. One that is not JSON is neither valid nor right."""
    answer = first_json(text)
    if answer is None:
        return Verdict()
    ((name, wanted),) = expected.items()
    is_valid = valid(answer[0], schema)
    right = is_valid if name == "valid" else JUDGES[name](answer[0], wanted)
    found = len(items_found(answer[0], wanted)) if name == "items" else 0
    return Verdict(
        right,
        is_valid,
        found,
        empty_lists(answer[0]),
        is_json(text),
    )


def first_json(text: str) -> tuple[Any] | None:
    """Return the first JSON value of a text, in a tuple because `null` is one too; None
    without one.

    Text around an object or an array is skipped: unguided models explain themselves.
    """
    decoder = json.JSONDecoder()
    starts = [
        len(text) - len(text.lstrip()),
        *(match.start() for match in re.finditer(r"[\[{]", text)),
    ]
    for start in starts[:_TRIES]:
        try:
            return (decoder.raw_decode(text, start)[0],)
        except (RecursionError, ValueError):
            continue
    return None


_TRIES = 20


def is_json(text: str) -> bool:
    """Tell whether the whole text is one JSON value."""
    try:
        json.loads(text)
    except (RecursionError, ValueError):
        return False
    return True


def valid(answer: Any, schema: Json) -> bool:
    """Tell whether the answer is valid under the schema, by the draft that the schema
    names."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    checks = validator_for(schema, default=Draft202012Validator)
    return bool(checks(schema).is_valid(answer))


def right_calls(answer: Any, expected: Sequence[Json]) -> bool:
    """Tell whether the calls are those that are expected, each of them once."""
    given = list(answer) if isinstance(answer, list) else [answer]
    if len(given) != len(expected):
        return False
    for call in expected:
        at = next(
            (index for index, one in enumerate(given) if _is_call(one, call)), None
        )
        if at is None:
            return False
        del given[at]
    return True


def _is_call(given: Any, expected: Json) -> bool:
    ((name, arguments),) = expected.items()
    return (
        isinstance(given, dict)
        and given.get("name") == name
        and isinstance(given.get("arguments"), dict)
        and _right_arguments(given["arguments"], arguments)
    )


def _right_arguments(given: Json, expected: Json) -> bool:
    if not given.keys() <= expected.keys():
        return False
    return all(
        any(same(given[name], one) for one in _values(accepted))
        if name in given
        else _MISSING in _values(accepted)
        for name, accepted in expected.items()
    )


def _values(accepted: Any) -> list[Any]:
    """Return the accepted values; BFCL leaves the list out in a few places."""
    return accepted if isinstance(accepted, list) else [accepted]


def same(given: Any, expected: Any) -> bool:
    """Tell whether a value is an accepted one. An accepted object has lists of accepted
    values."""
    if isinstance(expected, str) and isinstance(given, str):
        return same_text(given, expected)
    if isinstance(expected, dict) and isinstance(given, dict):
        return _right_arguments(given, expected)
    if isinstance(expected, list) and isinstance(given, list):
        return len(given) == len(expected) and all(map(same, given, expected))
    return isinstance(given, bool) == isinstance(expected, bool) and bool(
        given == expected
    )


def same_text(given: str, expected: str) -> bool:
    """Compare without case, spaces and punctuation, as BFCL does."""
    return _IGNORED.sub("", given).lower() == _IGNORED.sub("", expected).lower()


def right_items(answer: Any, expected: Sequence[Json]) -> bool:
    """Tell whether the answer's list has all items, and no others."""
    return len(items_found(answer, expected)) == len(expected) == len(_items(answer))


def items_found(answer: Any, expected: Sequence[Json]) -> list[Json]:
    """Return the expected items that the answer has."""
    given = _items(answer)
    return [item for item in expected if any(_is_item(one, item) for one in given)]


def _items(answer: Any) -> list[Any]:
    """Return the first list of the answer."""
    if isinstance(answer, dict):
        answer = next(
            (value for value in answer.values() if isinstance(value, list)), []
        )
    return answer if isinstance(answer, list) else []


def _is_item(given: Any, expected: Json) -> bool:
    if isinstance(given, str):
        given = {"name": given}
    return isinstance(given, dict) and all(
        same(given.get(name), value) for name, value in expected.items()
    )


def empty_lists(answer: Any) -> int:
    """Count the empty lists of a value."""
    if not isinstance(answer, (dict, list)):
        return 0
    inner = answer.values() if isinstance(answer, dict) else answer
    return int(answer == []) + sum(map(empty_lists, inner))


JUDGES: dict[str, Callable[[Any, Any], bool]] = {
    "valid": lambda answer, expected: True,
    "equals": lambda answer, expected: same(answer, _accepted(expected)),
    "calls": right_calls,
    "items": right_items,
}


def _accepted(value: Any) -> Any:
    """A value in the form of accepted ones."""
    if isinstance(value, dict):
        return {name: [_accepted(one)] for name, one in value.items()}
    return list(map(_accepted, value)) if isinstance(value, list) else value
