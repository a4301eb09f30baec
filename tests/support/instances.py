"""JSON instances near a schema: some built from what it says, others one edit or a few
away from those.

Built ones are valid mostly, not always: nothing here decides what is valid. Every
choice comes from one random generator, so a seed tells it all.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from random import Random
from typing import Any

from mutations import CHARACTERS, copied, mutate_value, nodes

from guided_plugin.spec.references import pointer_steps
from guided_plugin.spec.schema import walk

__all__ = ["SAMPLES", "laid_out", "near", "respelt", "text_of"]

_STRING_OR_BETWEEN = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\r\n]+|[,:]')

_DATES = [
    "2024-02-29",
    "2023-02-28",
    "2000-02-29",
    "1999-12-31",
    "0001-01-01",
    "9999-11-30",
]
_TIMES = ["00:00:00Z", "23:59:59.999+23:59", "12:30:45.5-00:30", "08:00:00+02:00"]
SAMPLES: dict[str, list[str]] = {
    "date-time": [f"{date}T{time}" for date in _DATES for time in _TIMES],
    "date": _DATES,
    "time": _TIMES,
    "duration": [
        "P1Y2M3D",
        "P1Y",
        "P2M10D",
        "P3W",
        "PT1H2M3S",
        "PT20M",
        "P1DT1H",
        "PT5S",
        "P4Y2MT3H",
    ],
    "email": [
        "a@b.c",
        "a.b+c@d-e.example",
        "x@[127.0.0.1]",
        "o'hara@example.com",
        "!#$%&@a",
    ],
    "hostname": [
        "a",
        "example.com",
        "a-b.c1.d",
        "A" * 63,
        "1.2.3",
        ".".join(["a" * 40] * 6),
    ],
    "ipv4": ["0.0.0.0", "255.255.255.255", "192.168.1.10", "9.99.199.249"],
    "ipv6": [
        *(
            "::",
            "::1",
            "1::",
            "1:2:3:4:5:6:7:8",
            "fe80::A0b1",
            "1::3:4:5:6:7:8",
            "1:2:3:4:5:6:7::",
        ),
        *("::ffff:1.2.3.4", "1:2:3:4:5:6:7.8.9.10", "1::5:1.2.3.4", "::2:3:4:5:6:7:8"),
    ],
    "uuid": [
        "123e4567-e89b-12d3-a456-426614174000",
        "ABCDEF00-0000-0000-0000-0000000000ff",
    ],
    "uri": [
        *(
            "http://a",
            "https://user:pw@ex.com:80/a/b;c?q=1&r#frag",
            "urn:isbn:12",
            "mailto:a@b.c",
            "a:",
        ),
        *(
            "file:///etc/hosts",
            "x://[::1]:8/",
            "a:/b",
            "a:b//c",
            "http://%41/%7e",
            "s://h?#",
            "a+b-c.d:/",
        ),
    ],
}
"""Some texts of each format, to start mutations from."""

_SIMPLE: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        1.0,
        0.5,
        -2.5,
        10,
        "",
        "a",
        "zz",
        'q"\\\n\t',
        "é€😀",
        "\x7f\u2028",
    ),
    *([], [None], [1, 1], [1, "a"], {}, {"a": 1}, {"b": "x", "zz": None}),
]
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


def text_of(value: Any) -> str:
    """The text of an instance in its plainest form: no spaces, no escapes, no exponents
    of usual size."""
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(
                f"{text_of(name)}:{text_of(child)}" for name, child in value.items()
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError("JSON has no such number")
        if "e" in repr(value) and 1e-30 < abs(value) < 1e300:
            return format(Decimal(repr(value)), "f")
    return json.dumps(value, ensure_ascii=False)


def respelt(value: Any) -> list[str]:
    """Other texts of the same value: every character escaped, numbers with exponents,
    upper-case escapes."""
    texts = [_escaped(value, "e0", str), _escaped(value, ".0E+00", str.upper)]
    return [text for text in dict.fromkeys(texts) if text != text_of(value)]


def _escaped(value: Any, exponent: str, case: Any) -> str:
    if isinstance(value, dict):
        pairs = (
            f"{_escaped(n, exponent, case)}:{_escaped(c, exponent, case)}"
            for n, c in value.items()
        )
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_escaped(child, exponent, case) for child in value) + "]"
    if isinstance(value, str):
        units = value.encode("utf-16-be", "surrogatepass").hex(" ", 2).split()
        return '"' + "".join("\\u" + case(unit) for unit in units) + '"'
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}{exponent}"
    return text_of(value)


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
        for keyword, mark in (
            ("$anchor", "#"),
            ("$dynamicAnchor", "#"),
            ("$id", ""),
            ("id", ""),
        ):
            if isinstance(node.get(keyword), str):
                self.anchors[mark + node[keyword]] = node

    def build(self, schema: Any, depth: int = 0) -> Any:
        """A value that a schema may allow."""
        self.left = self.left - 1 if depth else _MOST_VALUES
        found = self._merged(schema, depth)
        if (
            found is None
            or self.chance.random() < 0.03
            or self.left < 0
            or depth > 2 * _DEPTH
        ):
            return copied(self.chance.choice(self.values))
        if "const" in found:
            return copied(found["const"])
        if isinstance(found.get("enum"), list) and found["enum"]:
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
            references = (part.get("$ref"),)
            pending += map(self._target, references)
            for keyword in ("anyOf", "oneOf"):
                options = _iterable(part.get(keyword))
                pending += [self.chance.choice(options)] if options else []
            pending += _iterable(part.get("allOf"))
            if "if" in part:
                holds = self.chance.random() < 0.5
                pending += (
                    [part["if"], part.get("then")] if holds else [part.get("else")]
                )
            _merge(result, part)
        return result

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str) or reference in self.anchors:
            return self.anchors.get(reference) if isinstance(reference, str) else None
        try:
            return [
                self.root,
                *(
                    node
                    for _, node in pointer_steps(self.root, reference.removeprefix("#"))
                ),
            ][-1]
        except KeyError:
            return None

    def _object(self, found: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = found.get("properties") or {}
        patterns = found.get("patternProperties") or {}
        names = [
            name for name in _iterable(found.get("required")) if isinstance(name, str)
        ]
        share = 0.6 if depth < 3 else 0.2 if depth <= _DEPTH else 0
        names += [name for name in properties if self.chance.random() < share]
        for name, needs in (
            found.get("dependentRequired") or found.get("dependencies") or {}
        ).items():
            names += needs if name in names and isinstance(needs, list) else []
        missing = max(
            int(found.get("minProperties", 0)) - len({*names}),
            int(self.chance.random() < 0.2),
        )
        for _ in range(missing):
            pick = self.chance.choice([*patterns, None])
            names.append(
                self.chance.choice(self.names) if pick is None else self.matching(pick)
            )
        rest = found.get("additionalProperties", True)
        result = {}
        for name in dict.fromkeys(names):
            parts = [*([properties[name]] if name in properties else [])]
            parts += [
                child for pattern, child in patterns.items() if _finds(pattern, name)
            ]
            result[name] = self.build({"allOf": parts} if parts else rest, depth + 1)
        return result

    def _array(self, found: Mapping[str, Any], depth: int) -> list[Any]:
        items = found.get("items", True)
        prefix = found.get("prefixItems") or (items if isinstance(items, list) else [])
        rest = found.get("additionalItems", True) if isinstance(items, list) else items
        low = int(found.get("minItems", 0))
        high = int(found.get("maxItems", 64))
        length = (
            max(low, self.chance.choice((0, 1, 2, len(prefix))))
            if depth <= _DEPTH
            else low
        )
        parts = itertools.chain(prefix, itertools.repeat(rest))
        result = [
            self.build(part, depth + 1)
            for part in itertools.islice(parts, min(length, high, 64))
        ]
        if "contains" in found and self.chance.random() < 0.8:
            times = self.chance.choice((1, 2))
            result += [self.build(found["contains"], depth + 1) for _ in range(times)]
        return result

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
        result = ""
        for operation, argument in parsed:
            match str(operation):
                case "LITERAL":
                    result += chr(argument)
                case "RANGE":
                    result += chr(
                        self.chance.choice((*argument, self.chance.randint(*argument)))
                    )
                case "CATEGORY":
                    known = {
                        "CATEGORY_DIGIT": "0369",
                        "CATEGORY_WORD": "aZ_9",
                        "CATEGORY_SPACE": " \t",
                    }
                    result += self.chance.choice(known.get(str(argument), "a-é"))
                case "IN" if str(argument[0][0]) != "NEGATE":
                    result += self._walked([self.chance.choice(argument)])
                case "IN" | "NOT_LITERAL" | "ANY":
                    result += self.chance.choice("abz09 é~")
                case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                    low, high, part = argument
                    times = self.chance.choice((low, low + 1, min(int(high), low + 3)))
                    result += "".join(
                        self._walked(part) for _ in range(min(times, int(high), 300))
                    )
                case "BRANCH":
                    result += self._walked(self.chance.choice(argument[1]))
                case "SUBPATTERN":
                    result += self._walked(argument[-1])
        return result


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
        if keyword in ("properties", "patternProperties") and isinstance(old, Mapping):
            both = {
                name: {"allOf": [old[name], value[name]]}
                for name in old
                if name in value
            }
            value = {**old, **value, **both}
        elif (
            keyword == "required" and isinstance(old, list) and isinstance(value, list)
        ):
            value = [*old, *value]
        elif keyword in ("type", "enum") and old is not None:
            allowed, others = (
                names if isinstance(names, list) else [names] for names in (old, value)
            )
            value = [name for name in allowed if name in others] or others
        elif keyword[:3] in ("min", "max") and _is_number(old) and _is_number(value):
            value = max(old, value) if keyword.startswith("min") else min(old, value)
        result[keyword] = value


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
    return _STRING_OR_BETWEEN.sub(
        lambda found: (
            found[0] + space if found[0] in ",:" else found[0].strip(" \t\r\n")
        ),
        text,
    )
