"""Specs and texts of strangers that were once read wrong, through a whole decode loop
in each mode.

Each text is decoded token by token in three tokenizations, so that one token may close
an object and its array at once. What is right is written down here: it comes from the
JSON Schema standard and the EBNF itself.
"""

from __future__ import annotations

import json
from random import Random

import pytest

import guided_plugin as gp
from guided_plugin.errors import GuidedError, SpecError, UnsupportedSpecError
from guided_plugin.hosts.fake import FakeHost

PIECES = [
    "}]",
    "]}",
    "},{",
    '"},{"',
    '":"',
    '","',
    '"}]',
    "[{",
    '{"',
    "é",
    "ü",
    "École",
    "12",
    "e1",
    "00",
]
TOKENS = [
    *(bytes([byte]) for byte in range(256)),
    *(piece.encode() for piece in PIECES),
    b"</s>",
]
VOCABULARY = gp.Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])

FEATURE = {
    "type": "object",
    "required": ["type", "value"],
    "properties": {"type": {"type": "string"}},
    "oneOf": [
        {"properties": {"type": {"const": "Point"}, "value": {"type": "integer"}}},
        {
            "properties": {
                "type": {"const": "Name"},
                "value": {"type": ["integer", "string"]},
            }
        },
        {"properties": {"type": {"pattern": "^x-"}, "value": {"type": "boolean"}}},
    ],
}
UNIQUE = {
    "type": "array",
    "uniqueItems": True,
    "items": {
        "type": "object",
        "properties": {"foo": {"type": "string"}, "bar": {"type": "string"}},
        "additionalProperties": False,
    },
}
JUDGED = {
    "ebnf latin": (
        {"grammar": 'root ::= "über" | "école"'},
        ["über", "école"],
        ["\ufcber", "uber", "ecole"],
    ),
    "ebnf class": (
        {"grammar": "root ::= [éa-c]"},
        ["é", "a", "c"],
        ["d", "\ufcbe", "9"],
    ),
    "distinct objects": (
        {"json_schema": UNIQUE, "whitespace": "compact"},
        [
            '[{"foo":"bar"},{"foo":"foo"}]',
            '[{"foo":"bar","bar":"foo"},{"foo":"foo","bar":"bar"}]',
            "[{}]",
        ],
        [
            '[{"foo":"bar"},{"foo":"bar"}]',
            "[{},{}]",
            '[{"foo":"bar","bar":"foo"},{"foo":"bar","bar":"foo"}]',
        ],
    ),
    "numbers": (
        {"json_schema": {"type": "number"}},
        ["1", "-0.5", "1e5", "2.5E-3"],
        ["-8E33333333333333333333", "1e400", "9E999"],
    ),
    "numbers anywhere": (
        {"json_schema": {"type": "array"}, "whitespace": "compact"},
        ["[1e5]", '[{"a":-0.5}]'],
        ["[1e400]", '[{"a":-8E33333333333333333333}]'],
    ),
    "one of, told apart": (
        {"json_schema": FEATURE, "whitespace": "compact"},
        [
            '{"type":"Point","value":3}',
            '{"type":"Name","value":3}',
            '{"type":"Name","value":"n"}',
            '{"type":"x-y","value":true}',
        ],
        [
            '{"type":"Point","value":"n"}',
            '{"type":"x-y","value":3}',
            '{"type":"Other","value":3}',
            '{"value":3}',
        ],
    ),
}
REFUSED = {
    "open items": (
        {"json_schema": {"uniqueItems": True}},
        UnsupportedSpecError,
        "uniqueItems",
    ),
    "null": (
        {"json_schema": {"type": "string", "maxLength": None}},
        SpecError,
        "#/maxLength",
    ),
    **{
        f"in a tag: {json.dumps(wrong)}": (
            {
                "structural_tag": {
                    "format": {
                        "type": "json_schema",
                        "json_schema": {"properties": {"a": wrong}, "type": "object"},
                    }
                }
            },
            GuidedError,
            "properties/a",
        )
        for wrong in (
            {"maxLength": None},
            {"maxLength": "5"},
            {"minItems": {}},
            {"pattern": 5},
            {"anyOf": 3},
            {"minimum": float("inf")},
        )
    },
}


def tokenizations(text):
    """Its bytes, the longest tokens from left to right, and tokens merged at random."""
    data = text.encode()
    yield list(data)
    for random in (None, Random(text)):
        tokens = []
        at = 0
        while at < len(data):
            fitting = [
                i for i, token in enumerate(TOKENS[:-1]) if data.startswith(token, at)
            ]
            tokens.append(
                max(fitting, key=lambda i: len(TOKENS[i]))
                if random is None
                else random.choice(fitting)
            )
            at += len(TOKENS[tokens[-1]])
        yield tokens


@pytest.fixture
def compiler(plugins):
    config = gp.GuidedConfig(threads=1, isolate_compiles=False)
    return gp.GrammarCompiler(VOCABULARY, config=config, plugins=plugins)


@pytest.mark.parametrize("name", JUDGED)
def test_a_text_is_taken_just_where_it_is_right(compiler, mode, name):
    form, right, wrong = JUDGED[name]
    spec = gp.OutputSpec.parse(form)
    stop = len(TOKENS) - 1
    scripts = {}
    with FakeHost(compiler, max_rows=6, mode=mode) as host:
        for text in (*right, *wrong):
            for number, tokens in enumerate(tokenizations(text)):
                script = (*tokens, stop)
                scripts[f"{text} {number}"] = (script, text in right)
                host.add_request(
                    f"{text} {number}", spec, script=script, max_new_tokens=len(script)
                )
        found = host.run()
    for request_id, (script, is_right) in scripts.items():
        assert found[request_id].error is None, request_id
        assert (tuple(found[request_id].tokens) == script) is is_right, request_id


@pytest.mark.parametrize("name", REFUSED)
def test_a_spec_is_refused_with_its_place(compiler, name):
    form, kind, place = REFUSED[name]
    with pytest.raises(kind) as raised:
        compiler.compile(gp.OutputSpec.parse(form))
    assert place in raised.value.where
    assert raised.value.hint
