"""What ordinary clients ask for, each with the judge of its answers. Depends on judges.

`MIXED` are the requests of the soak: of every form that the server reads, and never the
same schema twice. `LONG` are streams that go on for a while, of a few specs.
`small_schema` is new, and compiles quickly.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Json
from benchmarks.server import judges
from benchmarks.server.judges import Judge
from benchmarks.server.launch import MODEL

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Ask:
    """One request."""

    kind: str
    path: str
    body: Json
    judge: Judge

    @property
    def guided(self) -> bool:
        """Whether the answer has to be anything in particular."""
        return self.judge is not judges.anything


Make = Callable[[random.Random], Ask]


def completion(kind: str, judge: Judge, *, tokens: int = 200, **more: Any) -> Ask:
    """A completion."""
    return _ask(
        kind,
        COMPLETIONS,
        judge,
        tokens,
        {"prompt": "It is ", **more},
    )


def chat(kind: str, judge: Judge, *, tokens: int = 200, **more: Any) -> Ask:
    """A chat."""
    messages = [{"role": "user", "content": "Write a record"}]
    return _ask(
        kind,
        CHAT,
        judge,
        tokens,
        {"messages": messages, **more},
    )


def _ask(kind: str, path: str, judge: Judge, tokens: int, more: Json) -> Ask:
    body = {"model": MODEL, "max_tokens": tokens, "temperature": 1.0, **more}
    return Ask(kind, path, body, judge)


def _format(kind: str, schema: Json, tokens: int = 200) -> Ask:
    """A chat whose answer has to satisfy a schema."""
    own = {"name": "record", "schema": schema, "strict": True}
    form = {"type": "json_schema", "json_schema": own}
    judge = judges.of_schema(schema)
    return chat(kind, judge, tokens=tokens, response_format=form)


def guided(spec: Any) -> Json:
    """A spec in the plugin's own form."""
    return {"vllm_xargs": {"guided": json.dumps(spec)}}


def document(kind: str, schema: Json, tokens: int = 200) -> Ask:
    """A completion that has to satisfy a schema."""
    spec = guided({"json_schema": schema})
    return completion(kind, judges.of_schema(schema), tokens=tokens, **spec)


def _matching(kind: str, pattern: str, tokens: int = 200) -> Ask:
    """A completion that has to match."""
    asked = {"regex": pattern}
    judge = judges.of_pattern(pattern)
    return completion(kind, judge, tokens=tokens, structured_outputs=asked)


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 8)))


def _scalar(rng: random.Random) -> Json:
    low = rng.randint(-500, 500)
    length = rng.randint(2, 6)
    choices: list[Json] = [
        {"type": "string", "minLength": 1, "maxLength": length},
        {"type": "string", "pattern": f"^[a-f]{{2,{length}}}$"},
        {
            "type": "integer",
            "minimum": low,
            "maximum": low + rng.randint(0, 5000),
        },
        {"type": "number", "exclusiveMinimum": low, "maximum": low + 100},
        {"type": "integer", "multipleOf": length, "minimum": 0, "maximum": 10_000},
        {"type": ["null", "boolean"]},
        {
            "enum": [
                _word(rng),
                rng.randint(0, 99),
                None,
            ]
        },
    ]
    return rng.choice(choices)


def _value(rng: random.Random, depth: int) -> Json:
    kind = rng.random() if depth else 1.0
    if kind < 0.15:
        return {"type": "array", "items": _scalar(rng), "minItems": 1, "maxItems": 4}
    if kind < 0.25:
        return {"anyOf": [_scalar(rng), _scalar(rng)]}
    if kind < 0.4:
        return small_object(rng, depth - 1)
    return _scalar(rng)


def small_object(rng: random.Random, depth: int = 1) -> Json:
    """A schema that (nearly) no other request has."""
    names = list({_word(rng) for _ in range(rng.randint(1, 4))})
    return {
        "type": "object",
        "properties": {name: _value(rng, depth) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": rng.random() > 0.85,
    }


def small_schema(rng: random.Random) -> Ask:
    """A stream whose first token waits for the compile of a new schema."""
    name = _word(rng) + _word(rng)
    schema = {
        "type": "object",
        "properties": {name: {"type": "boolean"}},
        "required": [name],
        "additionalProperties": False,
    }
    return document("new schema", schema, 60)


def _plain(rng: random.Random) -> Ask:
    return completion(
        "plain",
        judges.anything,
        tokens=rng.randint(20, 200),
    )


def _response_format(rng: random.Random) -> Ask:
    return _format("response_format", small_object(rng))


def _json_object(rng: random.Random) -> Ask:
    form = {"type": "json_object"}
    return chat("json_object", judges.of_object, response_format=form)


def _own_form(rng: random.Random) -> Ask:
    return document("vllm_xargs", small_object(rng))


def _regex(rng: random.Random) -> Ask:
    parts = [
        f"[a-f]{{1,{rng.randint(2, 9)}}}",
        "[0-9]+",
        r"\d{2}-\d{2}",
        "x?",
    ]
    pattern = "".join(rng.choices(parts, k=rng.randint(1, 4))) + _word(rng)
    return _matching("regex", pattern)


def _choice(rng: random.Random) -> Ask:
    texts = [_word(rng) for _ in range(rng.randint(1, 5))]
    asked = {"choice": texts}
    return completion(
        "choice",
        judges.of_texts(texts),
        structured_outputs=asked,
    )


def _grammar(rng: random.Random) -> Ask:
    one = _word(rng)
    two = _word(rng)
    source = f'root ::= item ("," item){{0,5}}\nitem ::= "{one}" | "{two}" [0-9]'
    judge = judges.of_pattern(f"({one}|{two}[0-9])(,({one}|{two}[0-9])){{0,5}}")
    return completion("grammar", judge, structured_outputs={"grammar": source})


def _tools(rng: random.Random, choice: str) -> Ask:
    schemas = {
        _word(rng): small_object(rng) for _ in range(1 if choice == "named" else 2)
    }
    tools = [
        {
            "type": "function",
            "function": {"name": name, "parameters": schema, "strict": True},
        }
        for name, schema in schemas.items()
    ]
    wanted: Any = choice
    if choice == "named":
        wanted = {
            "type": "function",
            "function": {"name": next(iter(schemas))},
        }
    judge = judges.of_calls(schemas, required=choice != "auto")
    return chat(
        f"tools, {choice}",
        judge,
        tokens=300,
        tools=tools,
        tool_choice=wanted,
    )


MIXED: tuple[Make, ...] = (
    _plain,
    _response_format,
    _json_object,
    _own_form,
    _regex,
    _choice,
    _grammar,
    small_schema,
    lambda rng: _tools(rng, "named"),
    lambda rng: _tools(rng, "required"),
    lambda rng: _tools(rng, "auto"),
)

_RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
_RECORDS = {"type": "array", "minItems": 10, "maxItems": 12, "items": _RECORD}
_PEOPLE = {
    "type": "object",
    "properties": {"people": _RECORDS},
    "required": ["people"],
    "additionalProperties": False,
}


def _long_plain(rng: random.Random) -> Ask:
    return completion("long plain", judges.anything, tokens=250, ignore_eos=True)


LONG: tuple[Make, ...] = (
    _long_plain,
    lambda rng: document("long records", _RECORDS, tokens=450),
    lambda rng: _format("long response_format", _PEOPLE, tokens=450),
    lambda rng: _matching("long regex", "[a-z ]{120,160}", tokens=300),
)
