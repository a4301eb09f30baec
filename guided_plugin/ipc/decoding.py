"""Reading messages of a process that may be broken: pickles of plain data. Depends on the standard library.

A process that runs native code on a client's spec may send anything at all. What is read here makes objects
of the classes it is told of, and calls nothing else; it takes memory in proportion to its length.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable
from typing import Any

MAX_PARTS = 100_000
"""Of one message: numbers, texts, tuples. Each takes some memory of its own."""

# What protocol 5 writes for plain data and dataclasses. Left out: what names its place in the table of things
# seen so far, which takes as much memory as it says, and what calls methods of objects.
_PARTS = frozenset(
    [
        *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET"),
        *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
        *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
        *("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "FROZENSET"),
        *("EMPTY_LIST", "APPEND", "APPENDS", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD"),
    ]
)


def plain_decoder(classes: Iterable[type], functions: Iterable[Any] = ()) -> Callable[[bytes], Any]:
    """A function that reads pickles of these classes and of plain data. It raises pickle.UnpicklingError, or
    what unpickling raises, for anything else. `functions` are what the classes' `__reduce__` calls."""
    known: dict[tuple[str, str], Any] = {(one.__module__, one.__qualname__): one for one in classes}
    known |= {(one.__module__, one.__name__): one for one in functions}

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str, /) -> Any:
            try:
                return known[module, name]
            except KeyError:
                raise pickle.UnpicklingError(f"{module}.{name} is no part of a message") from None

    def decode(data: bytes) -> Any:
        for number, (part, _, _) in enumerate(pickletools.genops(data)):
            if part.name not in _PARTS:
                raise pickle.UnpicklingError(f"{part.name} is no part of a message")
            if number >= MAX_PARTS:
                raise pickle.UnpicklingError(f"it has more than {MAX_PARTS} parts")
        return Unpickler(io.BytesIO(data)).load()

    return decode
