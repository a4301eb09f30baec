"""EBNF grammars in the dialect of llama.cpp."""

import json

import pytest
from xgrammar_specs import accepts

from guided_plugin.errors import UnsupportedSpecError
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
    ],
)
def test_empty_alternatives_and_dots(byte_backend, source, good, bad):
    spec = OutputSpec.grammar(source)
    assert [text for text in good if not accepts(byte_backend, spec, text)] == []
    assert [text for text in bad if accepts(byte_backend, spec, text)] == []


def test_other_grammars_stay_as_they_are():
    source = 'root ::= ("a" | b)* [()|]\n# ( | )\nb ::= "|" "::=" (= "x")'
    assert client_ebnf(source) == source


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ('root ::= "a" Token(256) "b"', "line 1, column 14"),
        ('root ::= "a" x\nx ::= ExcludeToken(97)', "line 2, column 7"),
        ('root ::= TokenTagDispatch((256, y))\ny ::= "q"', "line 1, column 10"),
        ('root ::= TagDispatch(("<x>", y))\ny ::= "q"', "line 1, column 10"),
    ],
)
def test_tokens_are_refused_with_their_place(byte_backend, source, where):
    with pytest.raises(
        UnsupportedSpecError, match="may end the output in the middle"
    ) as caught:
        byte_backend.compile(OutputSpec.grammar(source))
    assert caught.value.where == f"grammar, {where}"


def test_the_name_of_a_token_in_quotes_is_a_text(byte_backend):
    spec = OutputSpec.grammar('root ::= "Token(256)" [T(]')
    assert accepts(byte_backend, spec, "Token(256)T")
