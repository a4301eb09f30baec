"""`explain_output`: every kind of spec, texts that break at any character, control
tokens, completions."""

import json
from dataclasses import replace

import jsonschema
import pytest

import guided_plugin as gp
from guided_plugin.diagnose.position import Position, ranges
from guided_plugin.errors import UnsatisfiableSpecError
from guided_plugin.plugins import Plugins

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 10},
        "tags": {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 2},
    },
    "required": ["name", "age", "tags"],
}
WHOLE = '{"name":"Aé\\"","age":12,"tags":["red","blue"]}'


@pytest.fixture(scope="module")
def byte_compiler(byte_vocabulary, config):
    """One for all tests here: each new one would start a process to compile with
    xgrammar."""
    return gp.GrammarCompiler(
        byte_vocabulary, config=config, plugins=Plugins(entry_points=False)
    )


@pytest.fixture
def person():
    return gp.OutputSpec.json_schema(PERSON)


def takes(compiler, spec, text):
    position = Position.start(compiler, spec)
    return position.move(text) == len(text) and position.may_stop


def completed(compiler, spec, text, found):
    """The text with its completion. None where xgrammar has it, which finds none."""
    if compiler.compile(spec).backend == "xgrammar":
        assert found.ending.why == "xgrammar can't complete outputs"
        return None
    assert takes(compiler, spec, text + found.ending.text)
    return text + found.ending.text


def test_where_an_output_stands(byte_compiler, person):
    flexible = gp.explain_output(byte_compiler, person, '{"name":"A"')
    assert {",", " ", "\n"} < set(flexible.characters)
    assert flexible.forced == ""
    person = replace(person, whitespace="compact")
    found = gp.explain_output(byte_compiler, person, '{"name":"A"')
    assert (found.ok, found.refused, found.may_stop) == (True, None, False)
    assert found.characters == (",",)
    assert found.forced == ',"age":'
    completed(byte_compiler, person, '{"name":"A"', found)
    assert json.loads(json.dumps(found.to_dict()))["characters"] == [","]


@pytest.mark.parametrize("end", [0, 4, 13, 23, 38, len(WHOLE)])
def test_a_completion_of_any_beginning_is_right(byte_compiler, person, end):
    found = gp.explain_output(byte_compiler, person, WHOLE[:end])
    assert found.ok
    whole = completed(byte_compiler, person, WHOLE[:end], found)
    jsonschema.validate(json.loads(whole), PERSON)
    assert found.may_stop == (end == len(WHOLE))


@pytest.mark.parametrize("place", [0, 5, 21, len(WHOLE)])
def test_a_text_that_breaks_at_a_character(byte_compiler, person, place):
    found = gp.explain_output(
        byte_compiler, person, WHOLE[:place] + "\x01" + WHOLE[place:]
    )
    assert not found.ok
    assert (found.refused.position, found.text) == (place, WHOLE[:place])
    assert found.refused.found.startswith("\x01")
    assert f"refused at character {place}" in found.refused.reason
    completed(byte_compiler, person, WHOLE[:place], found)
    if place == len(WHOLE):
        assert "only the end may follow" in found.refused.reason


@pytest.mark.parametrize(
    ("spec", "text", "characters", "may_stop", "ending"),
    [
        (gp.OutputSpec.regex("[a-z]+@[a-z]+\\.com"), "ab", "@ a-z", False, "@a.com"),
        (gp.OutputSpec.regex("[0-9]{2,4}"), "12", "0-9", True, ""),
        (gp.OutputSpec.choice(["yes", "no", "né"]), "n", "o beyond ASCII", False, "o"),
        (
            gp.OutputSpec.grammar('root ::= "(" root ")" | "x"', "ebnf"),
            "((",
            "( x",
            False,
            "x))",
        ),
        (
            gp.OutputSpec.grammar('start: "<" /[a-c]{2}/ ">"', "lark"),
            "<a",
            "a-c",
            False,
            "a>",
        ),
    ],
)
def test_other_kinds(byte_compiler, spec, text, characters, may_stop, ending):
    found = gp.explain_output(byte_compiler, spec, text)
    assert ranges(list(found.characters)) == characters
    assert found.may_stop == may_stop
    whole = completed(byte_compiler, spec, text, found)
    assert whole is None or len(whole) == len(text + ending)


def test_whitespace_is_as_the_spec_has_it(byte_compiler):
    flexible = gp.OutputSpec.json_schema(PERSON, whitespace="flexible")
    assert (
        gp.explain_output(byte_compiler, flexible, '{"name":"A"   ').refused.position
        == 13
    )
    spaced = gp.OutputSpec.json_schema(PERSON, whitespace="spaced")
    found = gp.explain_output(byte_compiler, spaced, '{"name":')
    assert found.forced[:1] == " "
    written = '{"name":' + found.ending.text
    assert json.dumps(json.loads(written)) == written
    assert gp.explain_output(byte_compiler, spaced, '{"name":  ').refused.position == 9
    compact = gp.OutputSpec.json_schema(PERSON, whitespace="compact")
    assert (
        gp.explain_output(byte_compiler, compact, '{"name":"A"  ').refused.position
        == 11
    )


@pytest.fixture
def tag_compiler(config, plugins):
    """Bytes, and two control tokens beside the stop token."""
    tokens = [
        *(bytes([byte]) for byte in range(256)),
        b"<|call|>",
        b"<|other|>",
        b"</s>",
    ]
    vocabulary = gp.Vocabulary.from_tokens(tokens, [258], [256, 257])
    return gp.GrammarCompiler(vocabulary, config=config, plugins=plugins)


def test_control_tokens_of_tags(tag_compiler):
    content = {"type": "json_schema", "json_schema": {"type": "integer"}}
    tag = {"type": "tag", "begin": "<|call|>", "end": "</f>", "content": content}
    spec = gp.OutputSpec.structural_tag({"format": tag})
    start = gp.explain_output(tag_compiler, spec, "")
    assert takes(tag_compiler, spec, start.ending.text)
    found = gp.explain_output(tag_compiler, spec, "<|call|>12")
    assert found.ok
    assert ranges(list(found.characters)) == "0-9 <"
    assert found.ending.text == "</f>"
    other = gp.explain_output(tag_compiler, spec, "<|call|>1<|other|>")
    # the first character also begins the end of the tag
    assert other.refused.position in (9, 10)


def test_a_control_token_in_a_string_is_its_text_or_refused(tag_compiler):
    spec = gp.OutputSpec.json_schema({"type": "string"})
    assert gp.explain_output(tag_compiler, spec, '"<|call|>').ok


def test_a_spec_that_does_not_compile_is_an_error(byte_compiler):
    with pytest.raises(UnsatisfiableSpecError):
        gp.explain_output(byte_compiler, gp.OutputSpec.json_schema(False), "")


def test_a_completion_that_is_not_found_is_told(byte_compiler):
    spec = gp.OutputSpec.grammar("start: /[a-z]{7000}/", "lark")
    found = gp.explain_output(byte_compiler, spec, "a")
    assert found.ending.text is None
    assert found.ending.why == "nothing was found"


def test_long_completions_are_found(byte_compiler):
    spec = gp.OutputSpec.json_schema({"type": "string", "minLength": 300})
    found = gp.explain_output(byte_compiler, spec, '"')
    assert takes(byte_compiler, spec, '"' + found.ending.text)
    assert len(found.ending.text) < 330


def test_ranges_of_characters():
    assert ranges([*"0123456789", *"abc", "x", "\\xc3"]) == "0-9 a-c x beyond ASCII"
    assert ranges(["\t", " ", '"', "A", "B"]) == "'\\t' ' ' \" A B"
    assert ranges([]) == "none"
