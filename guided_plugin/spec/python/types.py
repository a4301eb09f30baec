"""Types as JSON Schema, and JSON as values of them: what pydantic reads. Imports
pydantic.

What pydantic judges and its JSON Schemas do not say (validators of a model, bounds of a
date) is listed: only `read` checks it.
"""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from guided_plugin.errors import OutputError, SpecError, shown

_BOUNDS = ("gt", "ge", "lt", "le")
_UNSAID: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("date", "datetime", "time", "timedelta"), (*_BOUNDS, "now_op", "tz_constraint")
    ),
    "str": ("strip_whitespace", "to_lower", "to_upper"),
    "url": ("allowed_schemes", "host_required", "max_length"),
    "multi-host-url": ("allowed_schemes", "host_required", "max_length"),
    "uuid": ("version",),
}
"""What a schema of pydantic's core may ask for, by its type, and its JSON Schema leaves
out."""
_SCALARS = {"type": ["string", "number", "boolean", "null"]}


class JsonType:
    """A type as JSON."""

    def __init__(self, of: Any, name: str) -> None:
        """`name`: what errors call it."""
        self._name = name
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(of)
            self._adapter.rebuild(raise_errors=True)  # names what is not defined
            self.schema: Any = self._adapter.json_schema(schema_generator=_Schemas)
        except SpecError as error:
            raise SpecError(error.what, where=self._name, hint=error.hint) from None
        # of pydantic, and of what types do when they are looked at: many kinds
        except Exception as error:
            raise SpecError(
                f"pydantic has no JSON Schema of it: {' '.join(str(error).split())}",
                where=self._name,
                hint="use a type that has one, or pass a schema to OutputSpec.json_schema",
            ) from error
        self.checked = tuple(dict.fromkeys(_unsaid(self._adapter.core_schema)))
        """What the schema does not say, and `read` checks: one line each."""

    @property
    def texts(self) -> list[str] | None:
        """Of an `Enum` or `Literal` whose values are all texts, these."""
        if self._adapter.core_schema["type"] not in ("enum", "literal"):
            return None
        values = self.schema.get("enum", [self.schema.get("const")])
        return values if all(isinstance(value, str) for value in values) else None

    def read(self, text: str) -> Any:
        """The value that a JSON text stands for."""
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            more = (
                f", and {error.error_count() - 1} more"
                if error.error_count() > 1
                else ""
            )
            where = "#" + "".join(f"/{step}" for step in first["loc"])
            hint = "only a complete output can be read; validators are not part of the grammar"
            raise OutputError(
                f"is not {self._name}: {first['msg']}{more}", where=where, hint=hint
            ) from error

    def read_text(self, text: str) -> Any:
        """The value of an `Enum` or `Literal` that a text without quotes stands for."""
        return self.read(json.dumps(text))


class _Schemas(GenerateJsonSchema):
    """pydantic's own, but for decimals, which are numbers here, and what no JSON is
    read as."""

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """A number with the bounds of a decimal; pydantic would take any text too."""
        made: dict[str, Any] = {"type": "number"}
        names = (
            "exclusiveMinimum",
            "minimum",
            "exclusiveMaximum",
            "maximum",
            "multipleOf",
        )
        for bound, name in zip((*_BOUNDS, "multiple_of"), names, strict=True):
            if schema.get(bound) is not None:
                made[name] = _number(schema[bound])
        digits = schema.get("max_digits")
        places = schema.get("decimal_places")
        more: dict[str, Any] = {}
        if places is not None:
            more["multipleOf"] = _number(Decimal(1).scaleb(-places))
            if digits is not None:
                limit = _number(Decimal(1).scaleb(max(digits - places, 0)))
                more |= {"exclusiveMinimum": -limit, "exclusiveMaximum": limit}
        return (
            {**made, "allOf": [more]} if made.keys() & more.keys() else {**made, **more}
        )

    def literal_schema(self, schema: Any) -> dict[str, Any]:
        """Refuses values that pydantic does not find again: bytes, members of an Enum
        that are no texts."""
        _need_forms(schema["expected"])
        return super().literal_schema(schema)

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        """Refuses values without a form in JSON, such as tuples."""
        _need_forms([member.value for member in schema["members"]])
        return super().enum_schema(schema)

    def set_schema(self, schema: Any) -> dict[str, Any]:
        """Of a set of anything, items are scalars."""
        made = super().set_schema(schema)
        return {**made, "items": made.get("items") or _SCALARS}

    frozenset_schema = set_schema


def _need_forms(values: list[Any]) -> None:
    for value in values:
        if not isinstance(value, str | int | float | None):
            hint = "its values must be texts, numbers, true, false or None"
            if isinstance(value, enum.Enum):
                hint = "use the Enum itself, or a Literal of the values"
            raise SpecError(f"{shown(value)} has no form in JSON", hint=hint)


def _number(value: Any) -> int | float:
    exact = Decimal(str(value))
    return int(exact) if exact == exact.to_integral_value() else float(exact)


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    """The schemas of pydantic's core in one of them, itself first."""
    if isinstance(node, list | tuple):
        for one in node:
            yield from _nodes(one)
    if not isinstance(node, Mapping):
        return
    if isinstance(node.get("type"), str):
        yield node
    for key, inner in node.items():
        if key not in ("metadata", "serialization", "config", "default"):
            yield from _nodes(inner)


def _unsaid(root: Any) -> Iterator[str]:
    """What a schema of pydantic's core asks for that no JSON Schema says."""
    for node in _nodes(root):
        kind = node["type"]
        if kind.startswith("function-"):
            function = node["function"]["function"]
            while isinstance(function, functools.partial):
                function = function.func
            if not str(getattr(function, "__module__", "")).startswith("pydantic"):
                yield f"validator {getattr(function, '__qualname__', None) or repr(function)}"
        for name in _UNSAID.get(kind, ()):
            if node.get(name) not in (None, False):
                yield f"{name} of {kind}"
        if (
            kind == "decimal"
            and node.get("max_digits") is not None
            and node.get("decimal_places") is None
        ):
            yield "max_digits of decimal, without decimal_places"
        if kind in ("model", "dataclass"):
            name = getattr(node.get("cls"), "__qualname__", kind)
            if node.get("post_init"):
                yield f"{name}.{'model_post_init' if kind == 'model' else '__post_init__'}"
            if node.get("custom_init"):
                yield f"{name}.__init__"
