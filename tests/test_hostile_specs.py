"""Specs that are made to hurt: each gets an error or a grammar within the limits, and hurts no other."""

import time

import pytest

from guided_plugin import GuidedConfig, OutputSpec, Vocabulary
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.compiler import GrammarCompiler

VOCABULARY = Vocabulary.from_tokens([*(bytes([byte]) for byte in range(256)), b"</s>"], [256])
SECONDS = 4.0
A = {"$ref": "#/$defs/a"}


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def schema(document):
    return lambda: OutputSpec.json_schema(document)


HOSTILE = {
    "nested 90 deep": schema(nested(90)),
    "nested 400 deep": schema(nested(400)),
    "2,000 optional properties": schema(
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(2000)}}
    ),
    "enum of 50,000": schema({"enum": [f"value {i}" for i in range(50_000)]}),
    "enum of 15,000": schema({"enum": [f"value {i}" for i in range(15_000)]}),
    "repetition in a regex": lambda: OutputSpec.regex("((a{1,1000}){1,1000}){1,1000}"),
    "repetition in a regex, smaller": lambda: OutputSpec.regex("((a|b){1,40}c?){1,40}"),
    "repetition in a pattern": schema({"type": "string", "pattern": "^(([a-z]{1,500}){1,500})$"}),
    "repetition in a schema": schema(
        {"type": "array", "minItems": 999_999, "items": {"type": "array", "minItems": 999_999}}
    ),
    "left recursion": lambda: OutputSpec.grammar('root ::= root "a" | "a"'),
    "empty recursion": lambda: OutputSpec.grammar("root ::= a\na ::= b\nb ::= a"),
    "nothing but repetition of nothing": lambda: OutputSpec.grammar('root ::= (("a"?)*)*'),
    "mutual $ref": schema(
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    ),
    "recursion without an end": schema(
        {**A, "$defs": {"a": {"type": "object", "properties": {"a": A}, "required": ["a"]}}}
    ),
    "remote $ref": schema({"$ref": "http://127.0.0.1:9/schema.json"}),
    "$ref to a file": schema({"$ref": "file:///etc/hostname"}),
    "1 MB": schema({"type": "object", "description": "x" * (1 << 20)}),
    "NUL in a key": schema({"type": "object", "properties": {"a\0b": {"const": "\0"}}, "required": ["a\0b"]}),
    "a lone surrogate": schema({"const": "\ud800"}),
    "a lone surrogate in a choice": lambda: OutputSpec.choice(["\udfff"]),
    "invalid UTF-8": lambda: OutputSpec.json_schema(b'{"const": "\xff"}'),
    "a huge integer": schema({"type": "integer", "minimum": 10**400}),
    "a huge float": lambda: OutputSpec.json_schema('{"type": "number", "maximum": 1e999}'),
    "a huge multipleOf": schema({"type": "integer", "multipleOf": 10**40 + 7}),
    "lookahead": lambda: OutputSpec.regex("a(?=b)"),
    "lookbehind": lambda: OutputSpec.regex("(?<=a)b"),
    "a backreference": lambda: OutputSpec.regex(r"(a)\1"),
    "lookaround in a pattern": schema({"type": "string", "pattern": "^a(?!b)c(?<=c)$"}),
    "200 overlapping oneOf": schema(
        {"oneOf": [{"type": "object", "properties": {f"p{i}": {"minimum": i}}} for i in range(200)]}
    ),
    "not, 40 deep": schema(eval("{'not':" * 40 + "{'required': ['a'], 'minProperties': 2}" + "}" * 40)),
}


@pytest.fixture(scope="module")
def compilers():
    made = {}
    yield lambda backend: made.setdefault(
        backend, GrammarCompiler(VOCABULARY, config=GuidedConfig(backend=backend, compile_seconds=SECONDS))
    )
    for compiler in made.values():
        compiler.close()


@pytest.mark.parametrize("backend", ["auto", "xgrammar", "llguidance"])
@pytest.mark.parametrize("name", HOSTILE)
def test_it_gets_an_error_or_a_grammar_in_time(compilers, backend, name):
    compiler = compilers(backend)
    # The helper's own start, with its imports, is no part of the compile.
    compiler.compile(OutputSpec.json_schema({"enum": [f"{backend} {i}" for i in range(1000)]}))
    start = time.monotonic()
    refusal = ""
    try:
        grammar = compiler.compile(HOSTILE[name]())
    except GuidedError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
    else:
        matcher = compiler.backend(grammar.backend).start(grammar, (256,))
        assert not matcher.accept_text(b"\xff")
    # What a helper compiled within the limit is loaded here, which may take as long again.
    assert time.monotonic() - start < 3 * SECONDS + 1
    ordinary = OutputSpec.json_schema({"const": name.replace("\0", "")})
    assert compiler.compile(ordinary).backend in ("llguidance", "xgrammar")


def test_a_remote_reference_is_never_fetched(compilers, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("somebody opened a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    with pytest.raises(GuidedError, match="never fetched"):
        compilers("auto").compile(OutputSpec.json_schema({"$ref": "http://127.0.0.1:9/other.json"}))
