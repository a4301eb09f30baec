"""Schemas inside structural tags are held to the same rules as schemas of their own."""

import pytest

from guided_plugin import GrammarCompiler, OutputSpec, Vocabulary
from guided_plugin.errors import UnsupportedSpecError

VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])


def tag(schema):
    content = {"type": "json_schema", "json_schema": schema}
    tags = [{"type": "tag", "begin": "<call>", "content": content, "end": "</call>"}]
    return OutputSpec.structural_tag(
        {"format": {"type": "triggered_tags", "triggers": ["<call"], "tags": tags}}
    )


def takes(schema, text):
    compiler = GrammarCompiler(VOCABULARY)
    grammar = compiler.compile(tag(schema))
    matcher = compiler.backend(grammar.backend).start(grammar, (256,))
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
    "schema", [{"not": {}}, {"type": "string", "pattern": "a(?=b)"}, {"type": "array", "uniqueItems": True}]
)
def test_what_would_be_dropped_is_refused(schema):
    with pytest.raises(UnsupportedSpecError):
        GrammarCompiler(VOCABULARY).compile(tag({"type": "object", "properties": {"a": schema}}))
