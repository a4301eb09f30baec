"""Structural tags whose JSON must have distinct items, with the schema of each JSON
text of an output."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distinct_walks import BOOLEAN, UNIQUE, closed
from tag_forms import json_of, tag

from guided_plugin import OutputSpec, Vocabulary

STRINGS = {**UNIQUE, "items": {"type": "string"}}
FLAGS = {**UNIQUE, "items": closed("a", "b", a=BOOLEAN, b={"enum": [1, 2]})}
NUMBERS = {
    "type": "object",
    "properties": {"n": {**UNIQUE, "items": {"type": "integer"}}},
    "required": ["n"],
}
NAMES = {"type": "object", "minProperties": 2, "additionalProperties": BOOLEAN}
FREE = {"type": "array", "items": {"type": "integer"}}

CALL = b"<tool_call>"
END_CALL = b"</tool_call>"
# Tokens in which JSON begins, ends, or ends and begins again.
STRADDLING = (
    b'>["|>["a","|>["a","a"|>["a","a"]<|>[1,|>[1,1|"]<|"]</|]<|]</|a"]<|1]<|,1]<|}]<|2}]<|"b":1}]<|'
    b'}<|]}<|}}|>{"n":[1,1|":[1,1,|"]</s><s>["a","a"|]</f><g>[1,1|"]</s>|<s>[|<f>|true}<|","|"a","|'
    b'},{|":true,"|>[{|>{"|1,1|"a"]|"a"|1]</f>\n<f>[1,|0,|,0]<'
).split(b"|")
VOCABULARY = Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), *STRADDLING, b"</end>", CALL, END_CALL],
    [256 + len(STRADDLING)],
    [256 + len(STRADDLING) + at for at in range(3)],
)


@dataclass(frozen=True)
class Form:
    """A tag, and how to read its outputs."""

    form: dict[str, Any]
    parts: tuple[tuple[str, str, Any], ...]
    """What is before and behind each kind of JSON, and its schema."""
    head: str = ""
    """What is behind this only counts."""


def around(parts: Any) -> list[dict[str, Any]]:
    return [tag(begin, json_of(schema), end) for begin, end, schema in parts]


_TWO = (("<s>", "</s>", STRINGS), ("<f>", "</f>", FLAGS))
_THREE = (
    *_TWO,
    ("<n>", "</n>", NUMBERS),
    ("<o>", "</o>", NAMES),
    ("<x>", "</x>", FREE),
)
_CALLS = (
    ('<c>{"name":"a","arguments":', "}</c>", NUMBERS),
    ('<c>{"name":"ab","arguments":', "}</c>", NAMES),
    ('<c>{"name":"b","arguments":', "}</c>", FREE),
)
_TRIGGERED = {"type": "triggered_tags", "triggers": ["<"], "tags": around(_THREE)}
FORMS = {
    "tag": Form(tag("<s>", json_of(STRINGS), "</s>"), _TWO[:1]),
    "triggered": Form(_TRIGGERED, _THREE),
    "calls": Form(
        {"type": "triggered_tags", "triggers": ["<c>"], "tags": around(_CALLS)}, _CALLS
    ),
    "separated": Form(
        {
            "type": "tags_with_separator",
            "separator": "\n",
            "tags": around(_THREE),
            "at_least_one": True,
        },
        _THREE,
    ),
    "sequence": Form({"type": "sequence", "elements": around(_TWO)}, _TWO),
    "text before": Form(
        {
            "type": "sequence",
            "elements": [
                tag("<think>", {"type": "any_text"}, "</think>"),
                {"type": "regex", "pattern": "[a-c]+"},
                *around(_TWO),
            ],
        },
        _TWO,
        head="</think>",
    ),
    "control tokens": Form(
        {
            "type": "triggered_tags",
            "triggers": [CALL.decode()],
            "tags": around([(CALL.decode(), END_CALL.decode(), STRINGS)]),
        },
        ((CALL.decode(), END_CALL.decode(), STRINGS),),
    ),
}


def spec_of(
    form: dict[str, Any], *, strict: bool = False, whitespace: Any = "compact"
) -> OutputSpec:
    return OutputSpec.structural_tag(
        {"format": form}, strict=strict, whitespace=whitespace
    )


def texts_of(
    form: Form, tokens: list[int], hook: Callable[[Any], Any]
) -> list[tuple[Any, Any]]:
    """The JSON texts of a whole output with their schemas. A begin inside of a string
    is none."""
    plain = b"".join(VOCABULARY.tokens[token] for token in tokens)
    text = plain.decode(errors="replace")
    found = []
    at = text.index(form.head) + len(form.head)
    read = json.JSONDecoder(object_pairs_hook=hook).raw_decode
    while True:
        begins = [
            (text.find(begin, at), -len(begin), end, schema)
            for begin, end, schema in form.parts
        ]
        begins = sorted(
            (begin for begin in begins if begin[0] >= 0), key=lambda begin: begin[:2]
        )
        if not begins:
            return found
        start, length, end, schema = begins[0]
        value, at = read(text, start - length)
        assert text.startswith(end, at), text
        found.append((value, schema))
