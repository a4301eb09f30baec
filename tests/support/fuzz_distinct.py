"""Random schemas of arrays whose items must be distinct: unions, few values, nested ones, counted names."""

from __future__ import annotations

from random import Random
from typing import Any

__all__ = ["distinct_schema"]

_NAMES = ("a", "ab", "b", "user_id", "user_name", "order_id", "order_total")
_PATTERNS = ("^[ab]$", "^(a|b[0-9]*)$", "^a*$", "^(aa|ab|b)?$", "^[a-z]{1,2}$", "^x.*y$")
_VALUES = (
    1,
    2,
    -1,
    0.5,
    "a",
    "ab",
    "",
    True,
    None,
    {},
    [],
    {"a": 1},
    {"a": 1, "b": 2},
    [1],
    [1, 2],
    {"b": [1]},
)


def distinct_schema(chance: Random) -> dict[str, Any]:
    """An array of distinct items, or what holds one."""
    kind, unique = chance.random(), _array(chance, 0)
    if kind < 0.6:
        return unique
    if kind < 0.7:
        return {"anyOf": [unique, chance.choice([_array(chance, 0), _plain(chance), {"type": "string"}])]}
    if kind < 0.85:
        names = chance.sample(_NAMES, 2)
        options = [_closed({names[0]: {"const": n}, names[1]: _array(chance, 1)}) for n in range(2)]
        options.append(_closed({names[1]: _plain(chance), names[0]: {"const": 2}}))
        return {"anyOf": chance.sample(options, 2)}
    if kind < 0.93:
        return {
            "type": "object",
            "patternProperties": {"^$": unique, "^b": _item(chance, 1)},
            "unevaluatedProperties": False,
        }
    return {"type": "object", "minProperties": chance.randint(2, 4), "additionalProperties": unique}


def _array(chance: Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array", "uniqueItems": True}
    if chance.random() < 0.95:
        schema["items"] = _item(chance, depth)
    for keyword, share in (("minItems", 0.25), ("maxItems", 0.15)):
        if chance.random() < share:
            schema[keyword] = chance.randint(1, 4)
    if chance.random() < 0.12:
        schema["prefixItems"] = [_item(chance, depth) for _ in range(chance.randint(1, 2))]
    if chance.random() < 0.12:
        schema["contains"] = _item(chance, depth + 1)
        if chance.random() < 0.4:
            schema[chance.choice(["minContains", "maxContains"])] = chance.randint(1, 2)
    return schema


def _plain(chance: Random) -> dict[str, Any]:
    return {"type": "array", "items": {"enum": chance.sample(_VALUES, 2)}, "minItems": chance.randint(0, 3)}


def _item(chance: Random, depth: int) -> dict[str, Any]:
    kind = chance.random()
    if depth > 1 or kind < 0.2:
        return _scalar(chance)
    if kind < 0.35:
        return {"enum": chance.sample(_VALUES, chance.randint(2, 5))}
    if kind < 0.55:
        return {
            chance.choice(["anyOf", "oneOf"]): [_item(chance, depth + 1) for _ in range(chance.randint(2, 3))]
        }
    if kind < 0.65:
        return _array(chance, depth + 1)
    if kind < 0.72:
        return {"type": "array", "items": _item(chance, depth + 1), "maxItems": chance.randint(1, 3)}
    names = chance.sample(_NAMES, chance.randint(1, 3))
    schema = _closed({name: _item(chance, depth + 1) for name in names})
    schema["required"] = names[: chance.randint(0, len(names))]
    if chance.random() < 0.4:
        schema["additionalProperties"] = chance.choice([True, _scalar(chance)])
    if chance.random() < 0.2:
        schema["patternProperties"] = {chance.choice(_PATTERNS): _scalar(chance)}
    if chance.random() < 0.15:
        schema[chance.choice(["minProperties", "maxProperties"])] = chance.randint(1, 2)
    return schema


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    shape = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**shape, "required": [*properties]}


def _scalar(chance: Random) -> dict[str, Any]:
    return chance.choice(
        [
            {"type": "string"},
            {"type": "string", "pattern": chance.choice(_PATTERNS)},
            {"type": "integer", "minimum": 0, "maximum": chance.choice([1, 3, 12, 60])},
            {"type": "number"},
            {"type": "boolean"},
            {"const": chance.choice(_VALUES)},
            {"type": ["null", "integer"]},
        ]
    )
