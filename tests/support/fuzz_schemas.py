"""Random JSON Schemas: nested combinations of all keywords that are enforced, in each draft's own form.

Names, values and patterns come from small pools, so that keywords meet each other. A random generator
decides everything: the same state makes the same schema.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from equality_formats import SAMPLES
from fuzz_distinct import distinct_schema

__all__ = ["random_schema"]

_DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
_NAMES = ["a", "b", "c", "ab", "x1", "é", 'q"', "$ref", "\x7f", "\x1f"]
_NAME_WEIGHTS = [10, 10, 8, 4, 3, 1, 1, 1, 1, 1]
_TEXTS = ["", "a", "b", "ab", "abc", "x", "1", "é€", "😀", 'q"\\', "a b", "\n", "/", "a\x7f", "\x00"]
_NUMBERS: list[Any] = [0, 1, 2, 3, 5, 7, 10, 12, 99, 100, -1, -3, -10, 0.5, 1.5, -2.5, 0.1, 2.25, 1e3, 1e-3]
_FAR_NUMBERS: list[Any] = [1000000, 2**31, 2**53, 2**63, -(2**63), 1e10, 1.5e-7, 0.123456789, 1e22]
_DIVISORS: list[Any] = [1, 2, 3, 4, 5, 7, 10, 12, 100, 0.5, 0.25, 0.1, 0.01, 1.5, 2.5, 0.3, 2.0]
_FAR_DIVISORS: list[Any] = [365, 1024, 86400, 0.125, 0.001, 3.75, 1e-6, 12345, 2**32]
_PATTERNS = [
    *("^a", "b$", "a", "^a$", "^[a-c]+$", "^[^a]*$", "a|b", "^(a|bc){1,3}$", r"\d", r"^\d{2,3}$", r"^\S+$"),
    *(r"^\w*$", "^.{2,4}$", "^$", "", "^(?:)$", r"^[^\"]*$", r"\\", "é", "^[é€]", "^x-", "^(?!a)", r"\bab\b"),
    *(
        "^a?b*c+$",
        "^(?:^a|b)$",
        "^[a-z]([a-z0-9]|-)*$",
        "[^]",
        "^.$",
        r"\u0061",
        r"^\s",
        "^[A-Z]{2}$|^$",
        "(a)",
    ),
]
_KINDS = ["object", "array", "string", "number", "integer", "boolean", "null"]
_KIND_WEIGHTS = [9, 6, 6, 4, 5, 1, 1]
_DEEPEST = 4


def random_schema(source: Random) -> Any:
    """A schema, of any draft; most name it. Some are arrays of distinct items."""
    if source.random() < 0.1:
        return distinct_schema(source)
    draft = source.choices(list(_DRAFTS), [1, 1, 4, 2, 8])[0]
    return _Maker(source, draft).document()


class _Maker:
    """Makes one document."""

    def __init__(self, source: Random, draft: int) -> None:
        self.random = source
        self.draft = draft
        self.defined = [f"d{n}" for n in range(source.choice((0, 0, 1, 2)))]
        self.size = source.choice((4, 8, 14, 24))
        """About how many subschemas the document may still have."""

    def document(self) -> Any:
        """The whole schema."""
        result = self.schema(0)
        if not isinstance(result, dict):
            return result
        if self.draft != 2020 or self.chance(0.3):
            result = {"$schema": _DRAFTS[self.draft], **result}
        if self.defined:
            # They may refer to each other, but only below a property or an item: see `_reference`.
            result[self._definitions] = {name: self.schema(1) for name in self.defined}
        if self.draft == 2020 and self.chance(0.03):
            result["$dynamicAnchor"] = "node"
        return result

    @property
    def _definitions(self) -> str:
        return "definitions" if self.draft <= 7 else "$defs"

    def chance(self, share: float) -> bool:
        """True in so many cases."""
        return self.random.random() < share

    def schema(self, depth: int) -> Any:
        """One schema at a depth."""
        self.size -= 1
        if depth > 0 and self.draft > 4 and self.chance(0.06):
            return self.chance(0.75)
        if self.size < 0 or depth >= _DEEPEST:
            return self._leaf()
        result: dict[str, Any] = {}
        if self.chance(0.85):
            for kind in self._kinds(result):
                self._constrain(kind, result, depth)
        elif self.chance(0.5):
            self._constrain(self.random.choices(_KINDS, _KIND_WEIGHTS)[0], result, depth)
        for share, add in self._composers:
            if self.chance(share):
                add(result, depth)
        return result

    def _kinds(self, result: dict[str, Any]) -> list[str]:
        """The types whose keywords the schema gets; mostly it names them."""
        several = self.chance(0.12)
        kinds = self.random.choices(_KINDS, _KIND_WEIGHTS, k=self.random.choice((2, 3)) if several else 1)
        kinds = list(dict.fromkeys(kinds))
        if self.chance(0.75):
            result["type"] = kinds if len(kinds) > 1 or self.chance(0.05) else kinds[0]
        return kinds

    def _leaf(self) -> Any:
        result: dict[str, Any] = {}
        roll = self.random.random()
        if roll < 0.15:
            return {"enum": self._values()}
        if roll < 0.25:
            return {"const": self.value()} if self.draft > 4 else {"enum": [self.value()]}
        if self.defined and roll < 0.3:
            return self._target(deep=False)
        kinds = [kind for kind in self._kinds(result) if kind not in ("object", "array")]
        for kind in kinds:
            self._constrain(kind, result, _DEEPEST)
        return result

    def value(self, depth: int = 0) -> Any:
        """A value for enum and const."""
        roll = self.random.random()
        if roll < 0.15 and depth < 2:
            return [self.value(depth + 1) for _ in range(self.random.randrange(3))]
        if roll < 0.3 and depth < 2:
            return {name: self.value(depth + 1) for name in self._names(self.random.randrange(3))}
        pick: Callable[[Any], Any] = self.random.choice
        return pick([pick(_TEXTS), pick(_TEXTS), pick(_NUMBERS), pick(_NUMBERS), 1.0, True, False, None])

    def _values(self) -> list[Any]:
        values: list[Any] = []
        for _ in range(self.random.randint(1, 4)):
            value = self.value()
            if not any(value == other for other in values):
                values.append(value)
        return values

    def _names(self, count: int) -> list[str]:
        return list(dict.fromkeys(self.random.choices(_NAMES, _NAME_WEIGHTS, k=count)))

    def _constrain(self, kind: str, result: dict[str, Any], depth: int) -> None:
        match kind:
            case "object":
                self._object(result, depth)
            case "array":
                self._array(result, depth)
            case "string":
                self._string(result)
            case "number" | "integer":
                self._number(result)

    def _object(self, result: dict[str, Any], depth: int) -> None:
        inner = depth + 1
        if self.chance(0.8):
            names = self._names(self.random.randint(1, 4))
            result["properties"] = {name: self.schema(inner) for name in names}
        if self.chance(0.4):
            result["required"] = self._names(self.random.randint(1, 2))
        if self.chance(0.3):
            result["additionalProperties"] = self.random.choice((False, False, self._boolean(), None))
            if result["additionalProperties"] is None:
                result["additionalProperties"] = self.schema(inner)
        if self.chance(0.15):
            result["patternProperties"] = {self.pattern(): self.schema(inner) for _ in range(self.pick(1, 2))}
        if self.chance(0.08):
            result["minProperties"] = self.pick(1, 3)
        if self.chance(0.08):
            result["maxProperties"] = self.pick(0, 3)
        if self.draft >= 6 and self.chance(0.06):
            result["propertyNames"] = self.random.choice(
                ({"pattern": self.pattern()}, {"maxLength": self.pick(1, 2)}, {"enum": self._names(3)})
            )
        if self.chance(0.08):
            self._dependent(result, inner)
        if self.draft >= 2019 and self.chance(0.1):
            result["unevaluatedProperties"] = False if self.chance(0.7) else self.schema(inner)

    def _dependent(self, result: dict[str, Any], inner: int) -> None:
        names, needs = self._names(2), self._names(2)
        if self.draft <= 7:
            result["dependencies"] = {
                name: needs if self.chance(0.5) else self.schema(inner) for name in names
            }
        elif self.chance(0.5):
            result["dependentRequired"] = dict.fromkeys(names, needs)
        else:
            result["dependentSchemas"] = {name: self.schema(inner) for name in names}

    def _array(self, result: dict[str, Any], depth: int) -> None:
        inner = depth + 1
        if self.chance(0.25):
            places = [self.schema(inner) for _ in range(self.pick(1, 3))]
            result["prefixItems" if self.draft == 2020 else "items"] = places
            if self.chance(0.5):
                rest = False if self.chance(0.4) else self.schema(inner)
                rest = {"not": {}} if rest is False and self.draft == 4 else rest
                result["items" if self.draft == 2020 else "additionalItems"] = rest
        elif self.chance(0.7):
            result["items"] = self.schema(inner)
        if self.chance(0.2):
            result["minItems"] = self.pick(0, 3)
        if self.chance(0.25):
            result["maxItems"] = self.pick(0, 4)
        if self.draft >= 6 and self.chance(0.15):
            result["contains"] = self.schema(inner)
            if self.draft >= 2019 and self.chance(0.4):
                result["minContains"] = self.pick(0, 2)
            if self.draft >= 2019 and self.chance(0.4):
                result["maxContains"] = self.pick(1, 3)
        if self.chance(0.1):
            result["uniqueItems"] = True
        if self.draft >= 2019 and self.chance(0.08):
            result["unevaluatedItems"] = False if self.chance(0.6) else self.schema(inner)

    def _string(self, result: dict[str, Any]) -> None:
        if self.chance(0.25):
            result["minLength"] = self.pick(0, 3)
        if self.chance(0.25):
            result["maxLength"] = self.pick(0, 5)
        if self.chance(0.35):
            result["pattern"] = self.pattern()
        if self.chance(0.12):
            result["format"] = self.random.choice([*SAMPLES, "unknown"])

    def pattern(self) -> str:
        """One of the pool, or a random one."""
        return self.random.choice(_PATTERNS) if self.chance(0.6) else self._expression(2)

    def _expression(self, depth: int) -> str:
        atoms = ["a", "b", ".", "[ab]", "[^b]", r"\d", r"\w", "é", '"', r"\\", "[a-f0-9]", r"\."]
        parts = []
        for _ in range(self.pick(1, 3)):
            part, times = self.random.choice(atoms), ("", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,3}")
            if depth and self.chance(0.3):
                part = f"(?:{self._expression(depth - 1)}|{self._expression(depth - 1)})"
                # Endless repetitions in endless repetitions would take Python's engine for ever.
                times = ("", "", "?", "{2}", "{0,2}")
            parts.append(part + self.random.choice(times))
        text = "".join(parts)
        return text if depth < 2 else self.random.choice(("^", "")) + text + self.random.choice(("$", ""))

    def _number(self, result: dict[str, Any]) -> None:
        pool = _NUMBERS if self.chance(0.9) else _FAR_NUMBERS
        for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            if self.chance(0.3):
                result[bound] = self.random.choice(pool)
            if self.draft == 4 and bound in result and self.chance(0.3):
                result[exclusive] = self._boolean()
            elif self.draft > 4 and self.chance(0.12):
                result[exclusive] = self.random.choice(pool)
        if self.chance(0.2):
            result["multipleOf"] = self.random.choice(_DIVISORS if self.chance(0.9) else _FAR_DIVISORS)

    def pick(self, low: int, high: int) -> int:
        """A whole number."""
        return self.random.randint(low, high)

    def _boolean(self) -> bool:
        return self.chance(0.5)

    @property
    def _composers(self) -> list[tuple[float, Callable[[dict[str, Any], int], None]]]:
        return [
            (0.06, self._some("allOf")),
            (0.09, self._some("anyOf")),
            (0.09, self._some("oneOf")),
            (0.06, self._negation),
            (0.05 if self.draft >= 7 else 0.0, self._condition),
            (0.04, self._enumeration),
            (0.08 if self.defined else 0.0, self._reference),
        ]

    def _some(self, keyword: str) -> Callable[[dict[str, Any], int], None]:
        def add(result: dict[str, Any], depth: int) -> None:
            result[keyword] = [self.schema(depth + 1) for _ in range(self.pick(1, 3))]

        return add

    def _negation(self, result: dict[str, Any], depth: int) -> None:
        result["not"] = self.schema(depth + 1)

    def _condition(self, result: dict[str, Any], depth: int) -> None:
        result["if"] = self.schema(depth + 1)
        for keyword in ("then", "else"):
            if self.chance(0.75):
                result[keyword] = self.schema(depth + 1)

    def _enumeration(self, result: dict[str, Any], depth: int) -> None:
        if self.draft > 4 and self.chance(0.4):
            result["const"] = self.value()
        else:
            result["enum"] = self._values()

    def _reference(self, result: dict[str, Any], depth: int) -> None:
        result.update(self._target(deep=depth >= 2))

    def _target(self, *, deep: bool) -> dict[str, Any]:
        """A reference. `deep`: what holds it is below a property or an item often enough to end."""
        if deep and self.chance(0.2):
            if self.draft == 2019 and self.chance(0.5):
                return {"$recursiveRef": "#"}
            if self.draft == 2020 and self.chance(0.3):
                return {"$dynamicRef": "#/$defs/" + self.defined[0]}
            return {"$ref": "#"}
        return {"$ref": f"#/{self._definitions}/{self.random.choice(self.defined)}"}
