"""JSON instances near a schema: some built from what it says, others one edit or a few
away from those.

Built ones are valid mostly, not always: nothing here decides what is valid. Every
choice comes from one random generator, so a seed tells it all.
"""

import json
import math
import re
import warnings
from collections.abc import Mapping
from decimal import Decimal
from random import Random
from typing import Any

from mutations import CHARACTERS, copied, mutate_value, nodes

from guided_plugin.spec.references import target_of
from guided_plugin.spec.schema import walk

Schema = Mapping[str, Any]

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
SAMPLES = {
    "date-time": [f"{date}T{time}" for date in _DATES for time in _TIMES],
    "date": _DATES,
    "time": _TIMES,
    **{name: texts.split() for name, texts in _TEXTS.items()},
}
"""Some texts of each format, to start mutations from."""

_SIMPLE = json.loads(r"""[null, true, false, 0, 1, -1, 1.0, 0.5, -2.5, 10, "", "a",
    "zz", "q\"\\\n\t", "é€😀", "\u007f\u2028", [], [null], [1, 1], [1, "a"], {}, {"a": 1},
    {"b": "x", "zz": null}, [{"a": [1]}]]""")
_DEPTH = 6
"""Deeper arrays have no more items than they must."""
_DEEPEST = 12
_MOST_VALUES = 500
"""Of one instance: a recursive schema may ask for more and more."""


def near(schema, seeds=(), *, count=300, seed=0):
    """So many instances, the same for a seed: the seeds, simple values, built ones, and
    edits of all."""
    chance = Random(seed)
    seeds = list(seeds)
    builder = _Builder(
        schema,
        seeds,
        chance,
    )
    made = [*seeds, *_SIMPLE]
    made += [builder.build(schema) for _ in range(count // 3)]
    yield from made[:count]
    # Edits of simple values say little: start from the others.
    starts = [value for value in made if value not in _SIMPLE] or made
    for _ in range(count - len(made)):
        value = chance.choice(starts)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            value = mutate_value(
                chance,
                value,
                builder.values,
                builder.names,
            )
        yield value


def _rewritten(value, scalar):
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


def text_of(value):
    """The text of an instance in its plainest form: no spaces, no escapes, no exponents
    of usual size."""
    return _rewritten(value, _plain)


def _plain(value):
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError("JSON has no such number")
        if "e" in repr(value) and 1e-30 < abs(value) < 1e300:
            return format(Decimal(repr(value)), "f")
    return json.dumps(value, ensure_ascii=False)


def respelt(value):
    """Other texts of the same value: every character escaped, numbers with exponents,
    upper-case escapes."""

    def lower(scalar):
        return _escaped(
            scalar,
            "e0",
            str.lower,
        )

    def upper(scalar):
        return _escaped(
            scalar,
            ".0E+00",
            str.upper,
        )

    texts = {_rewritten(value, lower): None, _rewritten(value, upper): None}
    return [text for text in texts if text != text_of(value)]


def _escaped(value, exponent, case):
    if isinstance(value, str):
        units = value.encode("utf-16-be", "surrogatepass").hex(" ", 2).split()
        escapes = "".join(f"\\u{case(unit)}" for unit in units)
        return f'"{escapes}"'
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value}{exponent}"
    return _plain(value)


class _Builder:
    """Builds values from what a schema says."""

    def __init__(self, schema, seeds, chance):
        self.root = schema
        self.chance = chance
        self.pick = chance.choice
        self.left = 0
        """How many values more the instance may have that is built."""
        self.names = ["", "zz", "é"]
        self.values = list(_SIMPLE)
        for _, node in walk(schema):
            if isinstance(node, Mapping):
                self._learn(node)
        for value in nodes(seeds)[1:]:
            self.names += value if isinstance(value, dict) else ()
            self.values.append(value)

    def likely(self, share):
        """Whether something comes that comes so often."""
        return self.chance.random() < share

    def _learn(self, node):
        """The words of a schema: names, values, and what references may mean."""
        for keyword in ("properties", "required", "dependentRequired", "dependencies"):
            self.names += [str(name) for name in _iterable(node.get(keyword))]
        for pattern in _iterable(node.get("patternProperties")):
            self.names += [self.matching(pattern) for _ in range(3)]
        self.values += [node["const"]] if "const" in node else []
        self.values += _iterable(node.get("enum"))

    def build(self, schema, depth=0):
        """A value that a schema may allow."""
        self.left = self.left - 1 if depth else _MOST_VALUES
        known = isinstance(schema, Mapping) and self.left > 0 and depth <= _DEEPEST
        if not known or self.likely(0.03):
            return self._any()
        found = self._merged(schema)
        if "const" in found:
            return copied(found["const"])
        if _iterable(found.get("enum")):
            return copied(self.pick(found["enum"]))
        kinds = found.get("type") or _implied(found)
        kind = kinds if isinstance(kinds, str) else self.pick(kinds)
        if kind == "object":
            return self._object(found, depth)
        if kind == "array":
            return self._array(found, depth)
        if kind == "string":
            return self._string(found)
        if kind in ("number", "integer"):
            value = self._number(found)
            whole = kind == "integer" and math.isfinite(value)
            return int(value) if whole else value
        if kind == "boolean":
            return self.likely(0.5)
        return None if kind == "null" else self._any()

    def _any(self):
        return copied(self.pick(self.values))

    def _merged(self, schema):
        """One schema without references and choices: the keywords of all parts that one
        choice leaves."""
        result = {}
        pending = [schema]
        for _ in range(40):
            part = pending.pop() if pending else None
            if not isinstance(part, Mapping):
                continue
            pending.append(self._target(part.get("$ref")))
            pending += _iterable(part.get("allOf"))
            for keyword in ("anyOf", "oneOf"):
                options = _iterable(part.get(keyword))
                pending += self.chance.sample(options, min(len(options), 1))
            branch = self.pick((("if", "then"), ("else",)))
            pending += [part.get(keyword) for keyword in branch]
            for keyword, value in part.items():
                old = result.get(keyword)
                result[keyword] = (
                    value
                    if old is None
                    else _both(
                        keyword,
                        old,
                        value,
                    )
                )
        return result

    def _target(self, reference):
        found = target_of(self.root, reference)
        return found[0] if found else None

    def _object(self, found, depth):
        properties = found.get("properties") or {}
        patterns = found.get("patternProperties") or {}
        names = [str(name) for name in _iterable(found.get("required"))]
        share = 0.6 if depth < 3 else 0.2
        names += [name for name in properties if self.likely(share)]
        needed = found.get("dependentRequired") or found.get("dependencies") or {}
        for name in list(names):
            names += [str(other) for other in _iterable(needed.get(name))]
        missing = int(found.get("minProperties", 0)) - len({*names})
        for _ in range(max(missing, self.pick((0, 0, 0, 0, 1)))):
            pattern = self.pick([*patterns, None])
            other = self.pick(self.names)
            names.append(other if pattern is None else self.matching(pattern))
        result = {}
        for name in dict.fromkeys(names):
            parts = [properties[name]] if name in properties else []
            parts += [
                patterns[pattern] for pattern in patterns if _finds(pattern, name)
            ]
            rest = found.get("additionalProperties")
            result[name] = self.build({"allOf": parts} if parts else rest, depth + 1)
        return result

    def _array(self, found, depth):
        rest = found.get("items")
        prefix = found.get("prefixItems") or []
        if isinstance(rest, list):
            prefix = rest
            rest = found.get("additionalItems")
        length = int(found.get("minItems", 0))
        if depth <= _DEPTH:
            length = max(length, self.pick((0, 1, 2, len(prefix))))
        length = min(
            length,
            int(found.get("maxItems", 64)),
            64,
        )
        parts = [*prefix, *[rest] * length][:length]
        if "contains" in found and self.likely(0.8):
            parts += [found["contains"]] * self.pick((1, 2))
        return [self.build(part, depth + 1) for part in parts]

    def _string(self, found):
        if found.get("format") in SAMPLES and self.likely(0.8):
            return self.pick(SAMPLES[found["format"]])
        if isinstance(found.get("pattern"), str) and self.likely(0.9):
            return self.matching(found["pattern"])
        low = int(found.get("minLength", 0))
        high = int(found.get("maxLength", 3))
        length = min(self.pick((low, low + 1, high)), 2000)
        return "".join(self.chance.choices(CHARACTERS, k=length))

    def _number(self, found):
        ends = [found[key] for key in _BOUNDS if _is_number(found.get(key))]
        value = self.pick(ends or [0, 1, 100])
        if abs(value) < 1e300:
            value += self.pick((0, 0, 1, -1, 0.5, 3))
        step = found.get("multipleOf")
        if _is_number(step) and step > 0:
            value = round(value / step) * step
        return round(value, 9) if isinstance(value, float) else value

    def matching(self, pattern):
        """A text that a pattern may find: a walk through its parse."""
        try:
            with warnings.catch_warnings(action="ignore"):
                parsed = re._parser.parse(pattern)
            text = self._walked(parsed)
        except (re.error, OverflowError, RecursionError):
            return self.pick(CHARACTERS)
        return text if pattern[:1] == "^" or self.likely(0.7) else "x" + text

    def _walked(self, parsed):
        return "".join(self._step(str(name), argument) for name, argument in parsed)

    def _step(self, operation, argument):
        match operation:
            case "LITERAL":
                return chr(argument)
            case "RANGE":
                low, high = argument
                return chr(self.pick((low, high, (low + high) // 2)))
            case "CATEGORY":
                return self.pick(_CATEGORIES.get(str(argument), "a-é"))
            case "IN" if str(argument[0][0]) != "NEGATE":
                return self._walked([self.pick(argument)])
            case "IN" | "NOT_LITERAL" | "ANY":
                return self.pick("abz09 é~")
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, part = argument
                times = min(
                    self.chance.randint(low, low + 3),
                    int(high),
                    300,
                )
                return "".join(self._walked(part) for _ in range(times))
            case "BRANCH":
                return self._walked(self.pick(argument[1]))
            case "SUBPATTERN":
                return self._walked(argument[-1])
        return ""


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_CATEGORIES = {
    "CATEGORY_DIGIT": "0369",
    "CATEGORY_WORD": "aZ_9",
    "CATEGORY_SPACE": " \t",
}
_HINTS = {
    "object": "ropert|required|depend",
    "array": "tems|ontains",
    "string": "Length|pattern$|pattern |format",
    "number": "imum|multiple",
}


def _implied(found):
    """The types that the keywords speak of."""
    words = " ".join(found)
    implied = [kind for kind, mark in _HINTS.items() if re.search(mark, words)]
    return implied or [*_HINTS, "boolean", "null"]


def _both(keyword, old, value):
    """Two values of a keyword as one, where that is easy to say; else the last one."""
    if keyword in ("properties", "patternProperties"):
        common = old.keys() & value.keys()
        both = {name: {"allOf": [old[name], value[name]]} for name in common}
        return {**old, **value, **both}
    if keyword == "required":
        return [*_iterable(old), *_iterable(value)]
    if keyword in ("type", "enum"):
        allowed = old if isinstance(old, list) else [old]
        others = value if isinstance(value, list) else [value]
        return [name for name in allowed if name in others] or others
    return value


def _iterable(value):
    """The items of a list, the names of an object; nothing of anything else."""
    return list(value) if isinstance(value, list | Mapping) else []


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finds(pattern, name):
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def laid_out(text, whitespace):
    """The text of an instance as `compact` or `spaced` JSON, with its spellings
    kept."""
    space = " " * (whitespace == "spaced")

    def part(found):
        if found[0] in ",:":
            return found[0] + space
        return found[0].strip(" \t\r\n")

    return _STRING_OR_BETWEEN.sub(part, text)
