"""Random JSON Schemas: nested combinations of all keywords that are enforced, in each
draft's own form.

Names, values and patterns come from small pools, so that keywords meet each other. A
random generator decides everything: the same state makes the same schema.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from oracle import FORMATS

Schema = dict[str, Any]

_DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
_NAMES = ["a", "b", "c", "ab", "x1", "é", 'q"', "$ref", "\x7f", "\x1f"]
_NAME_WEIGHTS = [10, 10, 8, 4, 3, 1, 1, 1, 1, 1]
_NUMBERS = json.loads("""[0, 1, 2, 3, 5, 7, 10, 12, 99, 100, -1, -3, -10, 0.5, 1.5, -2.5, 0.1,
    2.25, 1e3, 1e-3]""")
_FAR = json.loads("""[1000000, 2147483648, 9007199254740992, 9223372036854775808,
    -9223372036854775808, 1e10, 1.5e-7, 0.123456789, 1e22]""")
_BOUNDS = [*_NUMBERS * 3, *_FAR]
_DIVISORS = json.loads("""[1, 2, 3, 4, 5, 7, 10, 12, 100, 0.5, 0.25, 0.1, 0.01, 1.5, 2.5, 0.3,
    2.0]""")
_DIVISORS = [*_DIVISORS * 3, 365, 1024, 86400, 0.125, 0.001, 3.75, 1e-6, 12345, 2**32]
_VALUES = json.loads(r"""["", "a", "b", "ab", "abc", "x", "1", "é€", "😀", "q\"\\", "a b",
    "\n", "/", "a\u007f", "\u0000", 1.0, true, false, null]""")
_SOURCES = r"""^a b$ a ^a$ ^[a-c]+$ ^[^a]*$ a|b ^(a|bc){1,3}$ \d ^\d{2,3}$ ^\S+$ ^\w*$
    ^.{2,4}$ ^$ ^(?:)$ ^[^\"]*$ \\ é ^[é€] ^x- ^(?!a) \bab\b ^a?b*c+$ ^(?:^a|b)$
    ^[a-z]([a-z0-9]|-)*$ [^] ^.$ \u0061 ^\s ^[A-Z]{2}$|^$"""
_PATTERNS = ["", *_SOURCES.split()]
_KINDS = json.loads("""[{"enum": ["a"]}, {"enum": ["b"]}, {"enum": ["c", "x"]}, {"enum": [1]},
    {"type": "null"}, {"type": "string", "enum": ["ab"]}, {"enum": ["a", "b"]},
    {"enum": [null, "1"]}, {"type": "string", "pattern": "^a"},
    {"type": "string", "pattern": "^b"}, {"type": "string", "pattern": "^[c-z]"},
    {"type": "string", "pattern": "b$"}, {"type": "string", "pattern": "^ab"},
    {"pattern": "^x"}, {"type": "string", "maxLength": 1}]""")
"""What tells the kinds of a union apart, most of them."""

_PLAIN = r'a b c [ab] [^a] "'
_MORE = r"\d \w é \\ [a-f0-9] \. x- @ [A-Z0-9]"
_ATOMS = [(atom, atom) for atom in _PLAIN.split()]
_ATOMS += [(".", "[^\n\r\u2028\u2029]")]
_MORE_ATOMS = [*_ATOMS, *((atom, atom) for atom in _MORE.split())]
_ATOMS += [("^", r"\A"), ("$", r"\Z")]
TEXTS = [
    "".join(text)
    for length in range(5)
    for text in itertools.product('ab"', repeat=length)
]
TEXTS += ["c", "ac", "ca", "\n", "a\n", "\\a", "aaaaa", "aaaaaa", "ababab"]
"""Texts that random patterns of the plain atoms tell apart."""
_TIMES = ["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}"]


def random_pattern(chance, depth, looks, atoms=_ATOMS):
    """A regular expression of ECMA 262, and the same for Python's `re`."""
    kind = chance.random()
    if depth == 0 or kind < 0.3:
        return chance.choice(atoms)
    if kind < 0.5:
        form = "{}{}"
    elif kind < 0.65:
        form = "(?:{}|{})"
    elif kind < 0.85:
        form = "(?:{})" + chance.choice(_TIMES)
    elif kind < 0.93 and looks:
        form = chance.choice(["(?={})", "(?!{})"])
    else:
        form = "{}{}{}"
    parts = [
        random_pattern(
            chance,
            depth - 1,
            looks,
            atoms,
        )
        for _ in range(form.count("{}"))
    ]
    ours, pythons = zip(*parts, strict=True)
    # Bounds have braces too.
    pieces = form.split("{}")
    return _joined(pieces, ours), _joined(pieces, pythons)


def _joined(pieces, parts):
    between = [
        piece + part
        for piece, part in zip(
            pieces,
            parts,
            strict=False,
        )
    ]
    return "".join([*between, pieces[-1]])


def random_schema(source):
    """A schema, of any draft; most name it.

    Some are unions told apart by a property, or texts with many demands.
    """
    roll = source.random()
    if roll < 0.03:
        return entangled_schema(source)
    maker = _Maker(source, source.choices(list(_DRAFTS), [1, 1, 4, 2, 8])[0])
    maker.unions = roll < 0.3
    return maker.document()


class _Keyword(NamedTuple):
    """A keyword, in how many schemas of its type it stands, its value below a depth,
    and its drafts."""

    name: str
    share: float
    make: Callable[[_Maker, int], Any]
    since: int = 4
    until: int = 2020


def _some(maker, inner):
    return [maker.schema(inner) for _ in range(maker.chance.randint(1, 3))]


def _count(low, high):
    return lambda maker, inner: maker.chance.randint(low, high)


def _one(maker, inner):
    return maker.schema(inner)


def _by_name(maker, inner):
    return {name: maker.schema(inner) for name in maker.names(1, 4)}


def _needs(maker, inner):
    return dict.fromkeys(maker.names(1, 2), maker.names(1, 2))


def _closing(maker, inner):
    closed = {"not": {}} if maker.draft == 4 else False
    return closed if maker.likely(0.6) else maker.schema(inner)


def _bound(maker, inner):
    return maker.pick(_BOUNDS)


_KEYWORDS = {
    "object": [
        _Keyword(
            "properties",
            0.8,
            _by_name,
        ),
        _Keyword(
            "required",
            0.4,
            lambda maker, inner: maker.names(1, 2),
        ),
        _Keyword(
            "additionalProperties",
            0.3,
            _closing,
        ),
        _Keyword(
            "patternProperties",
            0.15,
            lambda maker, inner: {maker.pattern(): maker.schema(inner)},
        ),
        _Keyword(
            "minProperties",
            0.08,
            _count(1, 3),
        ),
        _Keyword(
            "maxProperties",
            0.08,
            _count(0, 3),
        ),
        _Keyword(
            "propertyNames", 0.03, lambda maker, inner: {"pattern": maker.pattern()}, 6
        ),
        _Keyword(
            "propertyNames", 0.03, lambda maker, inner: {"enum": maker.names(1, 3)}, 6
        ),
        _Keyword(
            "dependencies",
            0.04,
            _by_name,
            until=7,
        ),
        _Keyword(
            "dependencies",
            0.04,
            _needs,
            until=7,
        ),
        _Keyword(
            "dependentSchemas",
            0.04,
            _by_name,
            2019,
        ),
        _Keyword(
            "dependentRequired",
            0.06,
            _needs,
            2019,
        ),
    ],
    "array": [
        _Keyword(
            "items",
            0.5,
            _one,
        ),
        _Keyword(
            "items",
            0.25,
            lambda maker, inner: {"enum": maker.values()},
        ),
        _Keyword(
            "items",
            0.25,
            _some,
            until=2019,
        ),
        _Keyword(
            "additionalItems",
            0.15,
            _closing,
            until=2019,
        ),
        _Keyword(
            "prefixItems",
            0.25,
            _some,
            2020,
        ),
        _Keyword(
            "minItems",
            0.2,
            _count(0, 3),
        ),
        _Keyword(
            "maxItems",
            0.25,
            _count(0, 4),
        ),
        _Keyword(
            "contains",
            0.15,
            _one,
            6,
        ),
        _Keyword(
            "uniqueItems",
            0.3,
            lambda maker, inner: True,
        ),
    ],
    "string": [
        _Keyword(
            "minLength",
            0.25,
            _count(0, 3),
        ),
        _Keyword(
            "maxLength",
            0.25,
            _count(0, 5),
        ),
        _Keyword(
            "pattern",
            0.35,
            lambda maker, inner: maker.pattern(),
        ),
        _Keyword(
            "format",
            0.12,
            lambda maker, inner: maker.pick([*FORMATS, "unknown"]),
        ),
    ],
    "number": [
        _Keyword(
            "minimum",
            0.3,
            _bound,
        ),
        _Keyword(
            "maximum",
            0.3,
            _bound,
        ),
        _Keyword(
            "exclusiveMinimum",
            0.12,
            _bound,
            6,
        ),
        _Keyword(
            "exclusiveMaximum",
            0.12,
            _bound,
            6,
        ),
        _Keyword(
            "multipleOf",
            0.2,
            lambda maker, inner: maker.pick(_DIVISORS),
        ),
    ],
    "boolean": [],
    "null": [],
}
_KEYWORDS["integer"] = _KEYWORDS["number"]
_WEIGHTS = [9, 6, 6, 4, 1, 1, 5]
_COMPOSERS = [
    _Keyword(
        "allOf",
        0.06,
        _some,
    ),
    _Keyword(
        "anyOf",
        0.09,
        _some,
    ),
    _Keyword(
        "oneOf",
        0.09,
        _some,
    ),
    _Keyword(
        "not",
        0.06,
        _one,
    ),
    _Keyword(
        "if",
        0.05,
        _one,
        7,
    ),
    _Keyword(
        "enum",
        0.03,
        lambda maker, inner: maker.values(),
    ),
    _Keyword(
        "const",
        0.02,
        lambda maker, inner: maker.value(),
        6,
    ),
]
_DEEPEST = 4


class _Maker:
    """Makes one document."""

    def __init__(self, source, draft):
        self.chance = source
        self.pick = source.choice
        self.draft = draft
        self.home = "definitions" if draft <= 7 else "$defs"
        self.defined = [f"d{n}" for n in range(source.choice((0, 0, 1, 2)))]
        self.size = source.choice((4, 8, 14, 24))
        """About how many subschemas the document may still have."""
        self.unions = False
        """Whether most schemas are unions told apart by a property."""

    def likely(self, share):
        """Whether something comes that comes so often."""
        return self.chance.random() < share

    def document(self):
        """The whole schema."""
        result = self.schema(0)
        if not isinstance(result, dict):
            return result
        if self.draft != 2020 or self.likely(0.3):
            result = {"$schema": _DRAFTS[self.draft], **result}
        # Each refers only to later ones and, below others, to the root.
        names = self.defined
        self.defined = []
        for name in reversed(names):
            result.setdefault(self.home, {})[name] = self.schema(1)
            self.defined.append(name)
        return result

    def schema(self, depth):
        """One schema at a depth."""
        self.size -= 1
        if depth > 0 and self.draft > 4 and self.likely(0.06):
            return self.likely(0.75)
        leaf = self.size < 0 or depth >= _DEEPEST
        if leaf and self.likely(0.25):
            return {"enum": self.values()}
        if self.unions and depth < 3 and self.likely(0.6):
            return self.union(depth)
        count = self.pick((1, 1, 1, 1, 1, 1, 2, 3))
        kinds = self.chance.choices(
            [*_KEYWORDS],
            _WEIGHTS,
            k=count,
        )
        kinds = list(dict.fromkeys(kinds))
        result: Schema = {}
        if leaf:
            kinds = [kind for kind in kinds if kind not in ("object", "array")]
        if kinds and self.likely(0.65):
            result["type"] = kinds if len(kinds) > 1 else kinds[0]
        rows = [row for kind in kinds for row in _KEYWORDS[kind]]
        for row in rows if leaf else [*rows, *_COMPOSERS]:
            known = row.since <= self.draft <= row.until
            if known and self.likely(row.share):
                result[row.name] = row.make(self, depth + 1)
        for branch in ("then", "else") if "if" in result else ():
            if self.likely(0.75):
                result[branch] = self.schema(depth + 1)
        if self.draft == 4 and "minimum" in result:
            result["exclusiveMinimum"] = self.likely(0.2)
        if self.likely(0.1):
            result |= self._reference(depth)
        return result

    def _reference(self, depth):
        # A reference to the root is often enough below a property or an item to come to
        # an end.
        if depth >= 2 and self.likely(0.2):
            return {"$ref": "#"}
        if not self.defined:
            return {}
        return {"$ref": f"#/{self.home}/{self.pick(self.defined)}"}

    def union(self, depth):
        """Objects of several kinds; what tells them apart is described, required and
        typed here and there."""
        tag = self.names(1, 1)[0]
        kinds = self.chance.sample(_KINDS, self.chance.randint(2, 4))
        branches = [
            self._branch(
                tag,
                kind,
                depth,
            )
            for kind in kinds
        ]
        if self.likely(0.2):  # a union in a union
            branches[:2] = [{"oneOf": branches[:2]}]
        keyword = self.pick(("oneOf", "oneOf", "oneOf", "anyOf"))
        beside = self._described(depth, 0.4)
        if self.likely(0.75):
            beside["required"] = [tag]
        if self.likely(0.2):
            beside["properties"] = {tag: {"type": "string"}}
        parts = [{keyword: branches}, beside]
        match self.chance.randrange(5):
            case 0:
                return {"allOf": parts}
            case 1:
                return {**beside, "allOf": [{"allOf": parts[:1]}]}
            case 2:
                beside["not"] = {"required": self.names(1, 1)}
        self.chance.shuffle(parts)
        return {**parts[0], **parts[1]}

    def _branch(self, tag, kind, depth):
        """One kind of a union's objects."""
        branch = self._described(depth, 0.7)
        branch["properties"] = {tag: kind, **branch.get("properties", {})}
        if self.likely(0.4):
            branch["required"] = [tag] if self.likely(0.5) else self.names(1, 1)
        return branch

    def _described(self, depth, share):
        """Now and then a type, some properties, and that there are no others."""
        result: Schema = {}
        if self.likely(0.5):
            result["type"] = "object"
        if self.likely(share):
            names = self.names(1, 2)
            result["properties"] = {name: self.schema(depth + 2) for name in names}
        if self.likely(0.15):
            result["additionalProperties"] = _closing(self, depth + 1)
        return result

    def value(self, depth=0):
        """A value for enum and const."""
        roll = self.chance.random()
        if roll < 0.15 and depth < 2:
            return [self.value(depth + 1) for _ in range(self.chance.randrange(3))]
        if roll < 0.3 and depth < 2:
            return {name: self.value(depth + 1) for name in self.names(0, 2)}
        found: Any = self.pick([*_VALUES, *_NUMBERS])
        return found

    def values(self):
        """Some values, each once."""
        values = (self.value() for _ in range(self.chance.randint(1, 4)))
        return list({repr(value): value for value in values}.values())

    def names(self, low, high):
        """Some names, each once."""
        count = self.chance.randint(low, high)
        return list(
            dict.fromkeys(
                self.chance.choices(
                    _NAMES,
                    _NAME_WEIGHTS,
                    k=count,
                )
            )
        )

    def pattern(self):
        """One of the pool, or a random one."""
        if self.likely(0.6):
            return self.pick(_PATTERNS)
        return _pattern(self.chance)


def _pattern(chance, *, looks=False):
    text, _ = random_pattern(
        chance,
        chance.randint(1, 3),
        looks,
        _MORE_ATOMS,
    )
    return chance.choice(("^", "", ".*")) + text + chance.choice(("$", ""))


_OTHERS = json.loads("""[{"type": "integer"}, {"enum": ["x"]},
    {"type": "string", "maxLength": 4}, false, {"type": "null"}]""")


def entangled_schema(chance):
    """A string with several demands at once, or an object with demands on its names."""
    if chance.random() < 0.5:
        return {"type": "string", **_texts(chance)}
    schema: Schema = {"type": "object"}
    if chance.random() < 0.6:
        sources = [_pattern(chance, looks=True) for _ in range(chance.randint(1, 5))]
        described = {source: chance.choice(_OTHERS[:3]) for source in sources}
        schema["patternProperties"] = described
    else:
        schema["propertyNames"] = _texts(chance)
        schema["minProperties"] = chance.randint(0, 2)
    if chance.random() < 0.5:
        schema["additionalProperties"] = chance.choice(_OTHERS)
    if chance.random() < 0.3:
        names = chance.sample(["a", "ab", "x-y", "b_", "a.b"], 2)
        schema["properties"] = {name: chance.choice(_OTHERS[:3]) for name in names}
    return schema


def _texts(chance):
    """Keywords of a text, most of them together with others."""
    other = {"pattern": _pattern(chance, looks=True)}
    opposites = [
        {"not": other},
        {"not": {"format": chance.choice([*FORMATS])}},
        {"allOf": [{"pattern": _pattern(chance)}, {"not": other}]},
        {"not": {"enum": ["a", "ab", "a.b"]}},
    ]
    demands = [
        (0.6, {"pattern": _pattern(chance, looks=True)}),
        (0.5, {"format": chance.choice([*FORMATS])}),
        (0.25, {"maxLength": chance.choice([3, 20, 100, 500])}),
        (0.15, {"minLength": chance.choice([1, 2, 10, 50])}),
        (0.45, chance.choice(opposites)),
    ]
    schema: Schema = {}
    for share, demand in demands:
        if chance.random() < share:
            schema |= demand
    return schema
