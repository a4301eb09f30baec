"""Random JSON Schemas: nested combinations of all keywords that are enforced, in each
draft's own form.

Names, values and patterns come from small pools, so that keywords meet each other. A
random generator decides everything: the same state makes the same schema.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from oracle import FORMATS

__all__ = ["TEXTS", "entangled_schema", "random_pattern", "random_schema"]

_DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
_NAMES = ["a", "b", "c", "ab", "x1", "é", 'q"', "$ref", "\x7f", "\x1f"]
_NAME_WEIGHTS = [10, 10, 8, 4, 3, 1, 1, 1, 1, 1]
_TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "abc",
    "x",
    "1",
    "é€",
    "😀",
    'q"\\',
    "a b",
    "\n",
    "/",
    "a\x7f",
    "\x00",
]
_NUMBERS: list[Any] = [
    0,
    1,
    2,
    3,
    5,
    7,
    10,
    12,
    99,
    100,
    -1,
    -3,
    -10,
    0.5,
    1.5,
    -2.5,
    0.1,
    2.25,
    1e3,
    1e-3,
]
_FAR: list[Any] = [
    1000000,
    2**31,
    2**53,
    2**63,
    -(2**63),
    1e10,
    1.5e-7,
    0.123456789,
    1e22,
]
_BOUNDS = [*_NUMBERS, *_NUMBERS, *_NUMBERS, *_FAR]
_DIVISORS: list[Any] = [
    1,
    2,
    3,
    4,
    5,
    7,
    10,
    12,
    100,
    0.5,
    0.25,
    0.1,
    0.01,
    1.5,
    2.5,
    0.3,
    2.0,
]
_DIVISORS += [
    *_DIVISORS,
    *_DIVISORS,
    365,
    1024,
    86400,
    0.125,
    0.001,
    3.75,
    1e-6,
    12345,
    2**32,
]
_PATTERNS = [
    *(
        "^a",
        "b$",
        "a",
        "^a$",
        "^[a-c]+$",
        "^[^a]*$",
        "a|b",
        "^(a|bc){1,3}$",
        r"\d",
        r"^\d{2,3}$",
        r"^\S+$",
    ),
    *(
        r"^\w*$",
        "^.{2,4}$",
        "^$",
        "",
        "^(?:)$",
        r"^[^\"]*$",
        r"\\",
        "é",
        "^[é€]",
        "^x-",
        "^(?!a)",
        r"\bab\b",
    ),
    *(
        "^a?b*c+$",
        "^(?:^a|b)$",
        "^[a-z]([a-z0-9]|-)*$",
        "[^]",
        "^.$",
        r"\u0061",
        r"^\s",
        "^[A-Z]{2}$|^$",
    ),
]

_CONSTANTS: list[dict[str, Any]] = [
    {"enum": ["a"]},
    {"enum": ["b"]},
    {"enum": ["c", "x"]},
    {"enum": [1]},
    {"type": "null"},
]
_CONSTANTS += [
    {"type": "string", "enum": ["ab"]},
    {"enum": ["a", "b"]},
    {"enum": [None, "1"]},
]
_STARTS = [
    {"type": "string", "pattern": source}
    for source in ("^a", "^b", "^[c-z]", "b$", "^ab", "^1")
]
_STARTS += [{"pattern": "^a"}, {"pattern": "^x"}, {"type": "string", "maxLength": 1}]
"""What tells the kinds of a union apart, most of them."""

_ATOMS = [
    *(
        ("a", "a"),
        ("b", "b"),
        ("[ab]", "[ab]"),
        ("[^a]", "[^a]"),
        (".", "[^\n\r\u2028\u2029]"),
    ),
    *(("^", r"\A"), ("$", r"\Z"), ("c", "c"), ('"', '"')),
]
TEXTS = [
    "".join(text)
    for length in range(5)
    for text in itertools.product('ab"', repeat=length)
]
TEXTS += ["c", "ac", "ca", "\n", "a\n", "\\a", "aaaaa", "aaaaaa", "ababab"]
"""Texts that random patterns of the plain atoms tell apart."""
_MORE_ATOMS = [
    (atom, atom)
    for atom in (r"\d", r"\w", "é", r"\\", "[a-f0-9]", r"\.", "x-", "@", "[A-Z0-9]")
]
_TIMES = ["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}"]


def random_pattern(
    chance: Random, depth: int, looks: bool, atoms: Sequence[tuple[str, str]] = _ATOMS
) -> tuple[str, ...]:
    """A regular expression of ECMA 262, and the same for Python's `re`."""

    def part() -> tuple[str, ...]:
        return random_pattern(chance, depth - 1, looks, atoms)

    kind = chance.random()
    pieces: list[Any]
    if depth == 0 or kind < 0.3:
        return chance.choice(atoms)
    if kind < 0.5:
        pieces = ["", part(), part()]
    elif kind < 0.65:
        pieces = ["(?:", part(), "|", part(), ")"]
    elif kind < 0.85:
        pieces = ["(?:", part(), ")", chance.choice(_TIMES)]
    elif kind < 0.93 and looks:
        pieces = [chance.choice(["(?=", "(?!"]), part(), ")"]
    else:
        pieces = [part(), part(), part()]
    return tuple(
        "".join(p if isinstance(p, str) else p[side] for p in pieces) for side in (0, 1)
    )


def random_schema(source: Random) -> Any:
    """A schema, of any draft; most name it.

    Some are arrays of distinct items, unions told apart by a property, or texts with
    many demands.
    """
    roll = source.random()
    if roll < 0.03:
        return entangled_schema(source)
    maker = _Maker(source, source.choices(list(_DRAFTS), [1, 1, 4, 2, 8])[0])
    maker.distinct = roll < 0.2
    maker.unions = 0.2 < roll < 0.45
    return maker.document()


class _Keyword(NamedTuple):
    """A keyword, in how many schemas of its type it stands, its value below a depth,
    and its drafts."""

    name: str
    share: float
    make: Callable[[_Maker, int], Any]
    since: int = 4
    until: int = 2020


def _some(low: int, high: int) -> Callable[[_Maker, int], Any]:
    return lambda maker, inner: [
        maker.schema(inner) for _ in range(maker.chance.randint(low, high))
    ]


def _count(low: int, high: int) -> Callable[[_Maker, int], int]:
    return lambda maker, inner: maker.chance.randint(low, high)


def _one(maker: _Maker, inner: int) -> Any:
    return maker.schema(inner)


def _by_name(maker: _Maker, inner: int) -> dict[str, Any]:
    return {name: maker.schema(inner) for name in maker.names(1, 4)}


def _needs(maker: _Maker, inner: int) -> dict[str, list[str]]:
    return dict.fromkeys(maker.names(1, 2), maker.names(1, 2))


def _closing(maker: _Maker, inner: int) -> Any:
    closed = {"not": {}} if maker.draft == 4 else False
    return closed if maker.chance.random() < 0.6 else maker.schema(inner)


def _bound(maker: _Maker, inner: int) -> Any:
    return maker.chance.choice(_BOUNDS)


_KEYWORDS = {
    "object": [
        _Keyword("properties", 0.8, _by_name),
        _Keyword("required", 0.4, lambda maker, inner: maker.names(1, 2)),
        _Keyword("additionalProperties", 0.3, _closing),
        _Keyword(
            "patternProperties",
            0.15,
            lambda maker, inner: {maker.pattern(): maker.schema(inner)},
        ),
        _Keyword("minProperties", 0.08, _count(1, 3)),
        _Keyword("maxProperties", 0.08, _count(0, 3)),
        _Keyword(
            "propertyNames", 0.03, lambda maker, inner: {"pattern": maker.pattern()}, 6
        ),
        _Keyword(
            "propertyNames", 0.03, lambda maker, inner: {"enum": maker.names(1, 3)}, 6
        ),
        _Keyword("dependencies", 0.04, _by_name, until=7),
        _Keyword("dependencies", 0.04, _needs, until=7),
        _Keyword("dependentSchemas", 0.04, _by_name, 2019),
        _Keyword("dependentRequired", 0.06, _needs, 2019),
    ],
    "array": [
        _Keyword("items", 0.6, _one),
        _Keyword("items", 0.25, _some(1, 3), until=2019),
        _Keyword("additionalItems", 0.15, _closing, until=2019),
        _Keyword("prefixItems", 0.25, _some(1, 3), 2020),
        _Keyword("minItems", 0.2, _count(0, 3)),
        _Keyword("maxItems", 0.25, _count(0, 4)),
        _Keyword("contains", 0.15, _one, 6),
        _Keyword("uniqueItems", 0.1, lambda maker, inner: True),
    ],
    "string": [
        _Keyword("minLength", 0.25, _count(0, 3)),
        _Keyword("maxLength", 0.25, _count(0, 5)),
        _Keyword("pattern", 0.35, lambda maker, inner: maker.pattern()),
        _Keyword(
            "format",
            0.12,
            lambda maker, inner: maker.chance.choice([*FORMATS, "unknown"]),
        ),
    ],
    "number": [
        _Keyword("minimum", 0.3, _bound),
        _Keyword("maximum", 0.3, _bound),
        _Keyword("exclusiveMinimum", 0.12, _bound, 6),
        _Keyword("exclusiveMaximum", 0.12, _bound, 6),
        _Keyword(
            "multipleOf", 0.2, lambda maker, inner: maker.chance.choice(_DIVISORS)
        ),
    ],
    "boolean": [],
    "null": [],
}
_KEYWORDS["integer"] = _KEYWORDS["number"]
_WEIGHTS = [9, 6, 6, 4, 1, 1, 5]
_COMPOSERS = [
    _Keyword("allOf", 0.06, _some(1, 3)),
    _Keyword("anyOf", 0.09, _some(1, 3)),
    _Keyword("oneOf", 0.09, _some(1, 3)),
    _Keyword("not", 0.06, _one),
    _Keyword("if", 0.05, _one, 7),
    _Keyword("enum", 0.03, lambda maker, inner: maker.values()),
    _Keyword("const", 0.02, lambda maker, inner: maker.value(), 6),
]
_DEEPEST = 4


class _Maker:
    """Makes one document."""

    def __init__(self, source: Random, draft: int) -> None:
        self.chance = source
        self.draft = draft
        self.home = "definitions" if draft <= 7 else "$defs"
        self.defined = [f"d{n}" for n in range(source.choice((0, 0, 1, 2)))]
        self.size = source.choice((4, 8, 14, 24))
        """About how many subschemas the document may still have."""
        self.distinct = False
        """Whether most types are arrays, of which most ask for distinct items."""
        self.unions = False
        """Whether most schemas are unions told apart by a property."""

    def document(self) -> Any:
        """The whole schema."""
        result = self.schema(0)
        if not isinstance(result, dict):
            return result
        if self.draft != 2020 or self.chance.random() < 0.3:
            result = {"$schema": _DRAFTS[self.draft], **result}
        # Each refers only to later ones and, below others, to the root.
        names = self.defined
        self.defined = []
        for name in reversed(names):
            result.setdefault(self.home, {})[name] = self.schema(1)
            self.defined.append(name)
        return result

    def schema(self, depth: int) -> Any:
        """One schema at a depth."""
        self.size -= 1
        if depth > 0 and self.draft > 4 and self.chance.random() < 0.06:
            return self.chance.random() < 0.75
        leaf = self.size < 0 or depth >= _DEEPEST
        if leaf and self.chance.random() < 0.25:
            return {"enum": self.values()}
        result: dict[str, Any] = {}
        kinds = self.chance.choices(
            [*_KEYWORDS], _WEIGHTS, k=self.chance.choice((1, 1, 1, 1, 1, 1, 2, 3))
        )
        if self.distinct and depth < 2 and self.chance.random() < 0.6:
            kinds = ["array"]
            least = self.chance.choice((0, 0, 1, 2, 3))
            result = {
                "type": "array",
                "uniqueItems": True,
                "items": self.few(depth + 1),
                "minItems": least,
            }
            if self.chance.random() < 0.6:
                return result
        if self.unions and depth < 3 and self.chance.random() < 0.6:
            return self.union(depth)
        kinds = [
            kind
            for kind in dict.fromkeys(kinds)
            if not leaf or kind not in ("object", "array")
        ]
        if kinds and self.chance.random() < 0.65:
            result["type"] = (
                kinds if len(kinds) > 1 or self.chance.random() < 0.05 else kinds[0]
            )
        rows = [row for kind in kinds for row in _KEYWORDS[kind]] + (
            [] if leaf else _COMPOSERS
        )
        for row in rows:
            if (
                row.since <= self.draft <= row.until
                and self.chance.random() < row.share
            ):
                result[row.name] = row.make(self, depth + 1)
        for branch in ("then", "else") if "if" in result else ():
            if self.chance.random() < 0.75:
                result[branch] = self.schema(depth + 1)
        if self.draft == 4 and "minimum" in result:
            result["exclusiveMinimum"] = self.chance.random() < 0.2
        if self.chance.random() < 0.1:
            result |= self._reference(depth)
        return result

    def _reference(self, depth: int) -> dict[str, Any]:
        # A reference to the root is often enough below a property or an item to come to
        # an end.
        if depth >= 2 and self.chance.random() < 0.2:
            return {"$ref": "#"}
        if not self.defined:
            return {}
        return {"$ref": f"#/{self.home}/{self.chance.choice(self.defined)}"}

    def few(self, depth: int) -> Any:
        """A schema that most often has few values."""
        kind = self.chance.random()
        if depth > 3 or kind < 0.4:
            return self.chance.choice(
                [{"enum": self.values()}, {"enum": self.values()}, {"type": "boolean"}]
            )
        if kind < 0.55:
            return {"anyOf": [self.few(depth + 1), self.few(depth + 1)]}
        if kind < 0.75:
            properties = {name: self.few(depth + 1) for name in self.names(1, 2)}
            listed = {
                "type": "object",
                "properties": properties,
                "required": list(properties)[:1],
            }
            return (
                listed
                if self.chance.random() < 0.3
                else {**listed, "additionalProperties": False}
            )
        return self.schema(depth)

    def union(self, depth: int) -> dict[str, Any]:
        """Objects of several kinds; what tells them apart is described, required and
        typed here and there."""
        chance = self.chance
        tag = self.names(1, 1)[0]
        pool = chance.choice((_CONSTANTS, _STARTS, [*_CONSTANTS, *_STARTS]))
        kinds = chance.sample(pool, chance.randint(2, 4))
        branches = [self._branch(tag, kind, depth) for kind in kinds]
        if chance.random() < 0.2:  # a union in a union
            branches[:2] = [{"oneOf": branches[:2]}]
        keyword = chance.choice(("oneOf", "oneOf", "oneOf", "anyOf"))
        union: dict[str, Any] = {keyword: branches}
        beside: dict[str, Any] = {"required": [tag]} if chance.random() < 0.75 else {}
        if chance.random() < 0.7:
            beside["type"] = "object"
        if chance.random() < 0.4:
            beside["properties"] = {
                name: self.schema(depth + 2) for name in self.names(1, 2)
            }
        if chance.random() < 0.2:
            beside["properties"] = {
                **beside.get("properties", {}),
                tag: {"type": "string"},
            }
        if chance.random() < 0.2:
            beside["additionalProperties"] = _closing(self, depth + 1)
        match chance.randrange(5):
            case 0:
                return {"allOf": chance.sample([union, beside], 2)}
            case 1:
                return {**beside, "allOf": [{"allOf": [union]}]}
            case 2:
                return {**union, **beside, "not": {"required": self.names(1, 1)}}
        return {**beside, **union} if chance.random() < 0.5 else {**union, **beside}

    def _branch(self, tag: str, kind: dict[str, Any], depth: int) -> dict[str, Any]:
        """One kind of a union's objects."""
        chance = self.chance
        described = {
            tag: kind,
            **{name: self.schema(depth + 2) for name in self.names(0, 2)},
        }
        branch: dict[str, Any] = {"properties": described}
        if chance.random() < 0.3:
            branch["type"] = "object"
        if chance.random() < 0.4:
            branch["required"] = list(
                dict.fromkeys([*self.names(1, 1), *chance.choice(([], [tag]))])
            )
        if chance.random() < 0.1:
            branch["additionalProperties"] = _closing(self, depth + 1)
        return branch

    def value(self, depth: int = 0) -> Any:
        """A value for enum and const."""
        roll = self.chance.random()
        if roll < 0.15 and depth < 2:
            return [self.value(depth + 1) for _ in range(self.chance.randrange(3))]
        if roll < 0.3 and depth < 2:
            return {name: self.value(depth + 1) for name in self.names(0, 2)}
        pick: Callable[[Any], Any] = self.chance.choice
        return pick(
            [
                pick(_TEXTS),
                pick(_TEXTS),
                pick(_NUMBERS),
                pick(_NUMBERS),
                1.0,
                True,
                False,
                None,
            ]
        )

    def values(self) -> list[Any]:
        """Some values, each once."""
        values = (self.value() for _ in range(self.chance.randint(1, 4)))
        return list({repr(value): value for value in values}.values())

    def names(self, low: int, high: int) -> list[str]:
        """Some names, each once."""
        count = self.chance.randint(low, high)
        return list(dict.fromkeys(self.chance.choices(_NAMES, _NAME_WEIGHTS, k=count)))

    def pattern(self) -> str:
        """One of the pool, or a random one."""
        return (
            self.chance.choice(_PATTERNS)
            if self.chance.random() < 0.6
            else _pattern(self.chance)
        )


def _pattern(chance: Random, *, looks: bool = False) -> str:
    text = random_pattern(
        chance, chance.randint(1, 3), looks, [*_ATOMS[:5], *_MORE_ATOMS]
    )[0]
    return chance.choice(("^", "", ".*")) + text + chance.choice(("$", ""))


def entangled_schema(chance: Random) -> dict[str, Any]:
    """A string with several demands at once, or an object with demands on its names."""
    kind = chance.random()
    if kind < 0.5:
        return {"type": "string", **_texts(chance)}
    values = [{"type": "integer"}, {"enum": ["x"]}, {"type": "string", "maxLength": 4}]
    schema: dict[str, Any] = {"type": "object"}
    if kind < 0.8:
        sources = [_pattern(chance, looks=True) for _ in range(chance.randint(1, 5))]
        schema["patternProperties"] = {
            source: chance.choice(values) for source in sources
        }
        if chance.random() < 0.4:
            schema["additionalProperties"] = chance.choice([False, {"type": "null"}])
        if chance.random() < 0.3:
            names = chance.sample(["a", "ab", "x-y", "b_", "a.b"], 2)
            schema["properties"] = {name: chance.choice(values) for name in names}
        if chance.random() < 0.2:
            schema["propertyNames"] = _texts(chance)
        return schema
    least = {"minProperties": chance.randint(0, 2)}
    return {
        **schema,
        "propertyNames": _texts(chance),
        "additionalProperties": chance.choice(values),
        **least,
    }


def _texts(chance: Random) -> dict[str, Any]:
    """Keywords of a text, most of them together with others."""
    pattern = {"pattern": _pattern(chance, looks=True)}
    schema = pattern if chance.random() < 0.6 else {}
    if chance.random() < 0.5:
        schema["format"] = chance.choice([*FORMATS])
    if chance.random() < 0.25:
        schema["maxLength"] = chance.choice([3, 20, 100, 500])
    if chance.random() < 0.15:
        schema["minLength"] = chance.choice([1, 2, 10, 50])
    other = {"pattern": _pattern(chance, looks=True)}
    opposites = (
        {"not": other},
        {"not": {"format": chance.choice([*FORMATS])}},
        {"allOf": [{"pattern": _pattern(chance)}, {"not": other}]},
        {"not": {"enum": ["a", "ab", "a.b"]}},
    )
    return schema | (chance.choice(opposites) if chance.random() < 0.45 else {})
