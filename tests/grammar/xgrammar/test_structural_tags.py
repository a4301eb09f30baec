"""Schemas inside structural tags are held to the same rules as schemas of their own."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from guided_plugin import GrammarCompiler, OutputSpec, Vocabulary
from guided_plugin.errors import UnsatisfiableSpecError, UnsupportedSpecError

VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])


@functools.cache
def compiler():
    """One for all tests: each starts helper processes of its own, which import for seconds."""
    return GrammarCompiler(VOCABULARY)


def tag(schema):
    content = {"type": "json_schema", "json_schema": schema}
    tags = [{"type": "tag", "begin": "<call>", "content": content, "end": "</call>"}]
    form = {"type": "triggered_tags", "triggers": ["<call"], "tags": tags}
    return OutputSpec.structural_tag({"format": form}, backend="xgrammar")


def takes(schema, text):
    grammar = compiler().compile(tag(schema))
    matcher = compiler().backend(grammar.backend).start(grammar, (256,))
    return matcher.accept_text(text.encode()) and matcher.complete


@pytest.mark.parametrize("bounds", [{}, {"maxLength": 3}, {"minLength": 1, "maxLength": 3}])
def test_strings_are_json(bounds):
    schema = {"type": "object", "properties": {"a": {"type": "string", **bounds}}, "required": ["a"]}
    assert takes(schema, 'so: <call>{"a":"x"}</call> and <call>{"a":"yz"}</call>')
    for raw in ("\n", "\x01", '"', "\\"):
        assert not takes(schema, f'<call>{{"a":"{raw}"}}</call>')
    if bounds:
        assert not takes(schema, '<call>{"a":"abcd"}</call>')


@pytest.mark.parametrize(
    "schema", [{"not": {}}, {"type": "string", "pattern": "a(?!b)"}, {"type": "array", "uniqueItems": True}]
)
def test_what_would_be_dropped_is_refused(schema):
    with pytest.raises(UnsupportedSpecError):
        compiler().compile(tag({"type": "object", "properties": {"a": schema}}))


def test_only_control_tokens_that_the_tag_names_are_allowed():
    named, other, marker = 257, 258, 259
    control = [b"<|call|>", b"<|other|>", b"[INST]"]
    vocabulary = Vocabulary.from_tokens(
        [*(bytes([byte]) for byte in range(256)), b"</s>", *control], [256], [named, other, marker]
    )
    content = {
        "type": "json_schema",
        "json_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
    }
    tags = [{"type": "tag", "begin": "<|call|>", "content": content, "end": "<|call|>"}]
    spec = OutputSpec.structural_tag(
        {"format": {"type": "triggered_tags", "triggers": ["<|call|>"], "tags": tags}}, backend="xgrammar"
    )
    own = GrammarCompiler(vocabulary)
    grammar = own.compile(spec)
    backend = own.backend(grammar.backend)
    seen = set()
    for count in (1, 2):  # alone, and in a batch
        matchers = [backend.start(grammar, (256,)) for _ in range(count)]
        batch = backend.batch(matchers)
        for token in [*b"so ", named, *b'{"a":"x"}', named, *b"."]:
            mask = np.zeros((count, vocabulary.words), np.int32)
            batch.fill(mask, list(range(count)))
            bits = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
            assert not bits[:, [other, marker]].any()
            seen |= {int(bits[0, named])}
            assert batch.accept([token] * count) == [True] * count
    assert 1 in seen


@pytest.mark.parametrize(
    "defs", [{"a": {"$ref": "#/$defs/a"}}, {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}]
)
def test_a_reference_that_leads_back_to_itself_is_refused(defs):
    with pytest.raises(UnsatisfiableSpecError, match="leads back to itself"):
        compiler().compile(tag({"$ref": "#/$defs/a", "$defs": defs}))


def test_what_allows_nothing_is_not_tried_with_another_backend():
    spec = tag({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})
    with pytest.raises(UnsatisfiableSpecError):
        compiler().compile(replace(spec, backend="auto"))


SPACED = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "b": {},
        "c": {"type": "string", "pattern": "^ {0,9}x$"},
    },
    "required": ["a"],
}
FORMS = [
    {
        "format": {
            "type": "tag",
            "begin": "<a>",
            "content": {"type": "json_schema", "json_schema": SPACED},
            "end": "</a>",
        }
    },
    {"structures": [{"begin": "<a>", "schema": SPACED, "end": "</a>"}], "triggers": ["<a>"]},
]


@pytest.mark.parametrize("form", FORMS, ids=["format", "structures"])
@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
def test_json_is_compact_unless_it_may_have_whitespace(form, whitespace):
    spec = OutputSpec.structural_tag(form, backend="xgrammar", whitespace=whitespace)
    grammar = compiler().compile(spec)

    def takes(text):
        matcher = compiler().backend(grammar.backend).start(grammar, (256,))
        return matcher.accept_text(f"<a>{text}</a>".encode()) and matcher.complete

    for compact in ('{"a":[]}', '{"a":[1,2],"b":{"x":[null,{"y":"z , : "}]},"c":"   x"}'):
        assert takes(compact)
    for spaced in (
        '{ "a":[]}',
        '{"a" :[]}',
        '{"a": []}',
        '{"a":[ ]}',
        '{"a":[]\t}',
        '{"a":[1, 2]}',
        '{"a":[], "b":1}',
        '{"a":[],"b":{"x": 1}}',
        '{"a":[],"b":[1,\n2]}',
    ):
        assert takes(spaced) == (whitespace == "flexible"), spaced
