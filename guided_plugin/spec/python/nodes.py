"""JSON Schemas of types, and how JSON becomes values of them: one class for each kind. Depends on errors.

`read` takes a value as `json.loads` makes it. Where a type is `exact`, 1.0 is no `int` and 1 no `float`: a
union takes the first member that fits exactly, else the first that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from guided_plugin.errors import OutputError, shown

__all__ = [
    "AnyScalar",
    "Anything",
    "Items",
    "Mapped",
    "Node",
    "Path",
    "Record",
    "Scalar",
    "Sequenced",
    "Unions",
    "Values",
]

Path = tuple[str | int, ...]


class Node(Protocol):
    """One type."""

    schema: dict[str, Any]

    @property
    def hashable(self) -> bool:
        """Whether its values may be in a set."""

    def read(self, value: Any, path: Path = (), *, exact: bool = False) -> Any:
        """The value of the type. Raises OutputError with its place."""


class Anything:
    """`Any`: a value as JSON has it."""

    schema: dict[str, Any] = {}  # noqa: RUF012  (never written to)
    hashable = False

    def read(self, value: Any, path: Path = (), *, exact: bool = False) -> Any:
        """The value."""
        return value


class Scalar:
    """`bool`, `int`, `float`, `str`, `None`."""

    hashable = True

    def __init__(self, of: type | None, name: str) -> None:
        self._of = type(None) if of is None else of
        self._name = name
        self.schema = {"type": name}

    def read(self, value: Any, path: Path = (), *, exact: bool = False) -> Any:
        """The value; without `exact` a number becomes the kind of number that is asked for."""
        if type(value) is self._of:
            return value
        if not exact and type(value) in (int, float):
            if self._of is float:
                return _float(value, path)
            if self._of is int and value.is_integer():
                return int(value)
        raise wrong(path, f"must be {_ARTICLED[self._name]}, not {shown(value)}")


class AnyScalar(Anything):
    """What a set of anything may hold."""

    schema = {"type": ["string", "number", "boolean", "null"]}  # noqa: RUF012
    hashable = True


class Values:
    """`Literal` and `Enum`: some values, by their form in JSON."""

    hashable = True

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """`pairs`: JSON's value and Python's."""
        self._pairs = pairs
        self.schema = {"enum": list(dict.fromkeys(plain for plain, _ in pairs))}
        if len(self.schema["enum"]) < len({(type(plain), plain) for plain, _ in pairs}):
            # 1, 1.0 and True are one key to Python.
            self.schema = {"enum": [plain for plain, _ in pairs]}

    @property
    def texts(self) -> list[str] | None:
        """All values, where each is a text."""
        found = [plain for plain, _ in self._pairs if isinstance(plain, str)]
        return list(dict.fromkeys(found)) if len(found) == len(self._pairs) else None

    def read(self, value: Any, path: Path = (), *, exact: bool = False) -> Any:
        """The value that has this form."""
        for plain, known in self._pairs:
            if plain == value and isinstance(plain, bool) == isinstance(value, bool):
                return known
        raise wrong(path, f"{shown(value)} is none of {shown([plain for plain, _ in self._pairs])}")


class Items:
    """`list[T]`, `tuple[T, ...]`, `set[T]`, `frozenset[T]`."""

    def __init__(self, make: type, item: Node) -> None:
        self._make = make
        self._item = item
        self.hashable = make is frozenset or (make is tuple and item.hashable)
        self.schema: dict[str, Any] = {"type": "array", "items": item.schema}
        if make in (set, frozenset):
            self.schema["uniqueItems"] = True

    def read(self, value: Any, path: Path = (), *, exact: bool = False) -> Any:
        """The items in what holds them."""
        items = _list(value, path)
        found = [self._item.read(one, (*path, index), exact=exact) for index, one in enumerate(items)]
        try:
            return self._make(found)
        except TypeError as error:  # what can't be in a set
            raise wrong(path, f"cannot be a {self._make.__name__}: {error}") from None


class Sequenced:
    """`tuple[T, U]`."""

    def __init__(self, items: Sequence[Node]) -> None:
        self._items = items
        self.hashable = all(item.hashable for item in items)
        self.schema: dict[str, Any] = {"type": "array", "minItems": len(items), "maxItems": len(items)}
        if items:
            self.schema["prefixItems"] = [item.schema for item in items]

    def read(self, value: Any, path: Path = (), *, exact: bool = False) -> Any:
        """The tuple."""
        items = _list(value, path)
        if len(items) != len(self._items):
            raise wrong(path, f"must have {len(self._items)} items, not {len(items)}")
        nodes = enumerate(zip(self._items, items, strict=True))
        return tuple(node.read(one, (*path, index), exact=exact) for index, (node, one) in nodes)


class Mapped:
    """`dict[str, T]`."""

    hashable = False

    def __init__(self, item: Node) -> None:
        self._item = item
        self.schema: dict[str, Any] = {"type": "object", "additionalProperties": item.schema or True}

    def read(self, value: Any, path: Path = (), *, exact: bool = False) -> Any:
        """The dictionary."""
        members = _object(value, path).items()
        return {key: self._item.read(one, (*path, key), exact=exact) for key, one in members}


class Record:
    """A dataclass or a TypedDict: named fields. What it does not name is left out, as in other libraries."""

    make: Callable[..., Any] = dict

    def __init__(self, name: str) -> None:
        self._name = name
        self._fields: dict[str, tuple[Node, bool]] = {}
        self.schema: dict[str, Any] = {"$ref": f"#/$defs/{name}"}

    def add(self, key: str, node: Node, needed: bool) -> None:
        """One more field."""
        self._fields[key] = node, needed

    @property
    def hashable(self) -> bool:
        """Whether its class is: a frozen dataclass."""
        return getattr(self.make, "__hash__", None) is not None

    @property
    def definition(self) -> dict[str, Any]:
        """What `$defs` has of it."""
        properties = {key: node.schema for key, (node, _) in self._fields.items()}
        required = [key for key, (_, needed) in self._fields.items() if needed]
        return {"type": "object", "properties": properties, "required": required}

    def read(self, value: Any, path: Path = (), *, exact: bool = False) -> Any:
        """The instance, or dictionary."""
        members = _object(value, path)
        found = {}
        for key, (node, needed) in self._fields.items():
            if key in members:
                found[key] = node.read(members[key], (*path, key), exact=exact)
            elif needed:
                raise wrong(path, f"{self._name} has no {key!r}")
        try:
            return self.make(**found)
        except Exception as error:  # of a class's own code
            raise wrong(path, f"{self._name} refuses it: {error!r}") from error


class Unions:
    """`T | U`, `Optional[T]`."""

    def __init__(self, members: Sequence[Node], name: str) -> None:
        self._members = members
        self.hashable = all(member.hashable for member in members)
        self._name = name
        self.schema = {"anyOf": [member.schema for member in members]}

    def read(self, value: Any, path: Path = (), *, exact: bool = False) -> Any:
        """The value of the first member that fits exactly, else of the first that fits."""
        deepest: OutputError | None = None
        for strictly in (True,) if exact else (True, False):
            for member in self._members:
                try:
                    return member.read(value, path, exact=strictly)
                except OutputError as error:
                    if deepest is None or error.where.count("/") > deepest.where.count("/"):
                        deepest = error
        if deepest is not None and deepest.where != _pointer(path):
            raise deepest  # it nearly fits that member
        raise wrong(path, f"{shown(value)} fits none of {self._name}")


def wrong(path: Path, what: str) -> OutputError:
    """The error of a value at a place."""
    return OutputError(
        what, where=_pointer(path), hint="generate it again: the output may have been cut or changed"
    )


_ARTICLED = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "null": "null",
}


def _pointer(path: Path) -> str:
    return "#" + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _list(value: Any, path: Path) -> list[Any]:
    if not isinstance(value, list):
        raise wrong(path, f"must be a list, not {shown(value)}")
    return value


def _object(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(path, f"must be an object, not {shown(value)}")
    return value


def _float(value: float, path: Path) -> float:
    try:
        return float(value)
    except OverflowError:
        raise wrong(path, f"{shown(value)} is too large for a float") from None
