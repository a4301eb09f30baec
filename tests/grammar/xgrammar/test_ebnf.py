"""EBNF grammars in the dialect of llama.cpp."""

import json

import pytest
from xgrammar_specs import accepts

from guided_plugin.errors import GrammarError, UnsupportedSpecError
from guided_plugin.grammar.xgrammar.ebnf import client_ebnf
from guided_plugin.spec import OutputSpec

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space, "quoted" and [in brackets], (also here |
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{ "a": 1}',
        '{"a":[1,2.5e3,{"b":"x\\n\\u00e9"}], "é":null}',
        '{\n  "a":true\n}',
    ],
)
def test_the_grammar_of_json_takes_json(byte_backend, text):
    json.loads(text)
    assert accepts(byte_backend, OutputSpec.grammar(JSON), text)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"a":01}', '{"a":"\\x"}', '{"a\x01":1}', '{"a":1,}', '{  "a":1}'],
)
def test_the_grammar_of_json_takes_nothing_else(byte_backend, text):
    assert not accepts(byte_backend, OutputSpec.grammar(JSON), text)


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ('root ::= "b" x\nx ::= | "a"', ["b", "ba"], ["a"]),
        ('root ::= "b" x\nx ::= "a" |\n', ["b", "ba"], ["a"]),
        ('root ::= "b" x\nx ::= "a" |\ny ::= "c"', ["b", "ba"], ["bc"]),
        ('root ::= "b" x # x\nx ::= "a" | # or nothing', ["b", "ba"], ["a"]),
        ('root ::= ("a" | ) "b"', ["b", "ab"], ["a"]),
        ('root ::= ( | "a") "b"', ["b", "ab"], ["a"]),
        ('root ::= ("a" | | "c") "b"', ["b", "ab", "cb"], ["a"]),
        ("root ::= . .", ["aé", "\n|"], ["a", "abc"]),
        ('root ::= "|" [|()] "(" # | (', ["||(", "|)("], ["|("]),
        # A character before a hexadecimal digit.
        ('root ::= "über" | "école"', ["über", "école"], ["\ufcber", "\u0e9cole"]),
        ("root ::= [éa]", ["é", "a"], ["\u0e9a"]),
        ("root ::= [éa-c]", ["é", "a", "b", "c"], ["d"]),
        ("root ::= [^éa] [ü-ÿ0-9]", ["bü", "ñ9"], ["éü", "añ"]),
        (r'root ::= "\xfcb" [\xe9a]', ["übé", "üba"], ["\u0fcba"]),
        ('root ::= "a" # "[é\nb ::= "é"', ["a"], ["é"]),
        # The name of a token in quotes is a text.
        (r'root ::= "Token(2)\\ud83d" [T(]', ["Token(2)\\ud83dT"], ["Token(2)"]),
        (r'root ::= "Regex(" [\u0041]', ["Regex(A"], ["Regex("]),
    ],
)
def test_what_a_grammar_takes(byte_backend, source, good, bad):
    spec = OutputSpec.grammar(source)
    assert [text for text in good if not accepts(byte_backend, spec, text)] == []
    assert [text for text in bad if accepts(byte_backend, spec, text)] == []


def test_other_grammars_stay_as_they_are():
    source = 'root ::= ("a" | b)* [()|]\n# ( | )\nb ::= "|" "::=" (= "x")'
    assert client_ebnf(source) == source


MIDDLE = "may end the output in the middle"
SURROGATE = r"is not supported: (half of|xgrammar takes)"


@pytest.mark.parametrize(
    ("source", "where", "says"),
    [
        ('root ::= "a" Token(256) "b"', "line 1, column 14", MIDDLE),
        ('root ::= "a" x\nx ::= ExcludeToken(97)', "line 2, column 7", MIDDLE),
        ('root ::= TokenTagDispatch((256, y))\ny ::= "q"', "line 1, column 10", MIDDLE),
        ('root ::= TagDispatch(("<x>", y))\ny ::= "q"', "line 1, column 10", MIDDLE),
        (r'root ::= "a\\\ud83d\ude00"', "line 1, column 10", SURROGATE),
        (r'root ::= [a] "\uDFFF"', "line 1, column 14", SURROGATE),
        (r'root ::= "\U0000dfff"', "line 1, column 10", SURROGATE),
        (r"root ::= [a] [\\b-\udfff]", "line 1, column 14", SURROGATE),
        (r"root ::= [^\ud800-\udfff]", "line 1, column 10", SURROGATE),
        (r'root ::= Regex("[^a]")', "line 1, column 10", SURROGATE),
        (r'root ::= "\xfc" [^\xfc] [b-a]', "line 1, column 26", None),
    ],
)
def test_what_is_refused_has_its_place_in_the_clients_text(
    byte_backend, source, where, says
):
    kind = UnsupportedSpecError if says else GrammarError
    with pytest.raises(kind, match=says) as caught:
        byte_backend.compile(OutputSpec.grammar(source))
    assert caught.value.where == f"grammar, {where}"
