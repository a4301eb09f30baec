"""Types that msgspec reads: what has a `Struct` in it. Imports msgspec."""

from __future__ import annotations

from typing import Any

import msgspec

from guided_plugin.errors import OutputError, SpecError
from guided_plugin.spec.python.names import name_of

__all__ = ["MsgspecType"]


class MsgspecType:
    """A type as JSON, by msgspec."""

    def __init__(self, of: Any) -> None:
        self._name = name_of(of)
        try:
            self.schema: Any = msgspec.json.schema(of)
            self._decoder = msgspec.json.Decoder(of)
        except (TypeError, ValueError, NameError) as error:
            raise SpecError(
                f"msgspec has no JSON Schema of it: {error}",
                where=self._name,
                hint="use types that it has one for, or pass a schema to OutputSpec.json_schema",
            ) from error
        structs = dict.fromkeys(_structs(msgspec.inspect.type_info(of), set()))
        self.checked = tuple(
            f"{one.__qualname__}.__post_init__" for one in structs if hasattr(one, "__post_init__")
        )

    def read(self, text: str) -> Any:
        """The value that a JSON text stands for."""
        try:
            return self._decoder.decode(text)
        except msgspec.MsgspecError as error:  # its messages end with the place
            hint = "only a complete output can be read"
            raise OutputError(f"is no {self._name}: {error}", hint=hint) from error


def _structs(info: Any, seen: set[int]) -> list[type]:
    """The Structs in what msgspec knows of a type."""
    if id(info) in seen:
        return []
    seen.add(id(info))
    found = [info.cls] if isinstance(info, msgspec.inspect.StructType) else []
    for name in getattr(info, "__struct_fields__", ()):
        inner = getattr(info, name)
        for one in inner if isinstance(inner, tuple) else (inner,):
            if isinstance(one, msgspec.Struct):
                found += _structs(one, seen)
    return found
