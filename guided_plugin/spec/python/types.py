"""Types as JSON Schema, and JSON as values of them: what pydantic reads. Imports
pydantic.

What pydantic judges and its JSON Schemas do not say (validators of a model, bounds of a
date), only `read` checks.
"""

from __future__ import annotations

import enum
import json
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from guided_plugin.errors import OutputError, SpecError, shown

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

    @property
    def texts(self) -> list[str] | None:
        """The texts of an `Enum` or `Literal` that has nothing else."""
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
        bounds: Any = dict(schema)
        places = schema.get("decimal_places")
        digits = schema.get("max_digits")
        if places is not None:
            bounds.setdefault("multiple_of", Decimal(1).scaleb(-places))
        if places is not None and digits is not None:
            limit = Decimal(1).scaleb(max(digits - places, 0))
            bounds["gt"] = max(schema.get("gt", -limit), -limit)
            bounds["lt"] = min(schema.get("lt", limit), limit)
        made: dict[str, Any] = super().decimal_schema(bounds)["anyOf"][0]
        return made

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
        """Return the schema of a set, whose items are scalars where it does not say."""
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
