"""What turns a type into a JSON Schema and JSON into its values: one of three libraries. Depends on errors.

`plain` reads what the standard library has. A type with anything else in it goes, as a whole, to pydantic or
msgspec. So a type has the same schema whatever is installed next to this package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Protocol, get_args

from guided_plugin.errors import SpecError
from guided_plugin.spec.python.names import name_of
from guided_plugin.spec.python.plain import ForeignTypeError, PlainType

__all__ = ["JsonType", "json_type"]


class JsonType(Protocol):
    """A type as JSON."""

    schema: Any
    """What its JSON must satisfy."""
    checked: tuple[str, ...]
    """What no schema says, and only `read` checks: one line each."""

    def read(self, text: str) -> Any:
        """The value that a JSON text stands for. Raises OutputError."""


def json_type(of: Any) -> JsonType:
    """A type as JSON. Raises SpecError for one that JSON has no form for."""
    try:
        return PlainType(of)
    except ForeignTypeError as error:
        foreign = error.part
    if any(_is_msgspec(part) for part in _parts(of)) or _is_msgspec(foreign):
        return _library("msgspec", "msgspec_type", "MsgspecType", of, foreign)
    return _library("pydantic", "pydantic_type", "PydanticType", of, foreign)


def _library(name: str, module: str, kind: str, of: Any, foreign: Any) -> JsonType:
    try:
        import_module(name)
    except ImportError:
        raise SpecError(
            f"{name_of(foreign)} is no type that this package reads by itself, and {name} is not installed",
            where=name_of(of),
            hint=f"pip install {name}, or use dataclasses, TypedDict, Enum, Literal, list, dict and the like",
        ) from None
    made: JsonType = getattr(import_module(f"guided_plugin.spec.python.{module}"), kind)(of)
    return made


def _parts(of: Any) -> Iterator[Any]:
    yield of
    for part in get_args(of):
        yield from _parts(part)


def _is_msgspec(part: Any) -> bool:
    msgspec = sys.modules.get("msgspec")  # a process that has a Struct has imported it
    return msgspec is not None and isinstance(part, type) and issubclass(part, msgspec.Struct)
