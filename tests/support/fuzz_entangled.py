"""Random schemas whose texts must meet, or avoid, several patterns, formats and lengths at once."""

from __future__ import annotations

from random import Random
from typing import Any

__all__ = ["entangled_schema"]

ATOMS = ("a", "b", "[a-z]", "[^a]", "x-", r"\d", r"\w", "_", "@", r"\.", ".", "(?:ab)", "[A-Z0-9]", "é")
TIMES = ("", "", "", "", "*", "+", "?", "{2}", "{1,20}", "{0,60}", "{3,}")
FORMATS = ("hostname", "email", "uri", "ipv6", "date-time", "uuid", "duration", "time", "ipv4", "date")
VALUES: tuple[dict[str, Any], ...] = (
    {"type": "integer"},
    {"type": "boolean"},
    {"enum": ["x"]},
    {"type": "string", "maxLength": 4},
)


def entangled_schema(chance: Random) -> dict[str, Any]:
    """A string, or an object with demands on its names."""
    kind = chance.random()
    if kind < 0.5:
        return {"type": "string", **_texts(chance)}
    schema: dict[str, Any] = {"type": "object"}
    if kind < 0.8:
        sources = [_pattern(chance) for _ in range(chance.randint(1, 5))]
        schema["patternProperties"] = {source: chance.choice(VALUES) for source in sources}
        if chance.random() < 0.4:
            schema["additionalProperties"] = chance.choice([False, {"type": "null"}])
        if chance.random() < 0.3:
            names = chance.sample(["a", "ab", "x-y", "b_", "a.b"], 2)
            schema["properties"] = {name: chance.choice(VALUES) for name in names}
        if chance.random() < 0.2:
            schema["propertyNames"] = _texts(chance)
        return schema
    schema |= {"propertyNames": _texts(chance), "additionalProperties": chance.choice(VALUES)}
    if chance.random() < 0.4:
        schema["minProperties"] = chance.randint(1, 2)
    return schema


def _texts(chance: Random) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if chance.random() < 0.6:
        schema["pattern"] = _pattern(chance)
    if chance.random() < 0.5:
        schema["format"] = chance.choice(FORMATS)
    if chance.random() < 0.25:
        schema["maxLength"] = chance.choice([3, 20, 100, 500])
    if chance.random() < 0.15:
        schema["minLength"] = chance.choice([1, 2, 10, 50])
    kind = chance.random()
    if kind < 0.2:
        schema["not"] = {"pattern": _pattern(chance)}
    elif kind < 0.3:
        schema["not"] = {"format": chance.choice(FORMATS)}
    elif kind < 0.4:
        schema["allOf"] = [{"pattern": _pattern(chance)}, {"not": {"pattern": _pattern(chance)}}]
    elif kind < 0.45:
        schema["not"] = {"enum": ["a", "ab", "a.b"]}
    return schema


def _pattern(chance: Random) -> str:
    return chance.choice(["^", "^", "", ".*"]) + _sequence(chance) + chance.choice(["$", "", "$"])


def _sequence(chance: Random, depth: int = 0) -> str:
    pieces = []
    for _ in range(chance.randint(1, 3)):
        kind = chance.random()
        if depth == 0 and 0.2 < kind < 0.3:
            look = chance.choice(["(?!", "(?="])
            pieces.append(look + _sequence(chance, 1) + chance.choice(["", "$", ".*"]) + ")")
            continue
        atom = chance.choice(ATOMS)
        if depth < 2 and kind < 0.2:
            options = [_sequence(chance, depth + 1) for _ in range(chance.randint(1, 2))]
            atom = f"({'|'.join(options)})"
        pieces.append(atom + chance.choice(TIMES))
    return "".join(pieces)
