"""The shipped demo: where the tiny model lies, and the three prompts it is shown with.

Nothing here imports torch, so listing the demos is cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MODEL_DIR: Final = Path(__file__).resolve().parent / "model"


@dataclass(frozen=True)
class Demo:
    """One prompt, and the JSON Schema that its guided completion has to satisfy."""

    name: str
    title: str
    prompt: str
    schema: dict[str, Any]


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """An object schema with exactly these properties, all of them required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_FULL_NAME: Final = {
    "type": "string",
    "pattern": r"^[A-Z][a-z]{1,14} [A-Z][a-z]{1,14}$",
}

_PERSON: Final = closed_object(
    {
        "name": _FULL_NAME,
        "age": {"type": "integer", "minimum": 18, "maximum": 90},
        "email": {
            "type": "string",
            "pattern": r"^[a-z]+\.[a-z]+@example\.(com|net|org)$",
        },
        "city": {"type": "string", "minLength": 3, "maxLength": 30},
        "role": {
            "enum": ["engineer", "designer", "teacher", "nurse", "chef", "architect"]
        },
        "newsletter": {"type": "boolean"},
    }
)

_ORDER_ITEM: Final = closed_object(
    {
        "product": {"type": "string", "minLength": 3, "maxLength": 30},
        "qty": {"type": "integer", "minimum": 1, "maximum": 20},
        "price": {"type": "number"},
    }
)

_ORDER: Final = closed_object(
    {
        "id": {"type": "string", "pattern": r"^ORD-[0-9]{5}$"},
        "customer": _FULL_NAME,
        "items": {"type": "array", "items": _ORDER_ITEM, "minItems": 1, "maxItems": 3},
        "currency": {"enum": ["EUR", "USD", "GBP"]},
        "status": {"enum": ["pending", "paid", "shipped", "delivered"]},
    }
)

_LOG_LINE: Final = closed_object(
    {
        "time": {
            "type": "string",
            "pattern": r"^2026-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
            r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$",
        },
        "level": {"enum": ["DEBUG", "INFO", "WARN", "ERROR"]},
        "service": {"type": "string", "pattern": r"^[a-z]{3,12}$"},
        "message": {"type": "string", "minLength": 5, "maxLength": 60},
        "status": {"type": "integer", "minimum": 100, "maximum": 599},
        "latency_ms": {"type": "integer", "minimum": 0, "maximum": 9999},
    }
)

DEMOS: Final[tuple[Demo, ...]] = (
    Demo("person", "A person", "Person as JSON: ", _PERSON),
    Demo("order", "An order with a list of items", "Order as JSON: ", _ORDER),
    Demo("log", "A log line", "Log line as JSON: ", _LOG_LINE),
)
