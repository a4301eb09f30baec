"""The smallest schema that still fails: keywords, branches and list items are left out while it does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["shrink"]


def shrink(value: Any, fails: Callable[[Any], bool], *, attempts: int = 1_500) -> Any:
    """A smaller JSON value that still fails; the same one where none is found."""
    left = iter(range(attempts))
    while True:
        for smaller in _smaller(value):
            if next(left, None) is None:
                return value
            if fails(smaller):
                value = smaller
                break
        else:
            return value


def _smaller(value: Any) -> Iterator[Any]:
    """Values with one thing less, the largest steps first."""
    found = {_key(other): other for other in _steps(value)}
    size = len(_key(value))
    yield from (found[key] for key in sorted(found, key=len) if len(key) < size)


def _key(value: Any) -> str:
    return json.dumps(value)


def _steps(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, child in value.items():
            rest = {other: value[other] for other in value if other != name}
            yield rest
            yield child
            # Branches may move up, next to what stands there.
            for part in child if isinstance(child, list) else (child,):
                if isinstance(part, dict):
                    yield {**rest, **part}
            for step in _steps(child):
                yield {**value, name: step}
    elif isinstance(value, list):
        yield from value
        for place, child in enumerate(value):
            yield value[:place] + value[place + 1 :]
            for step in _steps(child):
                yield [*value[:place], step, *value[place + 1 :]]
    elif isinstance(value, str) and value:
        yield from (value[1:], value[:-1], value[: len(value) // 2])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from (0, 1, int(value), round(value, 1))
