"""Types of the standard library as JSON Schema, and JSON as their values. Depends on errors and nodes.

A type that has anything else in it raises ForeignTypeError: another library may know it.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import types
import typing
from typing import Any, Literal, NewType, Union, get_args, get_origin

from guided_plugin.errors import OutputError, SpecError, shown
from guided_plugin.spec.python.names import name_of
from guided_plugin.spec.python.nodes import (
    AnyScalar,
    Anything,
    Items,
    Mapped,
    Node,
    Record,
    Scalar,
    Sequenced,
    Unions,
    Values,
)
from guided_plugin.spec.python.texts import json_value

__all__ = ["ForeignTypeError", "PlainType"]


class ForeignTypeError(Exception):
    """A type, or a part of one, that is not the standard library's."""

    def __init__(self, part: Any) -> None:
        super().__init__(name_of(part))
        self.part = part


_SCALARS: dict[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    None: "null",
    types.NoneType: "null",
}
_LISTS = (list, collections.abc.Sequence, collections.abc.MutableSequence)
_SETS = {
    set: set,
    collections.abc.MutableSet: set,
    frozenset: frozenset,
    collections.abc.Set: frozenset,
}
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_FORMS = str | int | float | None
"""What an `Enum` or a `Literal` may hold: what JSON has a form for, and Python one spelling."""


class PlainType:
    """A type of the standard library as JSON."""

    def __init__(self, of: Any) -> None:
        self._records: dict[Any, Record] = {}
        self._definitions: dict[str, Record] = {}
        self._checked: list[str] = []
        self._root = self._node(of)
        self.checked = tuple(self._checked)
        self.schema: dict[str, Any] = dict(self._root.schema)
        if self._definitions:
            self.schema["$defs"] = {name: one.definition for name, one in self._definitions.items()}

    @property
    def texts(self) -> list[str] | None:
        """Of an `Enum` or `Literal` of texts, these."""
        return self._root.texts if isinstance(self._root, Values) else None

    def read(self, text: str) -> Any:
        """The value that a JSON text stands for."""
        return self.value(json_value(text))

    def value(self, value: Any) -> Any:
        """The value that JSON stands for, as `json.loads` reads it."""
        try:
            return self._root.read(value)
        except RecursionError:
            raise OutputError("is nested too deep", where="#", hint="bound its depth in the type") from None

    def _node(self, of: Any) -> Node:
        of = _bare(of)
        if of is Any or of is object:
            return Anything()
        if of is None or (isinstance(of, type) and of in _SCALARS):
            return Scalar(of, _SCALARS[of])
        origin, inner = get_origin(of), get_args(of)
        if origin is Literal:
            return Values([_pair(of, value) for value in inner])
        if origin in (Union, types.UnionType):
            return Unions([self._node(one) for one in inner], name_of(of))
        if origin is None and not isinstance(of, type):
            raise ForeignTypeError(of)
        kind = origin or of
        if kind in _LISTS:
            return Items(list, self._item(inner))
        if kind in _SETS:
            return Items(_SETS[kind], self._set_item(of, inner))
        if kind is tuple:
            return self._tuple(of, inner)
        if kind in _DICTS and (not inner or inner[0] in (str, Any)):
            return Mapped(self._node(inner[1]) if inner else Anything())
        if origin is None and issubclass(of, enum.Enum):
            return Values(_members(of))
        if origin is None and (dataclasses.is_dataclass(of) or _is_typed_dict(of)):
            return self._record(of)
        raise ForeignTypeError(of)

    def _item(self, inner: tuple[Any, ...]) -> Node:
        return self._node(inner[0]) if inner else Anything()

    def _set_item(self, of: Any, inner: tuple[Any, ...]) -> Node:
        item = self._item(inner)
        if type(item) is Anything:
            return AnyScalar()
        if not item.hashable:
            hint = "use a list, or items that Python can hash: frozen dataclasses, tuples"
            raise SpecError("its items cannot be in a set", where=name_of(of), hint=hint)
        return item

    def _tuple(self, of: Any, inner: tuple[Any, ...]) -> Node:
        if of is tuple or of is typing.Tuple:  # noqa: UP006  (what is given may be either)
            return Items(tuple, Anything())
        if len(inner) == 2 and inner[1] is Ellipsis:
            return Items(tuple, self._node(inner[0]))
        return Sequenced([self._node(one) for one in inner])

    def _record(self, of: Any) -> Record:
        record = self._records.get(of)
        if record is not None:
            return record
        hints = _hints(of)
        # Another library's dataclasses have more to say than their fields.
        if hasattr(of, "__pydantic_validator__") or any(
            isinstance(hint, dataclasses.InitVar) for hint in hints.values()
        ):
            raise ForeignTypeError(of)
        names = (of.__name__, *(f"{of.__name__}_{number}" for number in range(2, len(self._records) + 3)))
        name = next(one for one in names if one not in self._definitions)
        # Made before its fields are looked at, which may hold it again.
        record = self._records[of] = self._definitions[name] = Record(name)
        if _is_typed_dict(of):
            for key, hint in hints.items():
                record.add(key, self._node(hint), _is_required(of, key, hint))
            return record
        record.make = of
        if hasattr(of, "__post_init__"):
            self._checked.append(f"{name_of(of)}.__post_init__")
        missing = dataclasses.MISSING
        for field in dataclasses.fields(of):
            if field.init:
                needed = field.default is missing and field.default_factory is missing
                record.add(field.name, self._node(hints[field.name]), needed)
        return record


def _bare(of: Any) -> Any:
    """A type without what says nothing of its values: names, and comments in `Annotated`."""
    while True:
        origin = get_origin(of)
        if isinstance(of, NewType):
            of = of.__supertype__
        elif origin in (typing.Required, typing.NotRequired):
            of = get_args(of)[0]
        elif origin is typing.Annotated and all(isinstance(note, str) for note in of.__metadata__):
            of = of.__origin__
        else:
            return of


def _is_typed_dict(of: Any) -> bool:
    return issubclass(of, dict) and hasattr(of, "__required_keys__")


def _is_required(of: Any, key: str, hint: Any) -> bool:
    # Annotations that are texts tell only now.
    origin = get_origin(hint)
    if origin in (typing.Required, typing.NotRequired):
        return origin is typing.Required
    return key in of.__required_keys__


def _hints(of: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(of, include_extras=True)
    except (NameError, AttributeError) as error:
        raise SpecError(
            f"names a type that is not known: {error}",
            where=name_of(of),
            hint="define it at the top level of its module, before the spec is made",
        ) from None
    except (TypeError, SyntaxError) as error:
        raise SpecError(
            f"its annotations cannot be read: {error}", where=name_of(of), hint="annotate with types"
        ) from None


def _members(of: type[enum.Enum]) -> list[tuple[Any, Any]]:
    found = [_pair(of, member) for member in of]
    if not found:
        raise SpecError("has no members and allows nothing", where=name_of(of), hint="give it one")
    return found


def _pair(of: Any, value: Any) -> tuple[Any, Any]:
    """A value's form in JSON, and the value."""
    plain = value.value if isinstance(value, enum.Enum) else value
    if not isinstance(plain, _FORMS):
        raise SpecError(
            f"{shown(plain)} has no form in JSON",
            where=name_of(of),
            hint="its values must be texts, numbers, true, false or None",
        )
    return plain, value
