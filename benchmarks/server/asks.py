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
    body: dict[str, Any]
    judge: Judge

    @property
    def guided(self) -> bool:
        """Whether the answer has to be anything in particular."""
        return self.judge is not judges.anything


Make = Callable[[random.Random], Ask]


def completion(kind: str, judge: Judge, *, tokens: int = 200, **more: Any) -> Ask:
    """A completion."""
    body = {
        "model": MODEL,
        "prompt": "It is ",
        "max_tokens": tokens,
        "temperature": 1.0,
        **more,
    }
    return Ask(kind, COMPLETIONS, body, judge)


def chat(kind: str, judge: Judge, *, tokens: int = 200, **more: Any) -> Ask:
    """A chat."""
    messages = [{"role": "user", "content": "Write a record"}]
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": tokens,
        "temperature": 1.0,
        **more,
    }
    return Ask(kind, CHAT, body, judge)


def guided(spec: Any) -> dict[str, Any]:
    """A spec in the plugin's own form."""
    return {"vllm_xargs": {"guided": json.dumps(spec)}}


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 8)))


def _scalar(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(-500, 500)
    length = rng.randint(2, 6)
    choices: list[dict[str, Any]] = [
        {"type": "string", "maxLength": 2 * length},
        {"type": "string", "pattern": f"^[a-f]{{2,{length}}}$"},
        {"type": "string", "minLength": 1, "maxLength": length},
        {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 5000)},
        {"type": "number", "exclusiveMinimum": low, "maximum": low + 100},
        {
            "type": "integer",
            "multipleOf": rng.randint(2, 12),
            "minimum": 0,
            "maximum": 10_000,
        },
        {"type": "boolean"},
        {"type": ["null", "boolean"]},
        {"enum": [_word(rng), rng.randint(0, 99), None]},
        {"const": _word(rng)},
    ]
    return rng.choice(choices)


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    kind = rng.random()
    if depth and kind < 0.15:
        return {
            "type": "array",
            "items": _scalar(rng),
            "minItems": rng.randint(0, 2),
            "maxItems": rng.randint(2, 4),
        }
    if depth and kind < 0.25:
        return {"anyOf": [_scalar(rng), _scalar(rng)]}
    if depth and kind < 0.4:
        return small_object(rng, depth - 1)
    return _scalar(rng)


def small_object(rng: random.Random, depth: int = 1) -> dict[str, Any]:
    """A schema that (nearly) no other request has."""
    names = list({_word(rng) for _ in range(rng.randint(1, 4))})
    made: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(rng, depth) for name in names},
    }
    made["required"] = [name for name in names if rng.random() < 0.7]
    if rng.random() < 0.85:
        made["additionalProperties"] = False
    return made


def small_schema(rng: random.Random) -> Ask:
    """A stream whose first token waits for the compile of a new schema."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {_word(rng) + _word(rng): {"type": "boolean"}},
    }
    schema |= {"required": list(schema["properties"]), "additionalProperties": False}
    return completion(
        "new schema",
        judges.of_schema(schema),
        tokens=60,
        **guided({"json_schema": schema}),
    )


def _plain(rng: random.Random) -> Ask:
    return completion("plain", judges.anything, tokens=rng.randint(20, 200))


def _response_format(rng: random.Random) -> Ask:
    schema = small_object(rng)
    form = {
        "type": "json_schema",
        "json_schema": {"name": "record", "schema": schema, "strict": True},
    }
    return chat("response_format", judges.of_schema(schema), response_format=form)


def _json_object(rng: random.Random) -> Ask:
    return chat(
        "json_object", judges.of_object, response_format={"type": "json_object"}
    )


def _own_form(rng: random.Random) -> Ask:
    schema = small_object(rng)
    return completion(
        "vllm_xargs", judges.of_schema(schema), **guided({"json_schema": schema})
    )


def _regex(rng: random.Random) -> Ask:
    parts = [
        f"[a-f]{{1,{rng.randint(2, 9)}}}",
        "[0-9]+",
        f"({_word(rng)}|{_word(rng)})",
        r"\d{2}-\d{2}",
        "x?",
    ]
    pattern = "".join(rng.choices(parts, k=rng.randint(1, 4))) + _word(rng)
    return completion(
        "regex", judges.of_pattern(pattern), structured_outputs={"regex": pattern}
    )


def _choice(rng: random.Random) -> Ask:
    texts = [_word(rng) for _ in range(rng.randint(1, 5))]
    return completion(
        "choice", judges.of_texts(texts), structured_outputs={"choice": texts}
    )


def _grammar(rng: random.Random) -> Ask:
    one = _word(rng)
    two = _word(rng)
    source = f'root ::= item ("," item){{0,5}}\nitem ::= "{one}" | "{two}" [0-9]'
    pattern = f"({one}|{two}[0-9])(,({one}|{two}[0-9])){{0,5}}"
    return completion(
        "grammar", judges.of_pattern(pattern), structured_outputs={"grammar": source}
    )


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
        wanted = {"type": "function", "function": {"name": next(iter(schemas))}}
    judge = judges.of_calls(schemas, required=choice != "auto")
    return chat(f"tools, {choice}", judge, tokens=300, tools=tools, tool_choice=wanted)


MIXED: tuple[Make, ...] = (
    *(
        _plain,
        _response_format,
        _json_object,
        _own_form,
        _regex,
        _choice,
        _grammar,
        small_schema,
    ),
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
_PEOPLE: dict[str, Any] = {
    "type": "object",
    "properties": {"people": _RECORDS},
    "required": ["people"],
}
_PEOPLE |= {"additionalProperties": False}


def _long_format(rng: random.Random) -> Ask:
    form = {
        "type": "json_schema",
        "json_schema": {"name": "people", "schema": _PEOPLE, "strict": True},
    }
    return chat(
        "long response_format",
        judges.of_schema(_PEOPLE),
        tokens=450,
        response_format=form,
    )


def _long_regex(rng: random.Random) -> Ask:
    pattern = "[a-z ]{120,160}"
    judge = judges.of_pattern(pattern)
    return completion(
        "long regex", judge, tokens=300, structured_outputs={"regex": pattern}
    )


LONG: tuple[Make, ...] = (
    lambda rng: completion("long plain", judges.anything, tokens=250, ignore_eos=True),
    lambda rng: completion(
        "long records",
        judges.of_schema(_RECORDS),
        tokens=450,
        **guided({"json_schema": _RECORDS}),
    ),
    _long_format,
    _long_regex,
)
