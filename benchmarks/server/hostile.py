"""Specs made to hurt, as bodies of requests.

Each maker gets a number and makes other text for another number, so that nothing
remembered serves it. Depends on asks and the tests' hostile specs.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.server import judges
from benchmarks.server.asks import Ask, completion, guided

Form = dict[str, Any]
Maker = Callable[[int], Form]

BIG = 10 * 2**20


def bomb(form: Form, **more: Any) -> Ask:
    """A request with a hostile spec. Its answer is not judged: no reference reads it in
    bounded time."""
    return completion("bomb", judges.anything, tokens=200, **guided(form), **more)


def _named(number: int, schema: Any) -> Form:
    name = f"bomb{number}"
    return {
        "json_schema": {
            "type": "object",
            "properties": {name: schema},
            "required": [name],
        }
    }


def _laughs(number: int) -> Form:
    links: dict[str, Any] = {
        f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 10}
        for i in range(30)
    }
    return {
        "json_schema": {
            "$ref": "#/$defs/d0",
            "$defs": {**links, "d30": {"const": number}},
        }
    }


def _unions(number: int) -> Any:
    return {
        "allOf": [
            {
                "anyOf": [
                    {"properties": {f"{name}{i}": {"type": kind}}}
                    for name, kind in _KINDS
                ]
            }
            for i in range(20)
        ]
    }


_KINDS = (("a", "null"), ("b", "string"))

COMPILE_BOMBS: tuple[Maker, ...] = (
    lambda number: _named(number, _unions(number)),
    _laughs,
    lambda number: _named(
        number, {"allOf": [_searching(i, number) for i in range(30)]}
    ),
    lambda number: {"regex": f"((ab?){{0,900}}c){{0,{900 - number % 90}}}{number}"},
    lambda number: {"regex": f"(a|b)*a(a|b){{{200 + number % 50}}}c.*{number}"},
    lambda number: _named(
        number, {"type": "string", "pattern": "^((ab?){0,200}c){0,200}$"}
    ),
    lambda number: _named(
        number, {"type": "array", "items": {"type": "null"}, "minItems": 100_000}
    ),
    lambda number: _named(
        number,
        {
            "type": "object",
            "properties": {f"p{i}": {"type": "integer"} for i in range(4_000)},
        },
    ),
    lambda number: {
        "json_schema": {"enum": [f"value {number} {i}" for i in range(19_000)]}
    },
    lambda number: {
        "grammar": f'root ::= ((("a"{{0,1000}} "b"){{0,1000}} "c"){{0,1000}}) "{number}"'
    },
    lambda number: _named(
        number, {"type": "array", "uniqueItems": True, "items": {"type": "string"}}
    ),
)


def _searching(i: int, number: int) -> Form:
    return {"type": "string", "pattern": f"a{{{i + 1}}}.*b{number}"}


_WORDS = {"type": "grammar", "grammar": "root ::= w\nw ::= w w w | w w | [a-z ]+"}
_TAG = {"type": "tag", "begin": "<t>", "content": _WORDS, "end": "</t>"}
_SLOW_ROWS: tuple[Form, ...] = (
    {"regex": r"(.|\n)*[ab](.|\n){300}x"},
    {"regex": "[a-z]*[aeiou][a-z]{200}"},
    {"grammar": 'start: e\ne: e e | "X"', "syntax": "lark"},
)
_MASK_BOMBS: tuple[Form, ...] = (
    {"grammar": "root ::= e\ne ::= e e e | [a-z] e | [a-z]", "syntax": "ebnf"},
    {
        "grammar": 'root ::= s\ns ::= s s | s s s | "a" s | "b" | [a-c]+',
        "syntax": "ebnf",
    },
    {
        "grammar": "root ::= e\ne ::= e e e e | [a-z]",
        "syntax": "ebnf",
        "backend": "xgrammar",
    },
    {"grammar": "start: e\ne: e e | X\nX: /[a-z]/", "syntax": "lark"},
    {
        "grammar": "start: (A|B|C|D)+\n"
        + "\n".join(
            f"{n}: /.*{c}.{{60}}/" for n, c in zip("ABCD", "abcd", strict=True)
        ),
        "syntax": "lark",
    },
    {"regex": "[a-z ]*[aeiou][a-z ]{150}"},
    {"regex": "(a|b|ab|ba|aab)*(.*[aeiou].{20}){3}"},
    {"structural_tag": {"type": "structural_tag", "format": _TAG}},
)


def mask_bombs() -> list[Maker]:
    """Small grammars whose masks cost much: lexers and learnt states too."""
    return list(map(_varied, _MASK_BOMBS))


def slow_rows() -> list[Maker]:
    """Grammars whose masks cost milliseconds each, all along."""
    return list(map(_varied, _SLOW_ROWS))


def lexer_bombs() -> list[Maker]:
    """Whose lexers have many states."""

    def lark(number: int) -> Form:
        lines = [
            f"{name}: /.*{letter}.{{{40 + number % 40}}}/"
            for name, letter in zip("ABCD", "abcd", strict=True)
        ]
        return {"grammar": "\n".join(["start: (A|B|C|D)+", *lines]), "syntax": "lark"}

    return [
        lark,
        lambda number: {"regex": f"[a-z ]*[aeiou][a-z ]{{{100 + number % 100}}}"},
        lambda number: {"regex": f"(.*[aeiou].{{{10 + number % 30}}}){{3}}"},
        lambda number: _named(
            number, {"type": "string", "pattern": f"[ab].{{{50 + number % 50}}}[cd]"}
        ),
    ]


def _varied(form: Form) -> Maker:
    def make(number: int) -> Form:
        made = dict(form)
        if "regex" in made:
            made["regex"] = f"(?:{made['regex']}){number}?"
        elif "structural_tag" in made:
            text = json.dumps(made["structural_tag"])
            made["structural_tag"] = json.loads(text.replace("<t>", f"<t{number}>"))
        elif made["syntax"] == "ebnf":
            made["grammar"] = made["grammar"].replace("[a-", f'"{number}" | [a-', 1)
        else:
            made["grammar"] = made["grammar"].replace(
                "start: ", f'start: "{number}"? ', 1
            )
        return made

    return make


_BIG_BODIES: tuple[Callable[[int], dict[str, Any]], ...] = (
    lambda number: guided(
        {"json_schema": {"type": "null", "description": str(number) + "x" * BIG}}
    ),
    lambda number: guided({"regex": "ab|" * (BIG // 3) + str(number)}),
    lambda number: {
        "structured_outputs": {"choice": [f"{number} {i}" for i in range(BIG // 16)]}
    },
    lambda number: {
        "structured_outputs": {"json": '{"properties":{"a":' * (BIG // 19)}
    },
    lambda number: {
        "response_format": _format(
            {"enum": [f"{number} {i}" for i in range(BIG // 16)]}
        )
    },
    lambda number: {"response_format": _format(_deep(400))},
)


def _format(schema: Any) -> Form:
    return {"type": "json_schema", "json_schema": {"name": "big", "schema": schema}}


def _deep(levels: int) -> Any:
    inner: Any = {"const": "x" * BIG}
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


@functools.cache
def big_bodies() -> list[bytes]:
    """Bodies of 10 MB."""
    asked = (
        completion("big", judges.anything, **make(number))
        for number, make in enumerate(_BIG_BODIES)
    )
    return [json.dumps(ask.body).encode() for ask in asked]


MIB = 1 << 20
NUMBER = b"123454321"
"""What another number takes the place of in a body, so that no two are the same."""


def _mib_bodies(
    wrap: Callable[[Any], dict[str, Any]], schemas: Sequence[Any]
) -> list[bytes]:
    asked = (completion("big", judges.anything, **wrap(schema)) for schema in schemas)
    return [json.dumps(ask.body, separators=(",", ":")).encode() for ask in asked]


def _many_nodes() -> list[Any]:
    """Schemas of 240,000 values, over `max_nodes`."""
    values = [{}, [], 1, "a"] * 60_000
    return [
        {"enum": [int(NUMBER), *values]},
        {"const": {"a": int(NUMBER), "b": values}},
    ]


def _long_texts() -> list[Any]:
    """Schemas of a mebibyte, of few values and long texts."""
    number = NUMBER.decode()
    length = 50
    return [
        {"enum": [f"{number}{i:0{length}}" for i in range(MIB // (length + 14))]},
        {
            "type": "object",
            "properties": {
                f"{number}{i:0{length}}": {"type": "null"} for i in range(10_000)
            },
        },
        {
            "type": "object",
            "properties": {
                number: {"type": "integer", "description": "x" * (MIB - 200)}
            },
        },
        {"const": number + "x" * (MIB - 200)},
    ]


MIB_BODIES: dict[str, Callable[[], list[bytes]]] = {
    "many-nodes": lambda: [
        *_mib_bodies(
            lambda schema: {"response_format": _format(schema)}, _many_nodes()
        ),
        *_mib_bodies(lambda schema: guided({"json_schema": schema}), _many_nodes()),
    ],
    "long-texts": lambda: [
        *_mib_bodies(
            lambda schema: {"response_format": _format(schema)}, _long_texts()
        ),
        *_mib_bodies(lambda schema: guided({"json_schema": schema}), _long_texts()),
    ],
    "ignored-nodes": lambda: _mib_bodies(
        lambda schema: {"no_field": schema, "max_tokens": 1}, _many_nodes()
    ),
    "ignored-texts": lambda: _mib_bodies(
        lambda schema: {"no_field": schema, "max_tokens": 1}, _long_texts()
    ),
}
"""Bodies of a mebibyte by attack: those of guided requests, and those that hold the
same in a field that nothing reads. These show what the server itself takes to read
them."""


@functools.cache
def mib_bodies(name: str) -> list[bytes]:
    """Those of one attack."""
    return MIB_BODIES[name]()


@functools.cache
def suite() -> list[Form]:
    """Every hostile spec of the tests that can be written down at all."""
    from tests.grammar.test_hostile_specs import CASES

    forms = []
    for case in CASES.values():
        # Some are refused when made: there is no spec to send.
        with contextlib.suppress(Exception):
            forms.append(case.make().to_dict())
    return forms


PREPARED: dict[str, Callable[[], Any]] = {
    "mask-bombs": mask_bombs,
    "big-bodies": big_bodies,
    "suite": suite,
    **{name: functools.partial(mib_bodies, name) for name in MIB_BODIES},
}
"""What takes seconds to make, by attack."""
