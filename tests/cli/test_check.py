"""`guided-plugin check`: every form of a spec, verdicts on instances, and refusals."""

import json
import re
import sys

import pytest
import yaml
from command_line import PERSON
from script_files import ROOT


def test_check_ok(run, write, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    result = run(
        "check",
        write("s.json", PERSON),
        "--instance",
        write("i", '{"name":"é","on":true}'),
    )
    assert result.code == 0
    assert "compiling" in result.err
    assert "100%" in result.err
    assert re.search(
        r"^compiles with llguidance in \d+\.\d ms, \d+\.\d KiB$", result.out, re.M
    )
    assert "accepted" in result.out
    assert "warning" not in result.out


def test_check_shows_every_verdict(run, write):
    bad = write("[bad]", '{"name":"é","on":1}')
    result = run("check", write("s.json", PERSON), "--instance", bad)
    assert result.code == 1
    assert "refused at character 17" in result.out
    assert "[bad]" in result.out  # brackets are no markup


def test_check_takes_pretty_printed_json(run, write, monkeypatch):
    pretty = write("i", json.dumps({"name": "b", "on": False}, indent=2) + "\n")
    arguments = ("check", write("s.json", PERSON), "--instance", pretty, "--json")
    assert run(*arguments).code == 0
    dumped = write("d", json.dumps({"name": "b", "on": False}))
    monkeypatch.setenv("GUIDED_PLUGIN", '{"whitespace": "spaced"}')
    assert run(*arguments).json["instances"][0]["text"] == dumped.read_text()


def test_check_reads_standard_input(run, write, standard_input):
    standard_input(json.dumps({"type": "integer", "minimun": 1}).encode())
    result = run("check", "-")
    assert (result.code, "minimun" in result.out) == (0, True)
    standard_input(b"12\r\n")
    found = run(
        "check",
        write("s.json", {"type": "integer"}),
        "--instance",
        "-",
        "--json",
    )
    assert (found.code, found.json["instances"][0]["name"]) == (0, "standard input")


@pytest.mark.parametrize(
    ("content", "code", "parts"),
    [
        (b"{", 1, ["standard input: line 1, column 2", "is not JSON"]),
        (b"\xff", 2, ["standard input: is not UTF-8 text (byte 0)"]),
        (b'{"type": "intger"}', 1, ["standard input: #/type"]),
    ],
)
def test_bad_standard_input_is_named(run, standard_input, content, code, parts):
    standard_input(content)
    run("check", "-").is_error(code, *parts)
    twice = run("check", "-", "--instance", "-")
    twice.is_error(2, "standard input: is given twice")


def test_open_objects_allow_other_properties(run, write, monkeypatch):
    extra = write("i", '{"name":"b","on":true,"more":1}')
    arguments = ("check", write("s.json", PERSON), "--instance", extra)
    assert run(*arguments).code == 1
    monkeypatch.setenv("GUIDED_PLUGIN", '{"strict": false}')
    assert run(*arguments).code == 0


def test_check_close_warns_where_outputs_may_be_cut_all_the_same(run, write):
    arguments = ("check", write("g.ebnf", 'root ::= "a"'))
    assert "warning" not in run(*arguments).out
    result = run(*arguments, "--close")
    assert result.code == 0
    told = "warning: unprotected: with xgrammar no end of its outputs is known\n"
    assert told in result.out
    assert result.err == ""
    assert "warning" not in run("check", write("s.json", PERSON), "--close").out


@pytest.mark.parametrize(
    ("name", "content", "instance"),
    [
        (
            "s.json",
            {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"type": "integer"}},
            },
            "12",
        ),
        ("s.json", {"regex": "[0-9]+"}, "12\n"),
        ("s.json", True, "[12]"),
        ("s.json", b'\xef\xbb\xbf{"type": "integer"}', "12"),  # a byte order mark
        ("s.lark", "start: /[0-9]+/", "12"),
        ("s.ebnf", "root ::= [0-9]+", "12"),
        ("s.gbnf", "root ::= [0-9]+", "12"),
    ],
)
def test_check_takes_every_form(run, write, name, content, instance):
    spec = write(name, content)
    assert run("check", spec, "--instance", write("good", instance)).code == 0
    assert run("check", spec, "--instance", write("bad", "x")).code == 1


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("s.json", False, "allows no output"),
        ("s.json", {"regex": "[a-z"}, "regex"),
        ("g.ebnf", 'root ::= "a', "line 1"),
        ("g.lark", "nothing: other", "grammar"),
    ],
)
def test_check_exits_1_for_a_spec_that_does_not_compile(
    run, write, name, content, part
):
    path = write(name, content)
    result = run("check", path)
    assert result.code == 1
    refusal = result.out.splitlines()[1]
    assert refusal.startswith("refused: ")
    assert part in refusal
    assert "compiles" not in result.out
    as_json = run("check", path, "--json")
    assert as_json.code == 1
    assert as_json.json["ok"] is False
    assert list(as_json.json["error"]) == ["type", "what", "where", "hint"]
    assert part in " ".join(as_json.json["error"].values())


def test_check_takes_many_files_and_patterns(run, write, tmp_path):
    write("good.json", PERSON)
    write("also.json", {"type": "integer"})
    also = tmp_path / "also.json"
    result = run("check", *sorted(tmp_path.glob("*.json")), also)
    assert (result.code, result.out) == (0, "2 of 2 specs compile\n")
    refused = write("no.json", False)
    invalid = write("broken", "{")
    close = {"type": "string", "maxLenght": 1}
    result = run("check", *sorted(tmp_path.glob("*.json")))
    assert (result.code, result.out.splitlines()[-1]) == (1, "2 of 3 specs compile")
    assert any(
        line.startswith(f"error    {refused}: ") for line in result.out.splitlines()
    )
    result = run("check", refused, invalid, "--json")
    assert (result.code, result.json["ok"]) == (1, False)
    first, second = result.json["specs"]
    assert (first["file"], first["error"]["type"]) == (
        str(refused),
        "UnsatisfiableSpecError",
    )
    assert "is not JSON" in second["error"]["what"]
    assert (
        run("check", refused, invalid)
        .out.splitlines()[1]
        .startswith(f"error    {invalid}: line 1, column 2")
    )
    assert run("check", refused, tmp_path / "gone").code == 2
    warned = run("check", write("w.json", close), write("more.json", PERSON))
    assert (warned.code, warned.out.splitlines()[0][:8]) == (0, "warning ")


def test_the_hook_for_pre_commit_runs_check_on_the_files_it_is_given(run, write):
    (hook,) = yaml.safe_load(
        (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    )
    program, *command = hook["entry"].split()
    assert program == "guided-plugin"
    for name in ("a/person.schema.json", "a/tools.json", "my.tools.json"):
        assert re.search(hook["files"], name)
    assert not re.search(hook["files"], "package.json")
    assert not re.search(hook["files"], "mytools.json")
    good = write("a.schema.json", PERSON)
    bad = write("b.schema.json", {"propertes": {}})
    assert [run(*command, *files).code for files in ([good], [bad], [good, bad])] == [
        0,
        1,
        1,
    ]


def test_check_of_many_files_matches_no_instance(run, write):
    one = write("1.json", PERSON)
    run("check", one, write("2.json", PERSON), "--instance", one).is_error(
        2, "--instance: needs exactly one spec"
    )


@pytest.mark.parametrize("tool", [{"type": "search"}, {"name": "a", "parameters": {}}])
def test_check_takes_what_a_request_asks_for(run, write, tool):
    format = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "string", "maxLenght": 1}},
    }
    path = write("body.json", {"tools": [tool], "response_format": format})
    (found,) = run("check", path, "--json").json["findings"]
    assert found["pointer"] == "/response_format/json_schema/schema/maxLenght"


def test_check_names_each_bad_tool_of_a_list(run, write):
    def tool(name, properties, **more):
        schema = {"type": "object", "properties": properties, **more}
        return {"type": "function", "function": {"name": name, "parameters": schema}}

    tools = [
        tool("weather", {"unit": {"type": "str"}, "days": {"type": "dict"}}),
        tool(
            "user",
            {"email": {"pattern": "(?<!x)@"}, "phone": {"pattern": "(a)\\1"}},
        ),
        tool(
            "cart",
            {
                "a": {"$ref": "#/definitions/a"},
                "b": {"type": "string", "maxLenght": 1},
            },
            definitions={"a": {"type": "string"}},
        ),
        tool("fine", {"a": {"type": "string"}}),
    ]
    path = write("tools.json", json.dumps({"tools": tools}, indent=1))
    result = run("check", path)
    assert result.code == 1
    *lines, summary = result.out.splitlines()
    assert summary == "2 of 4 tools compile"
    assert [line.partition(" (")[0] for line in lines] == [
        f"{level} {path}: tool {told}"
        for level, told in (
            ("error   ", "'weather': #/properties/days/type: unknown type 'dict'"),
            ("error   ", "'weather': #/properties/unit/type: unknown type 'str'"),
            (
                "error   ",
                "'user': #/properties/email/pattern: a lookbehind at position 0 of '(?<!x)@'",
            ),
            (
                "error   ",
                "'user': #/properties/phone/pattern: a backreference at position 3 of '(a)\\\\1'",
            ),
            (
                "warning ",
                "'cart': #/properties/b/maxLenght: unknown keyword, ignored",
            ),
            (
                "warning ",
                "'cart': #/properties/a/$ref: with `tool_choice: \"required\"` vLLM keeps "
                "only `$defs`, and references elsewhere",
            ),
        )
    ]
    assert all(line.endswith(")") for line in lines)  # each has its remedy
    found = run("check", path, "--json").json
    assert (found["ok"], len(found["findings"])) == (False, 6)
    assert found["findings"][3] == {
        "type": "RefusedKeyword",
        "level": "error",
        "file": str(path),
        "tool": "user",
        "pointer": "/tools/1/function/parameters/properties/phone/pattern",
        "where": "#/properties/phone/pattern",
        "keyword": "pattern",
        "what": "a backreference at position 3 of '(a)\\\\1'",
        "hint": "write the pattern without it: grammars express regular languages only",
    }
    assert [(one["tool"], one["ok"]) for one in found["specs"]] == [
        ("weather", False),
        ("weather", False),
        ("user", False),
        ("cart", True),
        ("fine", True),
    ]
    (log,) = run("check", path, "--sarif").json["runs"]
    text = path.read_text().splitlines()
    told = []
    for result, finding in zip(log["results"], found["findings"], strict=True):
        assert result["level"] == finding["level"]
        assert result["message"]["text"].startswith(f"tool '{finding['tool']}': ")
        (place,) = result["locations"]
        (logical,) = place["logicalLocations"]
        assert logical["fullyQualifiedName"] == finding["where"]
        physical = place["physicalLocation"]
        assert physical["artifactLocation"]["uri"].endswith("tools.json")
        line, column = physical["region"].values()
        told.append(text[line - 1][column - 1 :].split(":")[0])
    assert told == [json.dumps(one["keyword"]) for one in found["findings"]]
    rules = [rule["id"] for rule in log["tool"]["driver"]["rules"]]
    assert rules == sorted({one["type"] for one in found["findings"]})


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.json", '{\n "type":}', 2),
        ("a.json", '{"title": "a",\n "allOf": [{"type": "string"}, false]}', 2),
        ("a.json", '{"type": "string",\n "type": "txt"}', 1),
        ("a.json", {"grammar": "start: nope"}, 1),
        ("a.lark", 'x: "y"\nstart: nope', 2),
    ],
)
def test_sarif_names_the_line_if_it_is_known(run, write, name, content, line):
    result = run("check", write(name, content), "--sarif")
    assert result.code == 1
    (found,) = result.json["runs"][0]["results"]
    (place,) = found["locations"]
    assert place["physicalLocation"]["region"]["startLine"] == line


def test_the_workflow_for_github_uploads_what_check_finds(run, write):
    text = (ROOT / "examples/check_tools.yml").read_text(encoding="utf-8")
    (job,) = yaml.safe_load(text)["jobs"].values()
    command, log = [one["run"] for one in job["steps"] if "run" in one][-1].split(" > ")
    assert job["steps"][-1]["with"] == {"sarif_file": log}
    program, *words = command.split()
    path = write(words[1], [{"name": "a", "parameters": {"type": "int"}}])
    result = run(words[0], path, *words[2:])
    assert (program, result.code) == ("guided-plugin", 1)
    assert result.json["version"] == "2.1.0"


def test_one_tool_is_shown_as_one_spec_and_explain_takes_no_list(run, write):
    tool = {"name": "a", "inputSchema": PERSON}
    alone = run(
        "check",
        write("one.json", [tool]),
        "--instance",
        write("i", '{"name":"b","on":true}'),
    )
    assert (alone.code, "enforced" in alone.out) == (0, True)
    two = write("two.json", [tool, tool])
    run("check", two, "--instance", two).is_error(2, "--instance: needs exactly one")
    run("explain", two).is_error(2, f"{two}: has 2 tools")
