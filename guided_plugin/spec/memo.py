"""Memos whose keys or values come from clients: all of them are bounded in bytes.
Depends on nothing.

`Latest` is a dictionary that keeps what was used last, `remembered` a functools cache
with a bound in bytes.
"""

from __future__ import annotations

import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, ParamSpec, TypeVar, cast

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
P = ParamSpec("P")

ENTRY_BYTES = 512
"""Bytes that an entry takes besides texts: the dictionary's own, a short key, small
objects."""


class Latest(Generic[K, T]):
    """Keeps the entries that were put or read last, up to a number of bytes. Not
    thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[K, tuple[T, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> T | None:
        """The value of a key, if it is there; it then goes last."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: T, size_bytes: int) -> T:
        """Keep a value that takes so many bytes with its key, unless it alone takes
        more than all may."""
        self.drop(key)
        if size_bytes <= self.limit_bytes:
            self._entries[key] = value, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self.limit_bytes:
                self.drop(next(iter(self._entries)))
        return value

    def drop(self, key: K) -> None:
        """Forget a key, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size_bytes -= entry[1]


def remembered(
    size_bytes: Callable[[Any, Any], int],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remember what a function returned. `size_bytes` says what its first argument and
    a result take.

    A result that is there costs what `functools.lru_cache` costs. When the results
    together take more than `MEMO_BYTES`, all are forgotten. So a memo holds that and
    one result at most.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        taken = 0

        @functools.lru_cache(maxsize=_MOST_RESULTS)
        def cached(*args: Any, **kwargs: Any) -> T:
            nonlocal taken
            result = function(*args, **kwargs)
            size = size_bytes(args[0], result) + ENTRY_BYTES
            taken += size
            if taken > MEMO_BYTES:
                cached.cache_clear()
                taken = size
            return result

        return cast("Callable[P, T]", functools.wraps(function)(cached))

    return decorate


MEMO_BYTES = 8 << 20
"""Bytes that one function remembers, at most."""

_MOST_RESULTS = 4096
"""Results that one function remembers, however small. Chosen, not measured."""


def texts_bytes(*values: Any) -> int:
    """Return the bytes that texts, and tuples of them, take."""
    size = sum(map(sys.getsizeof, values))
    for value in values:
        if isinstance(value, tuple):
            size += texts_bytes(*value)
    return size
