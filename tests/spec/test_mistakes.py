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
        (lambda: OutputSpec.regex(re.compile(b"a")), "pattern of bytes"),
        (lambda: OutputSpec.json_schema(re.compile("a")), "pass it to OutputSpec.regex"),
        (lambda: OutputSpec.json_schema({"pattern": re.compile("a")}), "of a compiled regex its pattern"),
        (lambda: OutputSpec.json_schema("schemas/user.json"), "not JSON: .*names a file"),
        (lambda: OutputSpec.json_schema(Path("user.json")), "not PosixPath .this names a file"),
        (lambda: OutputSpec.parse("user.json"), "must be JSON: .*names a file"),
        (lambda: OutputSpec.parse(Path("user.json")), "not PosixPath .this names a file"),
        (lambda: OutputSpec.parse({"json_schema": "user.JSON"}), "names a file"),
        (lambda: OutputSpec.structural_tag("tag.json"), "names a file"),
        (lambda: OutputSpec.grammar("c:/my grammars/a.lark", "lark"), "defines no rule: .*names a file"),
        (lambda: OutputSpec.grammar(Path("a.ebnf")), "not PosixPath .this names a file"),
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
