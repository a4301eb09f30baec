"""JSON instances near a schema: some built from what it says, others one edit or a few
away from those.

Built ones are valid mostly, not always: nothing here decides what is valid. Every
choice comes from one random generator, so a seed tells it all.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from random import Random
from typing import Any

from mutations import CHARACTERS, copied, mutate_value, nodes

from guided_plugin.spec.references import pointer_steps
from guided_plugin.spec.schema import walk

__all__ = ["SAMPLES", "laid_out", "near", "respelt", "text_of"]

_STRING_OR_BETWEEN = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\r\n]+|[,:]')

_DATES = ["2024-02-29", "2023-02-28", "2000-02-29", "0001-01-01", "9999-11-30"]
_TIMES = ["00:00:00Z", "23:59:59.999+23:59", "12:30:45.5-00:30", "08:00:00+02:00"]
_TEXTS = {
    "duration": "P1Y2M3D P1Y P2M10D P3W PT1H2M3S PT20M P1DT1H PT5S P4Y2MT3H",
    "email": "a@b.c a.b+c@d-e.example x@[127.0.0.1] o'hara@example.com !#$%&@a",
    "hostname": "a example.com a-b.c1.d 1.2.3 " + "A" * 63,
    "ipv4": "0.0.0.0 255.255.255.255 192.168.1.10 9.99.199.249",
    "ipv6": """:: ::1 1:: 1:2:3:4:5:6:7:8 fe80::A0b1 1::3:4:5:6:7:8 1:2:3:4:5:6:7::
        ::ffff:1.2.3.4 1:2:3:4:5:6:7.8.9.10 1::5:1.2.3.4 ::2:3:4:5:6:7:8""",
    "uuid": """123e4567-e89b-12d3-a456-426614174000
        ABCDEF00-0000-0000-0000-0000000000ff""",
    "uri": """http://a https://user:pw@ex.com:80/a/b;c?q=1&r#frag urn:isbn:12 mailto:a@b.c
        a: file:///etc/hosts x://[::1]:8/ a:/b a:b//c http://%41/%7e s://h?# a+b-c.d:/""",
}
SAMPLES: dict[str, list[str]] = {
    "date-time": [f"{date}T{time}" for date in _DATES for time in _TIMES],
    "date": _DATES,
    "time": _TIMES,
    **{name: texts.split() for name, texts in _TEXTS.items()},
}
"""Some texts of each format, to start mutations from."""

_SIMPLE: list[Any] = (
    json.loads(r"""[null, true, false, 0, 1, -1, 1.0, 0.5, -2.5, 10, "", "a",
    "zz", "q\"\\\n\t", "é€😀", "\u007f\u2028", [], [null], [1, 1], [1, "a"], {}, {"a": 1},
    {"b": "x", "zz": null}, [{"a": [1]}]]""")
)
_DEPTH = 6
_MOST_VALUES = 500
"""Of one instance: a recursive schema may ask for more and more."""


def near(
    schema: Any, seeds: Iterable[Any] = (), *, count: int = 300, seed: int = 0
) -> Iterator[Any]:
    """So many instances, the same for a seed: the seeds, simple values, built ones, and
    edits of all."""
    chance = Random(seed)
    seeds = list(seeds)
    builder = _Builder(schema, seeds, chance)
    made = [*seeds, *_SIMPLE, *(builder.build(schema) for _ in range(count // 3))]
    yield from made[:count]
    # Edits of simple values say little: start from the others.
    starts = [value for value in made if value not in _SIMPLE] or made
    for _ in range(count - len(made)):
        value = chance.choice(starts)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            value = mutate_value(chance, value, builder.values, builder.names)
        yield value


def _rewritten(value: Any, scalar: Callable[[Any], str]) -> str:
    """The text of an instance without spaces, its scalars as told."""
    if isinstance(value, dict):
        pairs = [
            f"{scalar(name)}:{_rewritten(child, scalar)}"
            for name, child in value.items()
        ]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_rewritten(child, scalar) for child in value) + "]"
    return scalar(value)


def text_of(value: Any) -> str:
    """The text of an instance in its plainest form: no spaces, no escapes, no exponents
    of usual size."""
    return _rewritten(value, _plain)


def _plain(value: Any) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError("JSON has no such number")
        if "e" in repr(value) and 1e-30 < abs(value) < 1e300:
            return format(Decimal(repr(value)), "f")
    return json.dumps(value, ensure_ascii=False)


def respelt(value: Any) -> list[str]:
    """Other texts of the same value: every character escaped, numbers with exponents,
    upper-case escapes."""

    def lower(scalar: Any) -> str:
        return _escaped(scalar, "e0", "x")

    def upper(scalar: Any) -> str:
        return _escaped(scalar, ".0E+00", "X")

    texts = {_rewritten(value, lower): None, _rewritten(value, upper): None}
    return [text for text in texts if text != text_of(value)]


def _escaped(value: Any, exponent: str, case: str) -> str:
    if isinstance(value, str):
        units = memoryview(value.encode("utf-16-be", "surrogatepass"))
        codes = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
        return '"' + "".join(f"\\u{code:04{case}}" for code in codes) + '"'
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}{exponent}"
    return _plain(value)


class _Builder:
    """Builds values from what a schema says."""

    def __init__(self, schema: Any, seeds: list[Any], chance: Random) -> None:
        self.root = schema
        self.chance = chance
        self.names: list[str] = ["", "zz", "é"]
        self.values: list[Any] = list(_SIMPLE)
        self.anchors: dict[str, Any] = {}
        self.left = _MOST_VALUES
        for _, node in walk(schema):
            if isinstance(node, Mapping):
                self._learn(node)
        for value in nodes(seeds)[1:]:
            self.names += value if isinstance(value, dict) else ()
            self.values.append(value)

    def _learn(self, node: Mapping[str, Any]) -> None:
        """The words of a schema: names, values, and what references may mean."""
        for keyword in ("properties", "required", "dependentRequired", "dependencies"):
            self.names += [str(name) for name in _iterable(node.get(keyword))]
        for pattern in _iterable(node.get("patternProperties")):
            self.names += [self.matching(pattern) for _ in range(3)]
        self.values += [node["const"]] if "const" in node else []
        self.values += _iterable(node.get("enum"))
        marks = {"$anchor": "#", "$dynamicAnchor": "#", "$id": "", "id": ""}
        for keyword, mark in marks.items():
            if isinstance(node.get(keyword), str):
                self.anchors[mark + node[keyword]] = node

    def build(self, schema: Any, depth: int = 0) -> Any:
        """A value that a schema may allow."""
        self.left = self.left - 1 if depth else _MOST_VALUES
        found = self._merged(schema, depth)
        too_many = self.left < 0 or depth > 2 * _DEPTH
        if found is None or too_many or self.chance.random() < 0.03:
            return copied(self.chance.choice(self.values))
        if "const" in found:
            return copied(found["const"])
        if _iterable(found.get("enum")):
            return copied(self.chance.choice(found["enum"]))
        kinds = found.get("type") or _implied(found)
        match kinds if isinstance(kinds, str) else self.chance.choice(kinds):
            case "object":
                return self._object(found, depth)
            case "array":
                return self._array(found, depth)
            case "string":
                return self._string(found)
            case "number":
                return self._number(found)
            case "integer":
                value = self._number(found)
                return int(value) if math.isfinite(value) else value
            case "boolean":
                return self.chance.random() < 0.5
            case "null":
                return None
        return copied(self.chance.choice(self.values))

    def _merged(self, schema: Any, depth: int) -> dict[str, Any] | None:
        """One schema without references and choices: the keywords of all parts that one
        choice leaves."""
        if not isinstance(schema, Mapping):
            return {} if schema is True and depth <= _DEPTH else None
        result: dict[str, Any] = {}
        pending = [schema]
        for _ in range(40):
            part = pending.pop() if pending else None
            if not isinstance(part, Mapping):
                continue
            pending.append(self._target(part.get("$ref")))
            for keyword in ("anyOf", "oneOf"):
                options = _iterable(part.get(keyword))
                pending += [self.chance.choice(options)] if options else []
            pending += _iterable(part.get("allOf"))
            if "if" in part and self.chance.random() < 0.5:
                pending += [part["if"], part.get("then")]
            else:
                pending.append(part.get("else"))
            _merge(result, part)
        return result

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str):
            return None
        if reference in self.anchors:
            return self.anchors[reference]
        try:
            steps = list(pointer_steps(self.root, reference.removeprefix("#")))
        except KeyError:
            return None
        return steps[-1][1] if steps else self.root

    def _object(self, found: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = found.get("properties") or {}
        patterns = found.get("patternProperties") or {}
        names = [
            name for name in _iterable(found.get("required")) if isinstance(name, str)
        ]
        share = 0.6 if depth < 3 else 0.2 if depth <= _DEPTH else 0
        names += [name for name in properties if self.chance.random() < share]
        needed = found.get("dependentRequired") or found.get("dependencies") or {}
        for name, needs in needed.items():
            names += needs if name in names and isinstance(needs, list) else []
        missing = int(found.get("minProperties", 0)) - len({*names})
        for _ in range(max(missing, int(self.chance.random() < 0.2))):
            pattern = self.chance.choice([*patterns, None])
            other = self.chance.choice(self.names)
            names.append(other if pattern is None else self.matching(pattern))
        rest = found.get("additionalProperties", True)
        result = {}
        for name in dict.fromkeys(names):
            parts = [properties[name]] if name in properties else []
            parts += [
                child for pattern, child in patterns.items() if _finds(pattern, name)
            ]
            result[name] = self.build({"allOf": parts} if parts else rest, depth + 1)
        return result

    def _array(self, found: Mapping[str, Any], depth: int) -> list[Any]:
        rest = found.get("items", True)
        prefix = found.get("prefixItems") or []
        if isinstance(rest, list):
            prefix = rest
            rest = found.get("additionalItems", True)
        length = int(found.get("minItems", 0))
        if depth <= _DEPTH:
            length = max(length, self.chance.choice((0, 1, 2, len(prefix))))
        length = min(length, int(found.get("maxItems", 64)), 64)
        parts = [*prefix[:length], *[rest] * (length - len(prefix))]
        if "contains" in found and self.chance.random() < 0.8:
            parts += [found["contains"]] * self.chance.choice((1, 2))
        return [self.build(part, depth + 1) for part in parts]

    def _string(self, found: Mapping[str, Any]) -> str:
        if found.get("format") in SAMPLES and self.chance.random() < 0.8:
            return self.chance.choice(SAMPLES[found["format"]])
        if isinstance(found.get("pattern"), str) and self.chance.random() < 0.9:
            return self.matching(found["pattern"])
        low = int(found.get("minLength", 0))
        length = self.chance.choice((low, low + 1, int(found.get("maxLength", 3))))
        return "".join(self.chance.choices(CHARACTERS, k=min(length, 2000)))

    def _number(self, found: Mapping[str, Any]) -> int | float:
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        ends = [found[key] for key in bounds if _is_number(found.get(key))]
        value = self.chance.choice(ends or [0, 1, 100])
        value += self.chance.choice((0, 0, 1, -1, 0.5, 3)) if abs(value) < 1e300 else 0
        step = found.get("multipleOf")
        if _is_number(step) and step > 0:
            value = round(value / step) * step
        return round(value, 9) if isinstance(value, float) else value

    def matching(self, pattern: str) -> str:
        """A text that a pattern may find: a walk through its parse."""
        try:
            with warnings.catch_warnings(action="ignore"):
                text = self._walked(re._parser.parse(pattern))  # type: ignore[attr-defined]
        except (re.error, OverflowError, RecursionError):
            return self.chance.choice(CHARACTERS)
        return text if pattern[:1] == "^" or self.chance.random() < 0.7 else "x" + text

    def _walked(self, parsed: Any) -> str:
        return "".join(self._step(str(name), argument) for name, argument in parsed)

    def _step(self, operation: str, argument: Any) -> str:
        match operation:
            case "LITERAL":
                return chr(argument)
            case "RANGE":
                return chr(
                    self.chance.choice((*argument, self.chance.randint(*argument)))
                )
            case "CATEGORY":
                return self.chance.choice(_CATEGORIES.get(str(argument), "a-é"))
            case "IN" if str(argument[0][0]) != "NEGATE":
                return self._walked([self.chance.choice(argument)])
            case "IN" | "NOT_LITERAL" | "ANY":
                return self.chance.choice("abz09 é~")
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, part = argument
                times = min(self.chance.randint(low, low + 3), int(high), 300)
                return "".join(self._walked(part) for _ in range(times))
            case "BRANCH":
                return self._walked(self.chance.choice(argument[1]))
            case "SUBPATTERN":
                return self._walked(argument[-1])
        return ""


_CATEGORIES = {
    "CATEGORY_DIGIT": "0369",
    "CATEGORY_WORD": "aZ_9",
    "CATEGORY_SPACE": " \t",
}


def _implied(found: Mapping[str, Any]) -> list[str]:
    """The types that the keywords speak of."""
    hints = {
        "object": "ropert|required|depend",
        "array": "tems|ontains",
        "string": "Length|pattern$|pattern |format",
        "number": "imum|multiple",
    }
    implied = [kind for kind, mark in hints.items() if re.search(mark, " ".join(found))]
    return implied or [*hints, "boolean", "null"]


def _merge(result: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Add the keywords of one part: both, where that is easy to say, else the last
    one's."""
    for keyword, value in part.items():
        old = result.get(keyword)
        result[keyword] = value if old is None else _both(keyword, old, value)


def _both(keyword: str, old: Any, value: Any) -> Any:
    maps = isinstance(old, Mapping) and isinstance(value, Mapping)
    if keyword in ("properties", "patternProperties") and maps:
        common = {
            name: {"allOf": [old[name], value[name]]} for name in old if name in value
        }
        return {**old, **value, **common}
    if keyword == "required":
        return [*_iterable(old), *_iterable(value)]
    if keyword in ("type", "enum"):
        others = value if isinstance(value, list) else [value]
        allowed = old if isinstance(old, list) else [old]
        return [name for name in allowed if name in others] or others
    if _is_number(old) and _is_number(value):
        if keyword.startswith("min"):
            return max(old, value)
        if keyword.startswith("max"):
            return min(old, value)
    return value


def _iterable(value: Any) -> list[Any]:
    """The items of a list, the names of an object; nothing of anything else."""
    return list(value) if isinstance(value, list | Mapping) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finds(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def laid_out(text: str, whitespace: str) -> str:
    """The text of an instance as `compact` or `spaced` JSON, with its spellings
    kept."""
    space = " " * (whitespace == "spaced")

    def part(found: re.Match[str]) -> str:
        if found[0] in ",:":
            return found[0] + space
        return found[0].strip(" \t\r\n")

    return _STRING_OR_BETWEEN.sub(part, text)
