"""Patterns are matched against values, and no text that is not UTF-8 gets through."""

from __future__ import annotations

import itertools
import json
import random
import re

import pytest
from xgrammar_specs import accepts

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.xgrammar.patterns import json_pattern, without_surrogates
from guided_plugin.spec import OutputSpec


def string(pattern: str) -> OutputSpec:
    return OutputSpec.json_schema({"type": "string", "pattern": pattern}, backend="xgrammar")


def made_up(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if depth == 0 or kind < 0.3:
        return chance.choice(["a", "b", "[ab]"])
    if kind < 0.5:
        return "".join(made_up(chance, depth - 1) for _ in range(chance.randint(1, 3)))
    if kind < 0.7:
        return f"(?:{made_up(chance, depth - 1)}|{made_up(chance, depth - 1)})"
    count = chance.choice(["*", "+", "?", "{0,2}", "{1,2}", "{2}", "{2,}", "*?"])
    return f"(?:{made_up(chance, depth - 1)}){count}"


WORDS = ["".join(word) for length in range(5) for word in itertools.product("ab", repeat=length)]
AMBIGUOUS = [
    "(?:a|a{0,2})",
    "a(?:a|a{0,2})",
    "(?:b|(?:b){1,3}|(?:b){2}(?:b){1,2})",
    "(?:b(?:b)?|a?|b?)",
    "(?:(?:(?:a){2,})*)*",
    "(?:b(?:a)*|[ab]|(?:[ab]b|b))",
    "(?:ab+)?",
]


@pytest.mark.parametrize(
    "pattern", [*AMBIGUOUS, *(made_up(random.Random(seed), 3) for seed in range(60))], ids=str
)
def test_ambiguous_patterns_match_what_they_should(byte_backend, pattern):
    taken = [word for word in WORDS if accepts(byte_backend, string(f"^{pattern}$"), f'"{word}"')]
    assert taken == [word for word in WORDS if re.fullmatch(pattern, word)]


@pytest.mark.parametrize(
    ("pattern", "is_plain"),
    [
        ("[a-z]{1,100}", True),
        (r"[\s\S]{0,128}", True),
        ("a|a{0,2}", False),
        ("[^x]*abc", False),
        ("é|è", False),
    ],
)
def test_only_patterns_that_match_in_one_way_stay_patterns(pattern, is_plain):
    assert json_pattern(f"^(?:{pattern})$").startswith("^(?:") == is_plain


OVERLONG = [b"\xe0\x80\x80", b"\xe0\x9f\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xc0\x80"]
SURROGATES = [b"\xed\xa0\x80", b"\xed\xbf\xbf"]
BROKEN = [*OVERLONG, *SURROGATES, b"\x80", b"\xf4\x90\x80\x80", b"\xff"]
SCHEMAS = [
    {"type": "string"},
    {},
    {"type": "string", "minLength": 1},
    {"type": "string", "maxLength": 200},
    {"type": "string", "pattern": '^[^"]*$'},
    {"type": "string", "pattern": "^[a\\u0080-\\uffff]+$"},
    {"type": "string", "pattern": "^(?:.|..)$"},
    {"type": "string", "pattern": r"^\S{1,2}$"},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
@pytest.mark.parametrize("strict", [True, False])
def test_strings_are_utf_8(byte_backend, schema, strict):
    spec = OutputSpec.json_schema(schema, backend="xgrammar", strict=strict)
    assert accepts(byte_backend, spec, '"é"')
    for text in BROKEN:
        assert not accepts(byte_backend, spec, b'"%s"' % text)
        assert not accepts(byte_backend, spec, b'"\xc3\xa9%s"' % text)


@pytest.mark.parametrize(
    "spec",
    [
        OutputSpec.regex("[^a]+", backend="xgrammar"),
        OutputSpec.regex(".", backend="xgrammar"),
        OutputSpec.regex("[\x80-\U0010ffff]+", backend="xgrammar"),
        OutputSpec.grammar("root ::= [^a]+", syntax="ebnf", backend="xgrammar"),
    ],
    ids=lambda spec: spec.text,
)
def test_other_specs_hold_no_surrogates(byte_backend, spec):
    assert accepts(byte_backend, spec, "é")
    assert not any(accepts(byte_backend, spec, text) for text in BROKEN)


def test_names_are_utf_8(byte_backend):
    names = {"pattern": '^[^"]+$'}
    for schema in ({"type": "object"}, {"type": "object", "propertyNames": names}):
        spec = OutputSpec.json_schema(schema, backend="xgrammar", strict=False)
        assert accepts(byte_backend, spec, '{"é":1}')
        assert not any(accepts(byte_backend, spec, b'{"%s":1}' % text) for text in BROKEN)


def test_classes_of_a_grammar_leave_quoted_texts_alone():
    source = r'root ::= "[^a]" [^\]a] ["\\] "\"[^b]" [\0-\U0010ffff] [a-\u1234]'
    expected = r'root ::= "[^a]" [^\]a\ud800-\udfff] ["\\] "\"[^b]" [\0-\ud7ff\ue000-\U0010ffff] [a-\u1234]'
    assert without_surrogates(source) == expected


@pytest.mark.parametrize("pattern", ["[]", r"\p{Ahom}", "a(?!b)c", "(", r"(a)\1"])
def test_what_has_no_exact_form_is_refused_with_its_place(byte_backend, pattern):
    with pytest.raises(UnsupportedSpecError, match=r"^#/pattern: "):
        byte_backend.compile(string(pattern))
