"""`guided-plugin explain`."""

import json

from command_line import PERSON


def test_explain(run, write):
    found = {}
    for whitespace in ("flexible", "compact"):
        spec = {"json_schema": PERSON, "whitespace": whitespace}
        result = run("explain", write("s.json", spec), "--text", '{"name":"b"')
        assert result.code == 0
        lines = dict(line.split(maxsplit=1) for line in result.out.splitlines())
        assert lines["could"] == "end   ',\"on\":true}'"
        found[whitespace] = lines
    assert found["compact"]["forced"] == "',\"on\":'"
    assert found["compact"]["characters"] == ","
    assert "forced" not in found["flexible"]
    assert found["flexible"]["characters"] == r"'\n' '\r' ' ' ,"


def test_explain_as_json_and_standard_input(run, standard_input):
    spec = {"json_schema": PERSON, "whitespace": "compact"}
    standard_input(json.dumps(spec).encode())
    result = run("explain", "-", "--json", "--text", '{"name":"é","on":1}')
    assert result.code == 1
    found = result.json
    assert (found["ok"], found["refused"]["position"]) == (False, 17)
    assert found["characters"] == ["f", "t"]


def test_a_spec_that_allows_nothing(run, write):
    run("explain", write("no.json", False), "--text", "a").is_error(
        1, "allows no output"
    )
