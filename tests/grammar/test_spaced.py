"""JSON that is `spaced`: the text of `json.dumps` and no other, for real schemas; and
requests that leave it to the operator.

Of random schemas test_fuzz.py says so too.
"""

from __future__ import annotations

import json
import tarfile

import pytest
from compilers import compiler_of, taken_of, takes, unbounded
from official_suite import ARCHIVE
from stopping import special_vocabulary

from guided_plugin.errors import GuidedError
from guided_plugin.spec import OutputSpec

SAMPLE = ARCHIVE.parents[1] / "maskbench" / "sample.tar.xz"
VOCABULARY = special_vocabulary(padded=True)


def dumped(data, **layout):
    return json.dumps(data, ensure_ascii=False, **layout)


def layouts_of(data):
    """Its texts that are not spaced."""
    pairs = [(",", ":"), (", ", ":"), (",", ": "), (" , ", " : "), (",  ", ":  ")]
    texts = {dumped(data, separators=pair) for pair in pairs}
    texts |= {dumped(data, indent=indent) for indent in (0, 2)}
    return texts - {dumped(data)}


@pytest.mark.skipif(
    not SAMPLE.is_file(), reason="the sample of MaskBench is not in ../shared/maskbench"
)
def test_real_schemas():
    compiler = unbounded(VOCABULARY, whitespace="spaced", strict=False)
    accepted = refused = 0
    with tarfile.open(SAMPLE) as archive:
        names = sorted(name for name in archive.getnames() if name.endswith(".json"))
        files = [json.load(archive.extractfile(name)) for name in names[::23]]
    for file in files:
        try:
            grammar = compiler.compile(OutputSpec.json_schema(file["schema"]))
        except GuidedError:
            continue
        for test in file["tests"]:
            data = test["data"]
            assert takes(compiler, grammar, dumped(data)) is test["valid"], test
            others = layouts_of(data)
            assert taken_of(compiler, grammar, others) == []
            accepted += test["valid"]
            refused += len(others)
    assert accepted > 50
    assert refused > 500


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
