"""`explain_output`: every kind of spec, texts that break at any character, control
tokens, completions."""

import json
from dataclasses import replace

import jsonschema
import pytest

import guided_plugin as gp
from guided_plugin.diagnose.explain import place_of
from guided_plugin.diagnose.page import stretches
from guided_plugin.diagnose.position import Position, ranges
from guided_plugin.errors import UnsatisfiableSpecError, VocabularyError
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
    assert (found.place.path, found.place.what) == ("#/name", "a comma or }")
    assert found.place.complete == ("#/name",)
    assert found.characters == (",",)
    assert found.tokens[:1] == ("','",)
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


def test_why_a_continuation_is_refused(byte_compiler, person):
    found = gp.explain_output(byte_compiler, person, '{"name":"A"', next_text=',"agee')
    assert found.refused is None
    assert found.next_refused.position == 5
    assert found.next_refused.reason == (
        'refused at character 5: \'{"name":"A","age\' can\'t be followed by \'e\'; expected: "'
    )
    assert gp.explain_output(byte_compiler, person, '{"name":"A"', next_text=',"ag').ok


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
    assert (found.place, found.may_stop) == (None, may_stop)
    whole = completed(byte_compiler, spec, text, found)
    assert whole is None or len(whole) == len(text + ending)


def test_whitespace_that_goes_on_is_noted(byte_compiler):
    flexible = gp.OutputSpec.json_schema(PERSON, whitespace="flexible")
    assert (
        gp.explain_output(byte_compiler, flexible, '{"name":"A"   ').refused.position
        == 13
    )
    found = gp.explain_output(byte_compiler, flexible, '{"name":"A"\n' + " " * 16)
    assert "17 characters of whitespace" in found.notes[0]
    assert "'compact'" in found.notes[0]
    assert not gp.explain_output(byte_compiler, flexible, '{"name":"A"').notes
    spaced = gp.OutputSpec.json_schema(PERSON, whitespace="spaced")
    found = gp.explain_output(byte_compiler, spaced, '{"name":')
    assert (found.forced[:1], found.notes) == (" ", ())
    written = '{"name":' + found.ending.text
    assert json.dumps(json.loads(written)) == written
    assert gp.explain_output(byte_compiler, spaced, '{"name":  ').refused.position == 9
    compact = gp.OutputSpec.json_schema(PERSON, whitespace="compact")
    assert (
        gp.explain_output(byte_compiler, compact, '{"name":"A"  ').refused.position
        == 11
    )


def test_a_number_that_goes_on_is_noted(byte_compiler):
    def notes(text, **bounds):
        spec = gp.OutputSpec.json_schema({"type": "number", **bounds})
        return gp.explain_output(byte_compiler, spec, text).notes

    integer = {"type": "integer"}
    assert (
        "12 digits, and more are allowed: 'minimum' and 'maximum'"
        in notes("6" * 12, **integer)[0]
    )
    assert notes("6" * 11, **integer) == ()
    assert "13 digits" in notes("0." + "3" * 13)[0]
    # What the note says to do bounds them.
    bounded = gp.OutputSpec.json_schema(
        {"type": "integer", "minimum": 0, "maximum": 10**12}
    )
    assert gp.explain_output(byte_compiler, bounded, "6" * 12).characters == ()
    fraction = gp.OutputSpec.json_schema({"type": "number", "multipleOf": 0.01})
    assert not set("123456789") & set(
        gp.explain_output(byte_compiler, fraction, "0.33").characters
    )
    text = gp.OutputSpec.json_schema({"type": "string"})
    assert not gp.explain_output(byte_compiler, text, '"' + "6" * 20).notes


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
    assert "<|call|>" in start.tokens
    assert takes(tag_compiler, spec, start.ending.text)
    found = gp.explain_output(tag_compiler, spec, "<|call|>12")
    assert found.ok
    assert ranges(list(found.characters)) == "0-9 <"
    assert found.ending.text == "</f>"
    first, *_ = stretches(tag_compiler, spec, "<|call|>12</f>")
    assert (first.text, first.forced, first.expected) == (
        "<|call|>",
        False,
        "<, <|call|>",
    )
    other = gp.explain_output(tag_compiler, spec, "<|call|>1<|other|>")
    # the first character also begins the end of the tag
    assert other.refused.position in (9, 10)


def test_a_control_token_in_a_string_is_its_text_or_refused(tag_compiler):
    spec = gp.OutputSpec.json_schema({"type": "string"})
    found = gp.explain_output(tag_compiler, spec, '"<|call|>')
    assert found.ok
    assert "<|call|>" not in found.tokens


def test_a_spec_that_does_not_compile_is_an_error(byte_compiler):
    with pytest.raises(UnsatisfiableSpecError):
        gp.explain_output(byte_compiler, gp.OutputSpec.json_schema(False), "")


def test_a_completion_that_is_not_found_is_told(byte_compiler):
    spec = gp.OutputSpec.grammar("start: /[a-z]{700}/", "lark")
    found = gp.explain_output(byte_compiler, spec, "a")
    assert found.ending.text is None
    assert found.ending.why == "nothing was found"


def test_long_completions_are_found(byte_compiler):
    spec = gp.OutputSpec.json_schema({"type": "string", "minLength": 300})
    found = gp.explain_output(byte_compiler, spec, '"')
    assert takes(byte_compiler, spec, '"' + found.ending.text)
    assert len(found.ending.text) < 330


@pytest.mark.parametrize(
    ("text", "path", "what", "complete"),
    [
        ("", "#", "a value", ()),
        ("{", "#", "a name or }", ()),
        ('{"a', "#", "a name", ()),
        ('{"a\\"b', "#", "a name", ()),
        ('{"a"', "#/a", "a colon", ()),
        ('{"a/~":', "#/a~1~0", "a value", ()),
        ('{"a":"x\\\\', "#/a", "a string", ()),
        ('{"a":"x\\\\"', "#/a", "a comma or }", ("#/a",)),
        ('{"a":1', "#/a", "a number or a word", ()),
        ('{"a":1,', "#", "a name", ("#/a",)),
        ('{"a":[1,2', "#/a/1", "a number or a word", ("#/a/0",)),
        ('{"a":[', "#/a", "a value or ]", ()),
        ('{"a":[[]', "#/a/0", "a comma or ]", ("#/a/0",)),
        ('{"a":[1,2]', "#/a", "a comma or }", ("#/a",)),
        ('{"a": {"b" : true } , "c": ', "#/c", "a value", ("#/a",)),
        ('{"":{}', "#/", "a comma or }", ("#/",)),
        ("[1]", "#", "nothing: the document is complete", ("#",)),
        ("12", "#", "a number or a word", ()),
    ],
)
def test_places_of_documents(text, path, what, complete):
    found = place_of(text)
    assert (found.path, found.what, found.complete) == (path, what, complete)


def test_ranges_of_characters():
    assert ranges([*"0123456789", *"abc", "x", "\\xc3"]) == "0-9 a-c x beyond ASCII"
    assert ranges(["\t", " ", '"', "A", "B"]) == "'\\t' ' ' \" A B"
    assert ranges([]) == "none"


def test_what_is_forced_is_told_where_it_is_asked_for(byte_compiler, person):
    """A text that breaks off, one that is whole, and one that does not fit."""
    encoded = gp.Vocabulary(
        byte_compiler.vocabulary.tokens, byte_compiler.vocabulary.stop_token_ids
    )
    object.__setattr__(encoded, "encode", lambda text: list(text.encode()))
    compiler = gp.GrammarCompiler(encoded, plugins=Plugins(entry_points=False))
    person = replace(person, whitespace="compact")
    assert gp.explain_output(compiler, person, WHOLE).jump is None
    for text, fits in (
        (WHOLE, WHOLE),
        (WHOLE[:20], WHOLE[:20]),
        (WHOLE[:15] + "x", WHOLE[:15]),
    ):
        found = gp.explain_output(compiler, person, text, jump=True).jump
        assert "".join(piece for piece, _ in found.pieces) == fits
        assert found.tokens == len(fits.encode()) + (fits == WHOLE)
        free = [piece for piece, own in found.pieces if own]
        assert free
        # A text that breaks off behind forced ones leaves its last pass without a token
        # of its own.
        broken_off = fits != WHOLE and found.pieces[-1][1]
        assert found.forwards == found.tokens - len("".join(free).encode()) + broken_off
    # forced up to the middle of a character, and broken off
    for text in ("größe 日本🙂", "größe 日本"):
        spec = gp.OutputSpec.choice(["größe 日本🙂", "größe 日本😀"])
        pieces = gp.explain_output(compiler, spec, text, jump=True).jump.pieces
        assert "".join(piece for piece, _ in pieces) == text
    with pytest.raises(VocabularyError, match="encoder"):
        gp.explain_output(byte_compiler, person, WHOLE, jump=True)
