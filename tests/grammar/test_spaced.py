"""JSON that is `spaced`: the text of `json.dumps` and no other, for the schemas of two
collections; and requests that leave it to the operator."""

from __future__ import annotations

import json
import tarfile

import pytest
from official_suite import ARCHIVE, DRAFTS, groups
from stopping import Walker, special_vocabulary

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import UNBOUNDED, GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

SAMPLE = ARCHIVE.parents[1] / "maskbench" / "sample.tar.xz"
OTHERS = [
    *(
        {"separators": pair}
        for pair in [
            (",", ":"),
            (", ", ":"),
            (",", ": "),
            (" , ", " : "),
            (",  ", ":  "),
        ]
    ),
    *({"indent": indent} for indent in (0, 2)),
]
"""Layouts that are not `spaced` where a text has a comma or a colon between its
parts."""


def compiler_of(**options):
    config = GuidedConfig(
        threads=1, isolate_compiles=False, **{**vars(UNBOUNDED), **options}
    )
    return GrammarCompiler(
        special_vocabulary(padded=True),
        config=config,
        plugins=Plugins(entry_points=False),
    )


@pytest.fixture(scope="module")
def compiler():
    return compiler_of()


def compiled(compiler, schema, whitespace):
    try:
        return compiler.compile(
            OutputSpec.json_schema(schema, strict=False, whitespace=whitespace)
        )
    except GuidedError as error:
        return str(error)


def dumped(data, **layout):
    return json.dumps(data, ensure_ascii=False, **layout)


def takes(compiler, grammar, text):
    matcher = compiler.backend(grammar.backend).start(
        grammar, compiler.vocabulary.stop_token_ids
    )
    return matcher.accept_text(text.encode()) and matcher.complete


def layouts_of(data):
    """Its texts that are not spaced."""
    return {dumped(data, **other) for other in OTHERS} - {dumped(data)}


@pytest.mark.skipif(
    not ARCHIVE.is_file(), reason="the JSON Schema Test Suite is not in ../shared"
)
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_official_suite(compiler, draft):
    walker = Walker(compiler)
    verdicts = set()
    others = 0
    for group in list(groups(draft))[len(draft) % 4 :: 4]:
        reference, grammar = (
            compiled(compiler, group.schema, form) for form in ("compact", "spaced")
        )
        if isinstance(reference, str):
            assert grammar == reference
            continue
        for compact, valid in group.tests:
            data = json.loads(compact)
            walk = walker.walk(grammar, dumped(data))
            verdict = takes(compiler, reference, compact)
            assert (walk.accepted, walk.early, walk.leaks) == (verdict, [], []), (
                group.name,
                compact,
            )
            assert valid or not walk.accepted, (group.name, compact)
            verdicts.add(walk.accepted)
            for text in layouts_of(data):
                others += 1
                assert not takes(compiler, grammar, text), (group.name, text)
    assert verdicts == {True, False}
    assert others > 50


@pytest.mark.skipif(
    not SAMPLE.is_file(), reason="the sample of MaskBench is not in ../shared/maskbench"
)
def test_real_schemas():
    compiler = compiler_of()
    accepted = refused = 0
    with tarfile.open(SAMPLE) as archive:
        names = sorted(name for name in archive.getnames() if name.endswith(".json"))
        files = [json.load(archive.extractfile(name)) for name in names[::23]]
    for file in files:
        grammar = compiled(compiler, file["schema"], "spaced")
        if isinstance(grammar, str):
            assert isinstance(compiled(compiler, file["schema"], "compact"), str), (
                grammar
            )
            continue
        for test in file["tests"]:
            assert takes(compiler, grammar, dumped(test["data"])) is test["valid"], test
            accepted += test["valid"]
            for text in layouts_of(test["data"]):
                refused += 1
                assert not takes(compiler, grammar, text), text
    assert accepted > 50
    assert refused > 500


def test_any_object():
    compiler = compiler_of(whitespace="spaced")
    grammar = compiler.compile(OutputSpec.json_object())
    assert grammar.spec.whitespace == "spaced"
    for data in (
        {},
        {"a": 1, "b": [1, 2], "c": {}},
        {"a, b": [[], {}, [None, {"x:y": ["\\", '"']}]]},
    ):
        assert takes(compiler, grammar, dumped(data))
        assert [
            text for text in layouts_of(data) if takes(compiler, grammar, text)
        ] == []


@pytest.mark.parametrize("isolate_compiles", [False, True])
def test_a_spec_that_does_not_say_has_what_the_operator_set(isolate_compiles):
    config = GuidedConfig(
        threads=1,
        whitespace="spaced",
        strict=False,
        isolate_compiles=isolate_compiles,
    )
    vocabulary = special_vocabulary(padded=True)
    compiler = GrammarCompiler(
        vocabulary, config=config, plugins=Plugins(entry_points=False)
    )
    values = {"type": "object", "additionalProperties": {"type": "integer"}}
    schema = {
        "type": "object",
        "properties": {f"p{i}": values for i in range(9)},
        "description": "x" * 5_000,
    }
    try:
        for options, settled in [
            ({}, ("spaced", False)),
            ({"whitespace": "compact"}, ("compact", False)),
            ({"strict": True}, ("spaced", True)),
        ]:
            grammar = compiler.compile(OutputSpec.json_schema(schema, **options))
            assert (grammar.spec.whitespace, grammar.spec.strict) == settled
            texts = ['{"p0": {"b": 1, "a": 2}}', '{"p0":{"b":1,"a":2}}']
            assert [takes(compiler, grammar, text) for text in texts] == [
                settled[0] == "spaced",
                settled[0] == "compact",
            ]
            opened = '{"q": 1}' if settled[0] == "spaced" else '{"q":1}'
            assert takes(compiler, grammar, opened) == (not settled[1])
    finally:
        compiler.close()
