"""Types that pydantic reads: models, `Annotated` constraints, dates and more. Imports pydantic.

What pydantic judges and its JSON Schemas do not say (validators of a model, bounds of a date) is listed: only
`read` checks it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from guided_plugin.errors import OutputError, SpecError
from guided_plugin.spec.python.names import name_of

__all__ = ["PydanticType"]

_BOUNDS = ("gt", "ge", "lt", "le")
_UNSAID: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("date", "datetime", "time", "timedelta"), (*_BOUNDS, "now_op", "tz_constraint")),
    "str": ("strip_whitespace", "to_lower", "to_upper"),
    "url": ("allowed_schemes", "host_required", "max_length"),
    "multi-host-url": ("allowed_schemes", "host_required", "max_length"),
    "uuid": ("version",),
}
"""What a schema of pydantic's core may ask for, by its type, and its JSON Schema leaves out."""


class PydanticType:
    """A type as JSON, by pydantic."""

    def __init__(self, of: Any) -> None:
        self._name = name_of(of)
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(of)
            self.schema: Any = self._adapter.json_schema(schema_generator=_Schemas)
        except Exception as error:  # of pydantic, and of what types do when they are looked at: many kinds
            raise SpecError(
                f"pydantic has no JSON Schema of it: {' '.join(str(error).split())}",
                where=self._name,
                hint="use a type that has one, or pass a schema to OutputSpec.json_schema",
            ) from error
        self.checked = tuple(dict.fromkeys(_unsaid(self._adapter.core_schema)))

    def read(self, text: str) -> Any:
        """The value that a JSON text stands for."""
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            more = f", and {error.error_count() - 1} more" if error.error_count() > 1 else ""
            where = "#" + "".join(f"/{step}" for step in first["loc"])
            hint = "only a complete output can be read; validators are not part of the grammar"
            raise OutputError(f"is no {self._name}: {first['msg']}{more}", where=where, hint=hint) from error


class _Schemas(GenerateJsonSchema):
    """pydantic's own, but for decimals: as numbers, whose bounds and places a grammar can hold."""

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """A number with the bounds of a decimal; pydantic would take any text too."""
        made: dict[str, Any] = {"type": "number"}
        names = ("exclusiveMinimum", "minimum", "exclusiveMaximum", "maximum", "multipleOf")
        for bound, name in zip((*_BOUNDS, "multiple_of"), names, strict=True):
            if schema.get(bound) is not None:
                made[name] = _number(schema[bound])
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        more: dict[str, Any] = {}
        if places is not None:
            more["multipleOf"] = _number(Decimal(1).scaleb(-places))
            if digits is not None:
                limit = _number(Decimal(1).scaleb(max(digits - places, 0)))
                more |= {"exclusiveMinimum": -limit, "exclusiveMaximum": limit}
        return {**made, "allOf": [more]} if made.keys() & more.keys() else {**made, **more}


def _number(value: Any) -> int | float:
    exact = Decimal(str(value))
    return int(exact) if exact == exact.to_integral_value() else float(exact)


_NO_SCHEMAS = ("metadata", "serialization", "config", "default")


def _unsaid(node: Any) -> Iterator[str]:
    """What a schema of pydantic's core asks for that no JSON Schema says."""
    if isinstance(node, list | tuple):
        for one in node:
            yield from _unsaid(one)
    if not isinstance(node, Mapping):
        return
    kind = node.get("type")
    if isinstance(kind, str):
        yield from _of_node(kind, node)
    for key, inner in node.items():
        if key not in ("metadata", "serialization", "config", "default") and isinstance(
            inner, Mapping | list | tuple
        ):
            yield from _unsaid(inner)


def _of_node(kind: str, node: Mapping[str, Any]) -> Iterator[str]:
    if kind.startswith("function-"):
        function = node["function"]["function"]
        while isinstance(function, functools.partial):
            function = function.func
        if not str(getattr(function, "__module__", "")).startswith("pydantic"):
            yield f"validator {getattr(function, '__qualname__', None) or repr(function)}"
    for name in _UNSAID.get(kind, ()):
        if node.get(name) not in (None, False):
            yield f"{name} of {kind}"
    if kind == "decimal" and node.get("max_digits") is not None and node.get("decimal_places") is None:
        yield "max_digits of decimal, without decimal_places"
    if kind in ("model", "dataclass"):
        name = getattr(node.get("cls"), "__qualname__", kind)
        if node.get("post_init"):
            yield f"{name}.{'model_post_init' if kind == 'model' else '__post_init__'}"
        if node.get("custom_init"):
            yield f"{name}.__init__"
