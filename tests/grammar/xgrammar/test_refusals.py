"""What the xgrammar backend refuses instead of ignoring it."""

from __future__ import annotations

from typing import Any

import pytest
from xgrammar_specs import LEGACY_CALL, _config, accepts

from guided_plugin.errors import CompileLimitError, GrammarError, UnsatisfiableSpecError, UnsupportedSpecError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec


def nested(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a/b": {"type": "array", "items": schema}}}


class TestRefusals:
    @pytest.mark.parametrize("bound", ["minLength", "maxLength"])
    def test_pattern_next_to_a_length(self, byte_backend, bound):
        schema = nested({"type": "string", "pattern": "^a+$", bound: 3})
        with pytest.raises(UnsupportedSpecError) as caught:
            byte_backend.compile(OutputSpec.json_schema(schema))
        assert caught.value.where == "#/properties/a~1b/items/pattern"
        assert f"`{bound}`" in caught.value.what
        assert caught.value.hint

    @pytest.mark.parametrize(
        ("pattern", "name"),
        [
            ("^(?!a)[a-z]$", "lookahead"),
            ("a(?!b)[a-z]", "lookahead"),
            ("(?<=a)b", "a lookbehind"),
            (r"\bword", "a word boundary"),
            (r"(a)\1", "a backreference"),
            ("(?i)a", "flags"),
            (r"\p{Emoji}", r"\p{Emoji}"),
            ("[]", "no text"),
        ],
    )
    def test_constructs_that_it_does_not_take(self, byte_backend, pattern, name):
        specs = {
            "#/properties/a~1b/items/pattern": OutputSpec.json_schema(
                nested({"type": "string", "pattern": pattern})
            ),
            "regex": OutputSpec.regex(pattern),
        }
        for where, spec in specs.items():
            with pytest.raises(UnsupportedSpecError) as caught:
                byte_backend.compile(spec)
            assert caught.value.where == where
            assert name in caught.value.what
            assert caught.value.hint

    def test_the_character_of_a_construct_is_told(self, byte_backend):
        with pytest.raises(GrammarError, match="at position 12 of"):
            byte_backend.compile(OutputSpec.regex(r"[\b(?=]\(?ab(?<!c)"))

    def test_a_property_that_is_called_pattern_is_no_pattern(self, byte_backend):
        schema = {"type": "object", "properties": {"pattern": {"enum": ["(?=a)"]}, "maxLength": {"const": 1}}}
        assert accepts(byte_backend, OutputSpec.json_schema(schema), '{"pattern":"(?=a)","maxLength":1}')

    @pytest.mark.parametrize(
        "spec",
        [
            OutputSpec.json_schema({"$ref": "#"}),
            OutputSpec.json_schema({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
            OutputSpec.grammar("root ::= root"),
        ],
        ids=["$ref to itself", "circle of $ref", "left recursion without end"],
    )
    def test_what_allows_nothing(self, byte_backend, spec):
        with pytest.raises(UnsatisfiableSpecError, match=r"allows no output at all.* \((look for|say what)"):
            byte_backend.compile(spec)

    def test_what_is_nested_too_deep_to_be_rewritten(self, byte_backend):
        deep: Any = {"type": "null"}
        for _ in range(600):
            deep = {"type": "array", "items": deep}
        spec = OutputSpec.json_schema({"$ref": "#/$defs/a", "minItems": 1, "$defs": {"a": deep}})
        with pytest.raises(CompileLimitError, match=r"^json_schema: is nested too deep for xgrammar"):
            byte_backend.compile(spec)

    def test_what_the_vocabulary_cannot_begin_to_spell(self):
        backend = XGrammarBackend(Vocabulary.from_tokens([b"a", b"</s>"], [1]), _config())
        with pytest.raises(UnsatisfiableSpecError, match=r"^choice: "):
            backend.compile(OutputSpec.choice(["b"]))

    @pytest.mark.parametrize(
        ("spec", "says"),
        [
            (OutputSpec.regex("a("), "without its"),
            (OutputSpec.regex("a{3,1}"), "the wrong way round"),
            (OutputSpec.regex("a++"), "possessive"),
            (OutputSpec.regex(r"\p{Lx}"), "an unknown property"),
            (OutputSpec.grammar('root ::= "a" missing'), '"missing" is not defined'),
            (OutputSpec.grammar('main ::= "a"'), '"root" is not found'),
            (OutputSpec.grammar("start: missing", syntax="lark"), "unknown name 'missing'"),
            (OutputSpec.json_schema(False), "cannot accept any value"),
            (OutputSpec.structural_tag({"format": {"type": "nope"}}), "Format type not recognized: nope"),
            (
                OutputSpec.structural_tag({**LEGACY_CALL, "triggers": ["<other"]}),
                "does not match any trigger",
            ),
            (OutputSpec.structural_tag({"structures": LEGACY_CALL["structures"]}), "must have `triggers`"),
            (OutputSpec.structural_tag({"structures": [1], "triggers": ["<"]}), "must have `triggers`"),
        ],
        ids=lambda value: value.text[:30] if isinstance(value, OutputSpec) else "",
    )
    def test_errors_are_one_line_for_a_person(self, byte_backend, spec, says):
        with pytest.raises(GrammarError) as caught:
            byte_backend.compile(spec)
        message = str(caught.value)
        assert message.startswith(("#", spec.kind))
        assert says in message
        for unwanted in ("\n", ".cc", "std::", "Check failed"):
            assert unwanted not in message
