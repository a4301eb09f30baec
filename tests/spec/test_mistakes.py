"""What is given in place of a pattern, a schema, a grammar, a spec or a config."""

import re
from pathlib import Path

import pytest

import guided_plugin as gp
from guided_plugin import GuidedConfig, OutputSpec
from guided_plugin.compiling.limits import check_limits
from guided_plugin.errors import SpecError


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: OutputSpec.regex(re.compile("a")),
            "must be a string, not Pattern .*its `pattern`",
        ),
        (
            lambda: OutputSpec.json_schema({"pattern": re.compile("a")}),
            "the pattern of a compiled regex",
        ),
        (
            lambda: OutputSpec.json_schema("schemas/user.json"),
            "not JSON: .*not the name of a file",
        ),
        (
            lambda: OutputSpec.json_schema(Path("user.json")),
            "not PosixPath .for example",
        ),
        (
            lambda: OutputSpec.parse("user.json"),
            "is not JSON: .*not the name of a file",
        ),
    ],
)
def test_what_is_given_instead_is_refused_with_what_to_write(make, says):
    with pytest.raises(SpecError, match=says):
        make()


FORM = {"regex": "a"}
NOT_A_SPEC = (
    r"spec: must be an OutputSpec, not \{'regex': 'a'\} \(OutputSpec.parse reads"
)
NOT_A_CONFIG = (
    r"config: must be a GuidedConfig, not dict \(GuidedConfig\(\*\*options\) takes"
)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda made: made.compile(FORM), NOT_A_SPEC),
        (
            lambda made: gp.StepPipeline(made, max_slots=1).add_request("one", FORM),
            NOT_A_SPEC,
        ),
        (lambda made: gp.explain_output(made, FORM, "a"), NOT_A_SPEC),
        (
            lambda made: gp.GrammarCompiler(made.vocabulary, config={"threads": 1}),
            NOT_A_CONFIG,
        ),
        (
            lambda made: gp.shared_compiler(made.vocabulary, {"threads": 1}),
            NOT_A_CONFIG,
        ),
        (
            lambda made: gp.GrammarCompiler(object()),
            "vocabulary: must be a Vocabulary, not object .Vocab",
        ),
    ],
)
def test_what_is_no_spec_and_no_config_is_refused_with_what_to_write(
    compiler, make, says
):
    with pytest.raises(gp.GuidedError, match=says):
        make(compiler)


@pytest.mark.parametrize(
    "source", ['root ::= "a.json"', 'root ::= "a"\n# see a.txt', "start: X // a.lark"]
)
def test_a_grammar_that_mentions_a_file_is_none(source):
    assert OutputSpec.grammar(source).text == source


def test_misspelt_keywords_are_reported_and_others_are_not():
    found = {
        "propertis": {},
        "properties": {"requierd": {"maxLenght": 3}, "a/b": {"items": {"minimun": 1}}},
        "x-note": 1,
        "const": {"maxLenght": 1},
        "_format": "switched off",
        "decription": "an annotation",
        "items": {"maxLenght": 5},
    }
    said = "unknown keyword, ignored (did you mean {!r}?)"
    assert check_limits(OutputSpec.json_schema(found), GuidedConfig()) == [
        "#/propertis: " + said.format("properties"),
        "#/items/maxLenght: " + said.format("maxLength"),  # each word once
        "#/properties/a~1b/items/minimun: " + said.format("minimum"),
    ]
    many = dict.fromkeys(map(str, range(10_000)), 1) | {"allOf": [{"propertis": {}}]}
    # it gives up: a client chooses how many there are
    assert check_limits(OutputSpec.json_schema(many), GuidedConfig()) == []
