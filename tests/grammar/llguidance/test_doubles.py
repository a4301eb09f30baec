"""Every number that a grammar takes is one that a double holds, in all forms.

Unless `max_digits` is 0: that is in test_lowering_numbers.py.
"""

import json
import math
import random
import re
import struct

import pytest
from compilers import compiler_of, taken_of
from stopping import Walker
from vocabularies import BYTES

from guided_plugin.spec import OutputSpec

COMPILER = compiler_of(BYTES)
WALKS = Walker(COMPILER)
NUMBER = {"type": "number"}
SCHEMAS = json.loads("""[
    true, {"type": "object"}, {"type": "integer"}, {"not": {"type": "string"}},
    {"type": "number"},
    {"type": "number", "minimum": 0},
    {"type": "number", "minimum": 5e-324},
    {"type": "number", "minimum": -1.7976931348623157e308},
    {"type": "number", "exclusiveMaximum": 1},
    {"type": "number", "exclusiveMaximum": 1e-300},
    {"type": "number", "exclusiveMaximum": 1.7976931348623157e308},
    {"type": "number", "multipleOf": 1},
    {"type": "number", "multipleOf": 0.001},
    {"type": "number", "multipleOf": 7},
    {"type": "number", "multipleOf": 1e300},
    {"type": "number", "not": {"multipleOf": 10}},
    {"type": "number", "not": {"type": "integer"}},
    {"type": "number", "not": {"enum": [5, 1e300]}},
    {"type": "integer", "minimum": -1.7976931348623157e308},
    {"enum": [1, 1.7976931348623157e308, 5e-324, [-1.7976931348623157e308]]},
    {"type": "array", "items": {"type": "number"}, "uniqueItems": true},
    {"type": "array", "contains": {"minimum": 3}},
    {"anyOf": [{"type": "number"}, {"type": "string"}], "maximum": 1e308}]""")
OBJECT = {
    "type": "object",
    "properties": {"a": NUMBER, "b": {"type": "integer"}, "c": NUMBER},
    "required": ["a", "b", "c"],
}


def tagged(style):
    content = {"type": "json_schema", "json_schema": OBJECT, "style": style}
    tag = {"type": "tag", "begin": "<", "content": content, "end": ">"}
    return OutputSpec.structural_tag({"format": tag})


SPECS = [
    *(OutputSpec.json_schema(schema) for schema in SCHEMAS),
    *(OutputSpec.json_schema(schema, strict=False) for schema in SCHEMAS[4:]),
    *(OutputSpec.json_schema(NUMBER, max_digits=most) for most in (1, 19, 210, 400)),
    OutputSpec.json_schema({**NUMBER, "minimum": 0}, max_digits=400, strict=False),
    OutputSpec.json_object(),
    *map(tagged, ("json", "qwen_xml", "minimax_xml", "glm_xml", "deepseek_v4_1_xml")),
]
LIKELY = [b"0123456789-", b"eE+-9999", b"e3", b"eE+-.0123456789", b"9"]


@pytest.mark.parametrize("spec", SPECS, ids=range(len(SPECS)))
def test_every_number_is_finite(spec):
    grammar = COMPILER.compile(spec)
    found = []
    for seed in range(8):
        chance = random.Random(seed)
        likely = chance.choice(LIKELY) + b"<>"
        walk = WALKS.wander(grammar, chance, 700, finish=200, likely=likely)
        assert not walk.stuck, walk.text
        outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', walk.text.decode())
        found += re.findall(r"(?<![\w.])-?\d[\d.eE+-]*", outside)
    assert found
    values = [float(text.rstrip("-+eE.")) for text in found]
    assert all(map(math.isfinite, values))


NUMBERS = OutputSpec.json_schema({"type": "array", "items": NUMBER})


def test_every_double_below_1e308_may_be_written():
    chance = random.Random(3)
    doubles = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(3000)]
    doubles += [0.0, -0.0, 5e-323, 1e22, 9.999999999999999e307, -2.5e-8]
    written = [one for one in doubles if one == 0 or 1e-323 <= abs(one) < 1e308]
    texts = [json.dumps([one]) for one in written]
    assert taken_of(COMPILER, NUMBERS, texts) == texts


def test_no_exponent_is_beyond_a_double():
    numbers = ["1e5", "-8E3333333333", "1e309", "9e308", "12e100", "1e-999"]
    for spec, text in ((OutputSpec.json_object(), '{"a":%s}'), (NUMBERS, "[%s]")):
        texts = [text % number for number in numbers]
        assert taken_of(COMPILER, spec, texts) == texts[:1]
