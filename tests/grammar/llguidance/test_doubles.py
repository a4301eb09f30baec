"""Every number that a grammar takes is one that a double holds, in all forms, unless
`max_digits` is 0."""

import json
import math
import random
import re
import struct

import pytest
from distinct_walks import walker

from guided_plugin.spec import OutputSpec

COMPILER, WALKS = walker("bytes")
NUMBER = {"type": "number"}
LARGEST = 1.7976931348623157e308

SCHEMAS = [
    *(
        NUMBER,
        True,
        {"type": "object"},
        {"type": "integer"},
        {"not": {"type": "string"}},
    ),
    *({**NUMBER, "minimum": low} for low in (0, 1, 5e-324, -LARGEST, 1e300)),
    *({**NUMBER, "exclusiveMaximum": high} for high in (0, 1, 1e-300, LARGEST, -1e300)),
    *({**NUMBER, "multipleOf": step} for step in (1, 0.001, 7, 0.25, 1e21, 1e300)),
    *(
        {**NUMBER, "not": each}
        for each in ({"multipleOf": 10}, {"multipleOf": 7}, {"type": "integer"})
    ),
    {**NUMBER, "not": {"enum": [5, 1e300]}},
    {"type": "integer", "not": {"multipleOf": 10}},
    {"type": "integer", "minimum": -LARGEST},
    {"enum": [1, LARGEST, 5e-324, [-LARGEST]]},
    {"type": "array", "items": NUMBER, "uniqueItems": True},
    {"type": "array", "contains": {"minimum": 3}},
    {"anyOf": [NUMBER, {"type": "string"}], "maximum": 1e308},
]
OBJECT = {
    "type": "object",
    "properties": {
        "a": NUMBER,
        "b": {"type": "integer"},
        "c": {"type": ["number", "null"]},
    },
    "required": ["a", "b", "c"],
}


def tag(**content):
    return {"format": {"type": "tag", "begin": "<", "content": content, "end": ">"}}


SPECS = [
    *(
        OutputSpec.json_schema(each, strict=strict)
        for each in SCHEMAS
        for strict in (True, False)
    ),
    *(
        OutputSpec.json_schema(NUMBER, max_digits=most)
        for most in (1, 2, 3, 19, 150, 209, 210, 307, 400)
    ),
    OutputSpec.json_schema({**NUMBER, "minimum": 0}, max_digits=400, strict=False),
    OutputSpec.json_object(),
    OutputSpec.grammar(f'start: "<" %json {json.dumps(OBJECT)} ">"', "lark"),
    *(
        OutputSpec.structural_tag(
            tag(type="json_schema", json_schema=OBJECT, style=style)
        )
        for style in (
            "json",
            "qwen_xml",
            "minimax_xml",
            "glm_xml",
            "deepseek_xml",
            "deepseek_v4_1_xml",
        )
    ),
]


def outside_strings(text):
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', text)


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_every_number_is_finite(spec):
    grammar = COMPILER.compile(spec)
    found = []
    for seed in range(8):
        chance = random.Random(seed)
        likely = chance.choice(
            [b"0123456789-", b"eE+-9999", b"e3", b"eE+-.0123456789", b"9"]
        )
        walk = WALKS.wander(grammar, chance, 700, finish=200, likely=likely + b"<>")
        assert not walk.stuck, walk.text
        found += re.findall(
            r"(?<![\w.])-?\d[\d.eE+-]*", outside_strings(walk.text.decode())
        )
    assert [
        each for each in found if not math.isfinite(float(each.rstrip("-+eE.")))
    ] == []
    assert found


def takes(spec, text):
    grammar = COMPILER.compile(spec)
    matcher = COMPILER.backend(grammar.backend).start(
        grammar, COMPILER.vocabulary.stop_token_ids
    )
    return matcher.accept_text(text.encode()) and matcher.complete


NUMBERS = OutputSpec.json_schema({"type": "array", "items": NUMBER})


def test_every_double_below_1e308_may_be_written():
    chance = random.Random(3)
    doubles = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(3000)]
    doubles += [
        0.0,
        -0.0,
        5e-323,
        1e22,
        1e21,
        123456789012345680.0,
        9.999999999999999e307,
        -2.5e-8,
    ]
    texts = [
        json.dumps(each)
        for each in doubles
        if abs(each) < 1e308 and not 0 < abs(each) < 1e-323
    ]
    refused = [text for text in texts if not takes(NUMBERS, f"[{text}]")]
    assert refused == []


@pytest.mark.parametrize(
    "spec", [OutputSpec.json_object(), NUMBERS], ids=["object", "array"]
)
@pytest.mark.parametrize(
    "number",
    ["-8E33333333333333333333", "1e309", "9e308", "10e308", "12e100", "1e-999"],
)
def test_no_exponent_is_beyond_a_double(spec, number):
    text = '{{"a":{}}}' if spec.kind == "json_object" else "[{}]"
    assert takes(spec, text.format("1e5"))
    assert not takes(spec, text.format(number))


def test_without_a_bound_any_number_may_be_written():
    spec = OutputSpec.json_schema(NUMBER, max_digits=0)
    assert takes(spec, "1" * 400)
    assert takes(spec, "-8E33333333333333333333")
