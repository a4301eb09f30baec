"""JSON that is `spaced`: the text of `json.dumps` and no other, of any object, and
requests that leave it to the operator.

Of random schemas test_fuzz.py says so too.
"""

import json

import pytest
from compilers import compiler_of, taken_of, takes, unbounded
from stopping import special_vocabulary

from guided_plugin.spec import OutputSpec

VOCABULARY = special_vocabulary(padded=True)


def dumped(data, **layout):
    return json.dumps(data, ensure_ascii=False, **layout)


def layouts_of(data):
    """Its texts that are not spaced."""
    pairs = [(",", ":"), (", ", ":"), (",", ": "), (" , ", " : "), (",  ", ":  ")]
    texts = {dumped(data, separators=pair) for pair in pairs}
    texts |= {dumped(data, indent=indent) for indent in (0, 2)}
    return texts - {dumped(data)}


def test_any_object():
    compiler = unbounded(VOCABULARY, whitespace="spaced")
    grammar = compiler.compile(OutputSpec.json_object())
    nested = {"a, b": [[], {}, [None, {"x:y": ["\\", '"']}]]}
    for data in ({}, {"a": 1, "b": [1, 2], "c": {}}, nested):
        assert takes(compiler, grammar, dumped(data))
        assert taken_of(compiler, grammar, layouts_of(data)) == []


@pytest.mark.parametrize("isolate_compiles", [False, True])
def test_a_spec_that_does_not_say_has_what_the_operator_set(isolate_compiles):
    values = {"type": "object", "additionalProperties": {"type": "integer"}}
    schema = {
        "type": "object",
        "properties": {f"p{i}": values for i in range(9)},
        "description": "x" * 5_000,
    }
    compiler = compiler_of(
        VOCABULARY,
        whitespace="spaced",
        strict=False,
        isolate_compiles=isolate_compiles,
    )
    texts = ['{"p0": {"b": 1}}', '{"p0":{"b":1}}', '{"q": 1}', '{"q":1}']
    try:
        for options, expected in (
            ({}, [texts[0], texts[2]]),
            ({"whitespace": "compact"}, [texts[1], texts[3]]),
            ({"strict": True}, [texts[0]]),
        ):
            spec = OutputSpec.json_schema(schema, **options)
            assert taken_of(compiler, spec, texts) == expected
    finally:
        compiler.close()
