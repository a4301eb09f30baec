"""Regular expressions: their pieces, what no grammar expresses, and patterns quoted for JSON strings."""

import json
import re

import pytest

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.spec.regexes import (
    Construct,
    character,
    control_in_class,
    quoted_pattern,
    refuse_unsupported,
    scan,
    unsupported_construct,
    wide_class,
)


def test_the_pieces_of_a_pattern():
    pattern = r"^(?:a|\x41)[]b]{2,}?(?<n>[^\]*])$"
    pieces = [
        *(("anchor", "^"), ("open", "(?:"), ("atom", "a"), ("branch", "|"), ("escape", r"\x41")),
        *(("close", ")"), ("class", "["), ("end", "]"), ("atom", "b"), ("atom", "]")),
        *(("quantifier", "{2,}"), ("quantifier", "?"), ("open", "(?<n>"), ("class", "["), ("atom", "^")),
        *(("escape", r"\]"), ("atom", "*"), ("end", "]"), ("close", ")"), ("anchor", "$")),
    ]
    assert [(piece.kind, piece.text) for piece in scan(pattern)] == pieces
    assert all(pattern.startswith(piece.text, piece.position) for piece in scan(pattern))


@pytest.mark.parametrize(
    "pattern", ["", "[", "[a\\", "a\\", "(?", "(?<n", "{", "{,2}", r"\u{", r"\p{L", ")]}"]
)
def test_the_pieces_of_a_malformed_pattern_are_its_text(pattern):
    assert "".join(piece.text for piece in scan(pattern)) == pattern


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("a", "a"), (r"\n", "\n"), (r"\a", "\a"), (r"\0", "\0"), (r"\/", "/"), (r"\cj", "\n")),
        *((r"\x41", "A"), (r"\u0041", "A"), (r"\u{1F600}", "😀"), (r"\ud83d\uDE00", "😀")),
        *((r"\d", None), (r"\b", None), (r"\p{L}", None), (r"\1", None)),
        *((r"\x", None), (r"\u", None), (r"\u{110000}", None), (r"\c", None), ("\\", None)),
    ],
)
def test_the_character_that_a_piece_stands_for(text, expected):
    assert character(text) == expected
    assert [piece.text for piece in scan(text)] == [text]


@pytest.mark.parametrize(
    ("pattern", "name", "position"),
    [
        ("ab(?=c)", "lookahead", 2),
        ("(?!a)b", "lookahead", 0),
        ("a(?<=b)", "lookbehind", 1),
        ("(?<!a)b", "lookbehind", 0),
        (r"\bword", "a word boundary", 0),
        (r"a\Bb", "a word boundary", 1),
        (r"(a)\1", "a backreference", 3),
        (r"(?<x>a)\k<x>", "a backreference", 7),
        (r"[\]](?=a)", "lookahead", 4),
        (r"\\\\\b", "a word boundary", 4),
        (r"\b(?=a)", "a word boundary", 0),
    ],
)
def test_the_first_unsupported_construct_is_found(pattern, name, position):
    assert unsupported_construct(pattern) == Construct(name, position)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "(?:a|b)+",
        "(?<name>a)",
        r"\(?=a",
        r"\\b",
        r"[\b]",
        "[(?=]",
        r"[\1]",
        r"\0",
        r"\x31",
        r"\u{31}",
        r"\p{L}\d\w",
        "a\\",
    ],
)
def test_supported_patterns_pass(pattern):
    assert unsupported_construct(pattern) is None
    refuse_unsupported(pattern, "regex")


def test_refusal_says_where():
    with pytest.raises(UnsupportedSpecError) as caught:
        refuse_unsupported("ab(?=c)", "#/properties/a/pattern")
    assert caught.value.where == "#/properties/a/pattern, character 2"
    assert caught.value.what == "lookahead is not supported"
    assert "left to right" in caught.value.hint


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        ("[\n]", 1),
        (r"[a\n]", 2),
        (r"a[^\t]", 3),
        (r"[\x00-\x1f]", 1),
        (r"[\u0007]", 1),
        (r"[\u{9}]", 1),
        (r"[\cJ]", 1),
        (r"[\0]", 1),
        (r"[\a]", 1),
        (r"[\]\r]", 3),
        (r"[\b]", 1),
    ],
)
def test_control_characters_in_classes_are_found(pattern, position):
    assert control_in_class(pattern) == Construct("a control character in [ ]", position)


@pytest.mark.parametrize(
    "pattern", [r"\n", r"a\b", "\t", r"[a-z]\n", r"[\\n]", r"[\x20]", r"[\d\s]", '["]', r"\[\n"]
)
def test_control_characters_elsewhere_are_not(pattern):
    assert control_in_class(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "position"),
    [
        (".", 0),
        ("a.b", 1),
        ("[^a]", 0),
        (r"\S", 0),
        (r"\s", 0),
        (r"\W", 0),
        (r"\D", 0),
        (r"a\p{L}", 1),
        (r"\P{Lu}", 0),
        ("[A-z]", 0),
        ("[a-z][ -~]", 5),
        ('["]', 0),
        (r"[\\]", 0),
        (r"[\s]", 0),
        (r"[+-:]", 0),
    ],
)
def test_classes_that_may_hold_a_quote_are_wide(pattern, position):
    assert wide_class(pattern) == Construct("a class", position)


@pytest.mark.parametrize(
    "pattern", ["abc", "[a-z]+", "[A-Za-z0-9_-]", r"[\d.]{2}", r"\d\w", r"\.", r"[a-z]\\"]
)
def test_plain_classes_are_not(pattern):
    assert wide_class(pattern) is None


# A pattern of a value, and values that it matches and doesn't.
QUOTED = [
    ('a"b', ['a"b'], ["ab", 'a\\"b']),
    (r"\\", ["\\"], ["\\\\", "n"]),
    (r'\\"', ['\\"'], ['"']),
    (r"\n+", ["\n", "\n\n"], ["n", "\\n"]),
    ("a\tb?", ["a\tb", "a\t"], ["atb"]),
    (r"\x22", ['"'], ["x22", "\\"]),
    (r"\u0001{2}", ["\x01\x01"], ["\x01"]),
    (r"(?:\"|\r)x", ['"x', "\rx"], ["x", "rx"]),
    (r"[a-z]\.\x41", ["b.A"], ["bxA", "b.x41"]),
]


@pytest.mark.parametrize(("pattern", "matched", "unmatched"), QUOTED)
def test_a_quoted_pattern_matches_the_text_between_the_quotes(pattern, matched, unmatched):
    quoted = re.compile(quoted_pattern(pattern))
    for value in matched:
        assert re.fullmatch(pattern, value)
        assert quoted.fullmatch(json.dumps(value)[1:-1])
    for value in unmatched:
        assert not re.fullmatch(pattern, value)
        assert not quoted.fullmatch(json.dumps(value)[1:-1])


@pytest.mark.parametrize(
    ("pattern", "quoted"),
    [
        (r"\u{22}", r'(?:\\")'),
        (r"\cJ", r"(?:\\n)"),
        (r"\0", r"(?:\\u0000)"),
        (r"\v", r"(?:\\u000b)"),
        ('["]', '["]'),
        (r"[\n]x", r"[\n]x"),
        (r"\u{110000}", r"\u{110000}"),
        (r"\d\/é\x7f", r"\d\/é\x7f"),
        ("a\\", "a\\"),
    ],
)
def test_only_literals_outside_classes_are_quoted(pattern, quoted):
    assert quoted_pattern(pattern) == quoted
