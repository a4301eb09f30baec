"""What is given in place of a pattern, a schema or a grammar: a compiled regex, the name of a file."""

import re
from pathlib import Path

import pytest

from guided_plugin import OutputSpec
from guided_plugin.errors import SpecError


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: OutputSpec.regex(re.compile("a", re.I)), "re.Pattern: the flag IGNORECASE"),
        (lambda: OutputSpec.regex(re.compile(b"a")), "is a bytes pattern"),
        (lambda: OutputSpec.json_schema(re.compile("a")), "pass it to OutputSpec.regex"),
        (lambda: OutputSpec.json_schema({"pattern": re.compile("a")}), "the pattern of a compiled regex"),
        (lambda: OutputSpec.json_schema("schemas/user.json"), "not JSON: .*is a file name"),
        (lambda: OutputSpec.json_schema(Path("user.json")), "not PosixPath .this is a file name"),
        (lambda: OutputSpec.parse("user.json"), "must be JSON: .*is a file name"),
        (lambda: OutputSpec.parse(Path("user.json")), "not PosixPath .this is a file name"),
        (lambda: OutputSpec.parse({"json_schema": "user.JSON"}), "is a file name"),
        (lambda: OutputSpec.structural_tag("tag.json"), "is a file name"),
        (lambda: OutputSpec.grammar("c:/my grammars/a.lark", "lark"), "defines no rule: .*is a file name"),
        (lambda: OutputSpec.grammar(Path("a.ebnf")), "not PosixPath .this is a file name"),
    ],
)
def test_what_is_given_instead_is_refused_with_what_to_write(make, says):
    with pytest.raises(SpecError, match=says):
        make()


def test_a_compiled_regex_is_its_pattern():
    spec = OutputSpec.regex("[a-z]+", backend="llguidance")
    assert OutputSpec.regex(re.compile("[a-z]+"), backend="llguidance") == spec
    assert OutputSpec.parse({"regex": re.compile("[a-z]+", re.ASCII)}) == OutputSpec.regex("[a-z]+")


@pytest.mark.parametrize("source", ['root ::= "a.json"', 'root ::= "a"\n# see a.txt', "start: X // a.lark"])
def test_a_grammar_that_mentions_a_file_is_none(source):
    assert OutputSpec.grammar(source).text == source
