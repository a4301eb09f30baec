"""JSON instances near a schema: some built from what it says, others one edit or a few away from those.

Built ones are valid mostly, not always: nothing here decides what is valid. Every choice comes from one
random generator, so a seed tells it all.
"""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from equality_formats import SAMPLES

from guided_plugin.spec.schema import resolve_pointer, walk

__all__ = ["instances"]

_SIMPLE: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.0, 0.5, -2.5, 10, "", "a", "zz", 'q"\\\n\t', "é€😀", "\x7f\u2028"),
    *([], [None], [1, 1], [1, "a"], {}, {"a": 1}, {"b": "x", "zz": None}),
]
_CHARACTERS = 'abcxyzABC019_-. /"\\\né€😀'
_DEPTH = 6
_MOST_VALUES = 500
"""Of one instance: a recursive schema may ask for more and more."""
_CHANCE_OF_OPTIONAL = 0.6


def instances(schema: Any, seeds: list[Any], count: int, source: random.Random) -> Iterator[Any]:
    """So many instances: the seeds, simple values, built ones, and edits of all of them."""
    maker = _Maker(schema, seeds, source)
    made = [*seeds, *_SIMPLE, *(maker.build(schema) for _ in range(count // 3))]
    yield from made[:count]
    # Edits of simple values say little: start from the others.
    starts = [value for value in made if value not in _SIMPLE] or made
    for _ in range(count - len(made)):
        value = copy.deepcopy(source.choice(starts))
        for _ in range(source.choice((1, 1, 1, 2, 3))):
            value = maker.edit(value)
        yield value


class _Maker:
    def __init__(self, schema: Any, seeds: list[Any], source: random.Random) -> None:
        self.root = schema
        self.random = source
        self.names: list[str] = ["", "zz", "é"]
        self.values: list[Any] = list(_SIMPLE)
        self.anchors: dict[str, Any] = {}
        self.left = _MOST_VALUES
        for _, node in walk(schema):
            if isinstance(node, Mapping):
                self._learn(node)
        for seed in seeds:
            self._learn_value(seed)

    def _learn(self, node: Mapping[str, Any]) -> None:
        """The words of a schema: names, values, and what references may mean."""
        for keyword in ("properties", "dependentRequired", "dependencies"):
            if isinstance(node.get(keyword), Mapping):
                self.names += node[keyword]
        required = node.get("required")
        self.names += required if isinstance(required, list) else []
        for pattern in (
            node["patternProperties"] if isinstance(node.get("patternProperties"), Mapping) else ()
        ):
            self.names += [self.matching(pattern) for _ in range(3)]
        self.values += [node["const"]] if "const" in node else []
        self.values += node["enum"] if isinstance(node.get("enum"), list) else []
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                self.anchors["#" + node[keyword]] = node
        for keyword in ("$id", "id"):
            if isinstance(node.get(keyword), str):
                self.anchors[node[keyword]] = node

    def _learn_value(self, value: Any) -> None:
        if isinstance(value, dict):
            self.names += value
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            self._learn_value(child)
        self.values.append(value)

    def build(self, schema: Any, depth: int = 0) -> Any:
        """A value that a schema may allow."""
        self.left = self.left - 1 if depth else _MOST_VALUES
        found = self.merged(schema, depth)
        if found is None or self.random.random() < 0.03 or self.left < 0 or depth > 2 * _DEPTH:
            return copy.deepcopy(self.random.choice(self.values))
        if "const" in found:
            return copy.deepcopy(found["const"])
        if isinstance(found.get("enum"), list) and found["enum"]:
            return copy.deepcopy(self.random.choice(found["enum"]))
        kinds = found.get("type") or self._implied(found)
        kind = kinds if isinstance(kinds, str) else self.random.choice(kinds)
        match kind:
            case "object":
                return self._object(found, depth)
            case "array":
                return self._array(found, depth)
            case "string":
                return self._string(found)
            case "number" | "integer":
                return self._number(found, kind)
            case "boolean":
                return self.random.random() < 0.5
            case "null":
                return None
        return copy.deepcopy(self.random.choice(self.values))

    def _implied(self, found: Mapping[str, Any]) -> list[str]:
        """The types that the keywords speak of."""
        text = " ".join(found)
        hints = {
            "object": "ropert|required|depend",
            "array": "tems|ontains",
            "string": "Length|pattern$|pattern |format",
            "number": "imum|multiple",
        }
        return [kind for kind, mark in hints.items() if re.search(mark, text)] or [
            *("object", "array", "string", "number", "boolean", "null")
        ]

    def merged(self, schema: Any, depth: int) -> dict[str, Any] | None:
        """One schema without references and choices: the keywords of all parts that one choice leaves."""
        if not isinstance(schema, Mapping):
            return {} if schema is True and depth <= _DEPTH else None
        result: dict[str, Any] = {}
        pending, steps = [schema], 0
        while pending and steps < 40:
            steps += 1
            part = pending.pop()
            if not isinstance(part, Mapping):
                continue
            target = self._target(part.get("$ref", part.get("$dynamicRef", part.get("$recursiveRef"))))
            pending += [target] if target is not None else []
            for keyword in ("anyOf", "oneOf"):
                if isinstance(part.get(keyword), list) and part[keyword]:
                    pending.append(self.random.choice(part[keyword]))
            pending += part["allOf"] if isinstance(part.get("allOf"), list) else []
            if "if" in part:
                holds = self.random.random() < 0.5
                pending += [part["if"], part.get("then")] if holds else [part.get("else")]
            _merge(result, part)
        return result

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str):
            return None
        if reference in self.anchors:
            return self.anchors[reference]
        try:
            return resolve_pointer(self.root, reference) if reference.startswith("#") else None
        except KeyError:
            return None

    def _object(self, found: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = found.get("properties") or {}
        required = [name for name in found.get("required") or () if isinstance(name, str)]
        optional = [name for name in properties if name not in required]
        chance = _CHANCE_OF_OPTIONAL if depth < 3 else 0.2
        names = [*required, *(name for name in optional if self.random.random() < chance)]
        if depth > _DEPTH:
            names = required
        for name, needs in (found.get("dependentRequired") or found.get("dependencies") or {}).items():
            names += needs if name in names and isinstance(needs, list) else []
        missing = max(int(found.get("minProperties", 0)) - len(names), int(self.random.random() < 0.2))
        patterns = list(found.get("patternProperties") or {})
        for _ in range(missing):
            pick = self.random.choice([*patterns, None])
            names.append(self.random.choice(self.names) if pick is None else self.matching(pick))
        rest = found.get("additionalProperties", found.get("unevaluatedProperties", True))
        result = {}
        for name in dict.fromkeys(names):
            by_pattern = [sub for p, sub in (found.get("patternProperties") or {}).items() if _found(p, name)]
            parts = [*([properties[name]] if name in properties else []), *by_pattern]
            part = {"allOf": parts} if len(parts) > 1 else parts[0] if parts else rest
            result[name] = self.build(part, depth + 1)
        return result

    def _array(self, found: Mapping[str, Any], depth: int) -> list[Any]:
        items = found.get("items", True)
        prefix = found.get("prefixItems") or (items if isinstance(items, list) else [])
        rest = found.get("additionalItems", True) if isinstance(items, list) else items
        low, high = int(found.get("minItems", 0)), found.get("maxItems")
        length = max(low, self.random.choice((0, 1, 2, len(prefix))))
        length = length if depth <= _DEPTH else low
        length = min(length, int(high)) if high is not None else length
        result = [
            self.build(prefix[i] if i < len(prefix) else rest, depth + 1) for i in range(min(length, 64))
        ]
        if "contains" in found and self.random.random() < 0.8:
            times = self.random.choice((1, int(found.get("minContains", 1)), 2))
            result.extend(self.build(found["contains"], depth + 1) for _ in range(times))
        return result

    def _string(self, found: Mapping[str, Any]) -> str:
        if found.get("format") in SAMPLES and self.random.random() < 0.8:
            return self.random.choice(SAMPLES[found["format"]])
        if isinstance(found.get("pattern"), str) and self.random.random() < 0.9:
            return self.matching(found["pattern"])
        low, high = int(found.get("minLength", 0)), found.get("maxLength")
        ends = [low, low + 1, *([int(high)] if high is not None else [3])]
        length = self.random.choice(ends)
        return "".join(self.random.choice(_CHARACTERS) for _ in range(min(length, 2000)))

    def _number(self, found: Mapping[str, Any], kind: str) -> int | float:
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        ends = [found[key] for key in bounds if _is_number(found.get(key))] or [0, 1, 100]
        value = self.random.choice(ends)
        value += self.random.choice((0, 0, 1, -1, 0.5, 3)) if abs(value) < 1e300 else 0
        step = found.get("multipleOf")
        if _is_number(step) and step > 0:
            value = round(value / step) * step
        if kind == "integer" and math.isfinite(value):
            value = int(value)
        return round(value, 9) if isinstance(value, float) else value

    def matching(self, pattern: str) -> str:
        """A text that a pattern may find: a walk through its parse."""
        try:
            parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
        except (re.error, OverflowError, RecursionError):
            return self.random.choice(_CHARACTERS)
        text = self._walk(parsed)
        return text if pattern[:1] == "^" or self.random.random() < 0.7 else "x" + text

    def _walk(self, parsed: Any) -> str:
        result = ""
        for operation, argument in parsed:
            match str(operation):
                case "LITERAL":
                    result += chr(argument)
                case "NOT_LITERAL" | "ANY":
                    result += self.random.choice("abz09 é")
                case "IN":
                    result += self._one_of(argument)
                case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                    low, high, part = argument
                    times = self.random.choice((low, low + 1, min(int(high), low + 3)))
                    result += "".join(self._walk(part) for _ in range(min(times, int(high), 300)))
                case "BRANCH":
                    result += self._walk(self.random.choice(argument[1]))
                case "SUBPATTERN":
                    result += self._walk(argument[-1])
        return result

    def _one_of(self, members: Any) -> str:
        if str(members[0][0]) == "NEGATE":
            return self.random.choice("abz09 é~")
        operation, argument = self.random.choice(members)
        match str(operation):
            case "LITERAL":
                return chr(argument)
            case "RANGE":
                return chr(self.random.choice((argument[0], argument[1], self.random.randint(*argument))))
        known = {"CATEGORY_DIGIT": "0369", "CATEGORY_WORD": "aZ_9", "CATEGORY_SPACE": " \t"}
        return self.random.choice(known.get(str(argument), "a-é"))

    def edit(self, value: Any) -> Any:
        """The value with one thing changed somewhere inside."""
        if isinstance(value, dict | list) and value and self.random.random() < 0.55:
            keys = list(value) if isinstance(value, dict) else list(range(len(value)))
            key = self.random.choice(keys)
            value[key] = self.edit(value[key])
            return value
        roll = self.random.random()
        if roll < 0.08:
            return copy.deepcopy(self.random.choice(self.values))
        if roll < 0.12:
            return None
        if isinstance(value, dict):
            return self._edited_object(value)
        if isinstance(value, list):
            return self._edited_array(value)
        if isinstance(value, str):
            return self._edited_string(value)
        if _is_number(value):
            return self._edited_number(value)
        return self.random.choice((not value, 0, "true", [value], {}))

    def _edited_object(self, value: dict[str, Any]) -> Any:
        names = list(value)
        match self.random.randrange(6):
            case 0 if names:
                del value[self.random.choice(names)]
            case 1:
                value[self.random.choice(self.names)] = copy.deepcopy(self.random.choice(self.values))
            case 2 if names:
                old = self.random.choice(names)
                new = self.random.choice((old + "x", old[1:], old.upper(), self.random.choice(self.names)))
                return {(new if name == old else name): child for name, child in value.items()}
            case 3:
                self.random.shuffle(names)
                return {name: value[name] for name in names}
            case 4 if names:
                value[self.random.choice(names)] = copy.deepcopy(value[self.random.choice(names)])
            case _:
                return {self.random.choice(self.names): child for child in (*value.values(), 1)}
        return value

    def _edited_array(self, value: list[Any]) -> Any:
        match self.random.randrange(6):
            case 0 if value:
                del value[self.random.randrange(len(value))]
            case 1 if value:
                value.append(copy.deepcopy(self.random.choice(value)))
            case 2:
                where = self.random.randint(0, len(value))
                value.insert(where, copy.deepcopy(self.random.choice(self.values)))
            case 3:
                self.random.shuffle(value)
            case 4:
                return value + copy.deepcopy(value)
            case _:
                return value[:-1]
        return value

    def _edited_string(self, value: str) -> Any:
        where = self.random.randint(0, len(value))
        match self.random.randrange(6):
            case 0:
                return value[:where] + value[where + 1 :]
            case 1:
                return value[:where] + self.random.choice(_CHARACTERS) + value[where:]
            case 2:
                return value[:where] + self.random.choice(_CHARACTERS) + value[where + 1 :]
            case 3:
                return value + self.random.choice(("\n", "x", value))
            case 4:
                return self.random.choice((value.upper(), value.swapcase(), value[::-1]))
        return self.random.choice((len(value), [value], value[:where]))

    def _edited_number(self, value: int | float) -> Any:
        steps = (1, -1, 0.5, -0.25, 0.1, 1e-9, 10, -value, value)
        match self.random.randrange(4):
            case 0:
                return str(value)
            case 1:
                return float(value) if abs(value) < 1e15 else value
            case _:
                moved = value + self.random.choice(steps) if abs(value) < 1e300 else value // 2
                return round(moved, 9) if isinstance(moved, float) else moved


def _merge(result: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add the keywords of one part: both, where that is easy to say, else the last one's."""
    for keyword, value in part.items():
        old = result.get(keyword)
        if keyword in ("properties", "patternProperties") and isinstance(old, Mapping):
            both = {name: {"allOf": [old[name], value[name]]} for name in old if name in value}
            value = {**old, **value, **both}
        elif keyword == "required" and isinstance(old, list) and isinstance(value, list):
            value = [*old, *value]
        elif keyword in ("type", "enum") and old is not None:
            allowed, others = (names if isinstance(names, list) else [names] for names in (old, value))
            value = [name for name in allowed if name in others] or others
        elif keyword.startswith("min") and _is_number(old) and _is_number(value):
            value = max(old, value)
        elif keyword.startswith("max") and _is_number(old) and _is_number(value):
            value = min(old, value)
        result[keyword] = value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _found(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False
