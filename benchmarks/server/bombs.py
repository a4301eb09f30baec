"""Specs made to hurt, as bodies of requests. Depends on asks and the tests' hostile
specs."""

from __future__ import annotations

import contextlib
import functools
import json
from typing import Any

from benchmarks.harness import Json, own_schema
from benchmarks.server import judges
from benchmarks.server.asks import Ask, completion, guided

_BIG = 10 * 2**20
_LEXER = """start: (A|B|C|D)+
A: /.*a.{60}/
B: /.*b.{60}/
C: /.*c.{60}/
D: /.*d.{60}/"""
MASK_BOMBS: list[Json] = [
    {"grammar": "root ::= e\ne ::= e e e | [a-z] e | [a-z]", "syntax": "ebnf"},
    {"grammar": 'root ::= s\ns ::= s s | s s s | "a" s | [a-c]+', "syntax": "ebnf"},
    {"grammar": "root ::= e\ne ::= e e e e | [a-z]", "backend": "xgrammar"},
    {"grammar": "start: e\ne: e e | X\nX: /[a-z]/", "syntax": "lark"},
    {"grammar": _LEXER, "syntax": "lark"},
    {"regex": "[a-z ]*[aeiou][a-z ]{150}"},
    {"regex": "(a|b|ab|ba|aab)*(.*[aeiou].{20}){3}"},
]
"""Small grammars whose masks cost much: lexers and learnt states too."""
SLOW_ROWS: list[Json] = [
    {"regex": r"(.|\n)*[ab](.|\n){300}x"},
    {"regex": "[a-z]*[aeiou][a-z]{200}"},
    {"grammar": 'start: e\ne: e e | "X"', "syntax": "lark"},
]
"""Grammars whose masks cost milliseconds each, all along."""


def ask(form: Json, **more: Any) -> Ask:
    """A request with a hostile spec. Its answer is not judged: no reference reads it in
    bounded time."""
    return completion(
        "bomb",
        judges.anything,
        tokens=200,
        **guided(form),
        **more,
    )


def varied(form: Json, number: int) -> Json:
    """The same with other text for another number, so that nothing remembered serves
    it."""
    if isinstance(form.get("json_schema"), dict):
        return {**form, "json_schema": own_schema(form["json_schema"], number)}
    if "regex" in form:
        return {**form, "regex": f"{form['regex']}|{number}"}
    text = json.dumps(form)
    for begins, own in _BEGINNINGS.items():
        text = text.replace(begins, own.format(number))
    changed: Json = json.loads(text)
    return changed


_BEGINNINGS = {
    "root ::= ": 'root ::= \\"{}\\" | ',
    "start: ": 'start: \\"{}\\"? ',
    "<t>": "<t{}>",
}
"""Of grammars and tags, as JSON has them; and with a number."""


def _deep(levels: int) -> Any:
    inner: Any = {"const": "x" * _BIG}
    for _ in range(levels):
        inner = {"type": "array", "items": inner}
    return inner


def _format(schema: Any) -> Json:
    own = {"type": "json_schema", "json_schema": {"name": "big", "schema": schema}}
    return {"response_format": own}


@functools.cache
def big_bodies() -> list[Ask]:
    """Requests of 10 MB."""
    texts = [f"text {number}" for number in range(_BIG // 16)]
    described = {"type": "null", "description": "x" * _BIG}
    parts = [
        guided({"json_schema": described}),
        guided({"regex": "ab|" * (_BIG // 3)}),
        {"structured_outputs": {"choice": texts}},
        {"structured_outputs": {"json": '{"properties":{"a":' * (_BIG // 19)}},
        _format({"enum": texts}),
        _format(_deep(400)),
    ]
    return [completion("big", judges.anything, **part) for part in parts]


@functools.cache
def hostile_specs() -> list[Json]:
    """Every hostile spec of the tests that can be written down at all."""
    from tests.grammar.test_hostile_specs import CASES

    forms = []
    for case in CASES.values():
        form = case.source if case.kind == "parse" else {case.kind: case.source}
        # Some are no JSON: there is no body to send.
        with contextlib.suppress(RecursionError, TypeError, ValueError):
            json.dumps(form)
            forms.append(form)
    return forms
