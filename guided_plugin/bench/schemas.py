"""The schemas that benchmarks decode: arrays too long to end, so that every step is a full one."""

from __future__ import annotations

from typing import Any


def endless(properties: dict[str, Any]) -> dict[str, Any]:
    """An array of objects with these properties, longer than any benchmark decodes."""
    item = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return repeated(item)


def repeated(item: Any) -> dict[str, Any]:
    """An array of what a schema describes, as long."""
    return {"type": "array", "items": item, "minItems": 500}


SCHEMAS: dict[str, dict[str, Any]] = {
    "plain": endless(
        {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "city": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "active": {"type": "boolean"},
        }
    ),
    "maxlength": endless(
        {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer"},
            "city": {"type": "string", "maxLength": 60},
            "note": {"type": "string", "minLength": 1, "maxLength": 200},
            "active": {"type": "boolean"},
        }
    ),
}
"""`plain`: nothing a backend finds hard. `maxlength`: strings with length bounds, which many find hard."""

REAL_WORLD = "real-world"
"""Schemas of a MaskBench sample, `REAL_WORLD_COUNT` of them at once, each as an array that is too long."""
REAL_WORLD_COUNT = 28
