"""`guided-plugin generate`: every kind of constraint, and what is told when an output
is cut or fails."""

import json
import re
from dataclasses import replace

import jsonschema
import pytest
from command_line import MODEL, PERSON

from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import RequestError
from guided_plugin.hosts.loop import DecodeLoop


def test_generate_with_a_schema(run, write):
    result = run("generate", *MODEL, "--schema", write("s.json", PERSON))
    assert (result.code, result.err.strip()) == (0, "")
    jsonschema.validate(json.loads(result.out), PERSON)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--regex", "[0-9]{3}-x", "[0-9]{3}-x"),
        ("--choice", "left, right", "left|right"),
    ],
)
def test_generate_with_a_regex_or_a_choice(run, option, value, expected):
    result = run("generate", *MODEL, option, value)
    assert (result.code, result.err.strip()) == (0, "")
    assert re.fullmatch(f"(?:{expected})\n", result.out)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("g.ebnf", 'root ::= "<" [a-c]{2,4} ">"'),
        ("g.GBNF", 'root ::= "<" [a-c]{2,4} ">"'),
        ("g.lark", 'start: "<" /[a-c]{2,4}/ ">"'),
    ],
)
def test_generate_with_a_grammar(run, write, name, source):
    result = run("generate", *MODEL, "--grammar", write(name, source))
    assert (result.code, result.err.strip()) == (0, "")
    assert re.fullmatch(r"<[a-c]{2,4}>\n", result.out)


def test_generate_without_a_constraint(run):
    result = run("generate", *MODEL, "--max-new-tokens", "6", "--json")
    assert result.code == 0  # being cut is no failure when nothing was promised
    assert result.json["spec"] is None
    assert result.json["outputs"][0]["tokens"] == 6


def test_generate_json(run):
    result = run("generate", *MODEL, "--regex", "[0-9]{4}", "--n", "3", "--json")
    assert result.code == 0
    found = result.json
    assert list(found) == ["prompt", "spec", "outputs"]
    assert (found["prompt"], found["spec"]) == (MODEL[-1], {"regex": "[0-9]{4}"})
    assert len(found["outputs"]) == 3
    for output in found["outputs"]:
        assert list(output) == ["text", "tokens", "stopped", "error", "closed"]
        assert re.fullmatch("[0-9]{4}", output["text"])
        assert (output["stopped"], output["error"], output["closed"]) == (
            True,
            None,
            "",
        )
        assert 1 <= output["tokens"] <= 4


def test_generate_writes_the_whitespace_that_is_asked_for(run, write, monkeypatch):
    schema = write("s.json", {"const": {"a": [1, 2]}})
    prompt = (
        "generate",
        "--model",
        MODEL_DIR,
        "--prompt",
        "",
        "--json",
        "--schema",
        schema,
    )
    flexible = run(*prompt, "--whitespace", "flexible").json
    assert flexible["spec"]["whitespace"] == "flexible"
    assert json.loads(flexible["outputs"][0]["text"]) == {"a": [1, 2]}
    assert run(*prompt).json["outputs"] == flexible["outputs"]
    assert (
        run(*prompt, "--whitespace", "compact").json["outputs"][0]["text"]
        == '{"a":[1,2]}'
    )
    assert (
        run(*prompt, "--whitespace", "spaced").json["outputs"][0]["text"]
        == '{"a": [1, 2]}'
    )
    monkeypatch.setenv("GUIDED_PLUGIN", '{"whitespace": "spaced"}')
    assert run(*prompt).json["outputs"][0]["text"] == '{"a": [1, 2]}'
    assert (
        run(*prompt, "--whitespace", "compact").json["outputs"][0]["text"]
        == '{"a":[1,2]}'
    )


def test_generate_says_when_outputs_are_cut(run):
    result = run(
        "generate", *MODEL, "--regex", "[a-z]{40}", "--max-new-tokens", "2", "--n", "2"
    )
    assert result.code == 1
    assert len(result.out.splitlines()) == 2  # what there is isn't lost
    hint = "(raise it, or give --close-before-length)\n"
    assert (
        result.err
        == f"error: 2 of 2 outputs reached --max-new-tokens and are incomplete {hint}"
    )
    result = run(
        "generate", *MODEL, "--regex", "[a-z]{40}", "--max-new-tokens", "2", "--json"
    )
    assert (result.code, result.json["outputs"][0]["stopped"]) == (1, False)


def test_generate_closes_outputs_before_their_limit(run):
    options = (
        "--regex",
        "[a-z]{3,}!",
        "--max-new-tokens",
        "6",
        "--close-before-length",
    )
    result = run("generate", *MODEL, *options, "--json", "--n", "2")
    assert result.code == 0
    assert all(
        re.fullmatch("[a-z]{3,}!", output["text"]) for output in result.json["outputs"]
    )
    assert any(output["closed"] == "led" for output in result.json["outputs"])


def test_an_output_that_fails_is_told_after_the_others(run, monkeypatch):

    plain = DecodeLoop.run

    def failing(self, *arguments, **options):
        outputs = plain(self, *arguments, **options)
        return [outputs[0], replace(outputs[1], error=RequestError("went wrong"))]

    monkeypatch.setattr(DecodeLoop, "run", failing)
    result = run("generate", *MODEL, "--regex", "ab", "--n", "2")
    assert (result.code, result.out, result.err) == (
        1,
        "ab\nab\n",
        "error: went wrong\n",
    )


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ("--regex", "a", "--choice", "a,b"),
            ["only one of --schema, --regex, --choice and --grammar"],
        ),
        (("--choice", "a,"), ["--choice", "'a,'"]),
        (("--grammar", "g.txt"), ["g.txt", ".ebnf, .gbnf, .lark"]),
        (("--top-p", "3"), ["--top-p", "not 3.0"]),
    ],
)
def test_wrong_options_are_named(run, arguments, parts):
    run("generate", *MODEL, *arguments).is_error(2, *parts)
