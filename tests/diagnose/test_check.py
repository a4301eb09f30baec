"""`check_spec`: which texts a spec takes, and where it stops taking them."""

import json
import re

import pytest

from guided_plugin.diagnose.check import check_spec, match_text
from guided_plugin.diagnose.position import Position
from guided_plugin.errors import GrammarError, UnsatisfiableSpecError
from guided_plugin.spec import OutputSpec

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "number"}},
    "required": ["name", "age"],
}


def _match(compiler, pattern, text):
    return match_text(Position.start(compiler, OutputSpec.regex(pattern)), "it", text)


def _only(found):
    (instance,) = found.instances
    return instance


@pytest.mark.parametrize(
    ("pattern", "text", "count"),
    [
        ("[a-z]{3}", "abc", 3),
        ("[a-z]{3}", "ab1", 2),
        ("[a-z]{3}", "1bc", 0),
        ("[a-z]{3}", "abcd", 3),
        ("[a-z]{3}", "", 0),
        ("(é|日|🙂)+", "é日🙂é", 4),  # characters, not bytes
        ("(é|日|🙂)+", "é日x", 2),
        ("é+", "éè", 1),  # the two share their first byte
        ("🙂+", "🙂🙃", 1),
        ("[a-z]+", "a\ud800", 1),  # not raised
        *(
            ("é*", "é" * good + "!" + "é" * 300, good)
            for good in (0, 1, 255, 256, 257, 511, 512, 700)
        ),
    ],
)
def test_a_position_moves_as_far_as_a_text_fits(byte_compiler, pattern, text, count):
    assert Position.start(byte_compiler, OutputSpec.regex(pattern)).move(text) == count


@pytest.mark.parametrize(
    ("pattern", "text", "position", "reason"),
    [
        ("aé", "aé", None, "accepted"),
        (
            "éab",
            "éa",
            2,
            "refused at the end (character 2): more is needed; expected: b",
        ),
        ("a", "", 0, "refused at the end (character 0): more is needed; expected: a"),
        (
            "日本[0-9]+",
            "日本12x34",
            4,
            "refused at character 4: '日本12' can't be followed by 'x34'; expected: 0-9 or the end",
        ),
        (
            "[a-z]+",
            "y" + "a" * 100 + "1" * 100,
            101,
            f"refused at character 101: {'a' * 30!r} can't be followed by '1111111111'; "
            "expected: a-z or the end",
        ),
    ],
)
def test_why_a_text_does_not_match(byte_compiler, pattern, text, position, reason):
    found = _match(byte_compiler, pattern, text)
    assert (found.position, found.reason, found.accepted) == (
        position,
        reason,
        position is None,
    )


PEOPLE = OutputSpec.json_schema(PERSON)
SPACES = OutputSpec.regex(" a +")
LINE = OutputSpec.regex("a\\n")
WRITTEN = r"""
{"name": "a : b , c", "age": 1}    {"name":"a : b , c","age":1}
{"name": "\u00e9 \" \\", "age": 1}  {"name":"é \" \\","age":1}
{"name": "", "age": 1.50}          {"name":"","age":1.50}
{"name": "", "age": 1E5}           {"name":"","age":1E5}
{"name": "", "age": 0.10000000000000000001}  {"name":"","age":0.10000000000000000001}
"""


@pytest.mark.parametrize(
    ("spec", "text", "written", "position"),
    [
        *(
            (PEOPLE, *re.split("  +", line), None)
            for line in WRITTEN.strip().splitlines()
        ),
        # A key that comes twice is for the grammar to refuse.
        (PEOPLE, '{"name": "a", "name": 1}', '{"name":"a","name":1}', 13),
        (PEOPLE, '{"name":oops}\n', '{"name":oops}', 8),
        # Of other kinds one line end is the file's, unless the spec takes it.
        (SPACES, " a \n", " a ", None),
        (SPACES, " a \n\n", " a \n", 3),
        (LINE, "a\n", "a\n", None),
        (LINE, "a", "a", 1),
    ],
)
def test_texts_are_matched_in_the_layout_that_is_asked_for(
    byte_compiler, spec, text, written, position
):
    found = _only(check_spec(byte_compiler, spec, [("it", text)]))
    assert (found.text, found.position) == (written, position)
    assert found.accepted == (position is None)


def test_a_refused_spec_is_reported_and_not_raised(byte_compiler):
    found = check_spec(byte_compiler, OutputSpec.json_schema(False), [("1", "1")])
    assert isinstance(found.error, GrammarError)
    assert (found.ok, found.grammar, found.instances) == (False, None, ())
    error = found.to_dict()["error"]
    assert list(error) == ["type", "what", "where", "hint"]
    assert error["type"] == type(found.error).__name__
    assert error["what"] == found.error.what


def test_misspelt_keywords_are_warned_of_even_when_the_spec_is_refused(
    byte_compiler, monkeypatch
):
    schema = {"type": "integer", "minmum": 3}
    structures = [{"begin": "<f>", "schema": schema, "end": "</f>"}]
    tag = {"structures": structures, "triggers": ["<f"]}
    specs = OutputSpec.json_schema(schema), OutputSpec.structural_tag(tag)
    said = "minmum: unknown keyword, ignored (did you mean 'minimum'?)"
    warned = [check_spec(byte_compiler, spec).warnings for spec in specs]
    assert warned == [(f"#/{said}",), (f"#/structures/0/schema/{said}",)]

    def refuse(_):
        raise UnsatisfiableSpecError("no")

    monkeypatch.setattr(byte_compiler, "compile", refuse)
    assert [check_spec(byte_compiler, spec).warnings for spec in specs] == warned


def test_to_dict_has_stable_keys_and_is_json(byte_compiler):
    found = check_spec(
        byte_compiler, OutputSpec.regex("é+"), [("good", "é"), ("bad", "éx")]
    ).to_dict()
    assert list(found) == [
        "ok",
        "spec",
        "backend",
        "reason",
        "compile_ms",
        "bounds",
        "memory_bytes",
        "warnings",
        "error",
        "instances",
        "keywords",
    ]
    assert found["ok"] is False
    assert found["spec"] == {"regex": "é+"}
    assert found["error"] is None
    assert found["instances"] == [
        {
            "name": "good",
            "accepted": True,
            "position": None,
            "reason": "accepted",
            "text": "é",
        },
        {
            "name": "bad",
            "accepted": False,
            "position": 1,
            "reason": "refused at character 1: 'é' can't be followed by 'x'; "
            "expected: beyond ASCII or the end",
            "text": "éx",
        },
    ]
    assert json.loads(json.dumps(found)) == found


OPENED = "; `strict: false` in the spec or GUIDED_PLUGIN accepts it: objects take other names, in any order"
INNER = {"type": "object", "properties": {"o": PERSON, "free": {"type": "object"}}}


@pytest.mark.parametrize("tag", [False, True])
@pytest.mark.parametrize(
    ("text", "hinted"),
    [
        ('{"o": {"name": "", "age": 1, "town": ""}}', True),
        ('{"p": 1}', True),
        ('{"o": {"age": 1, "name": ""}}', True),
        ('{"o": {"name": 1, "age": 1, "town": ""}}', False),
        ('{"o": {"name": ""}}', False),
        ('{"p": 1', False),
        ('{"free": {"any": 1}}', None),
    ],
)
def test_what_fails_for_strict_alone_says_how_to_open_objects(
    byte_compiler, tag, text, hinted
):
    form = {"format": {"type": "json_schema", "json_schema": INNER}}
    make = OutputSpec.structural_tag if tag else OutputSpec.json_schema
    document = form if tag else INNER
    text = text.replace(" ", "")
    found = _only(check_spec(byte_compiler, make(document), [("it", text)]))
    assert found.accepted is (hinted is None)
    assert found.reason.endswith(OPENED) is bool(hinted)
    opened = _only(
        check_spec(byte_compiler, make(document, strict=False), [("it", text)])
    )
    assert opened.accepted is (hinted is not False)
    assert OPENED not in opened.reason
