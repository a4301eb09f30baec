"""Examples that are clients, run against the server of these tests."""

import json
import re

import jsonschema
import pytest
from example_runs import people, run_example


@pytest.fixture
def run(base_url, tmp_path):
    return lambda name: run_example(name, "--base-url", base_url, cwd=tmp_path)


def test_openai(run):
    printed = run("vllm_server_client")
    assert "role" in people(printed, "person")[0]
    assert re.search(r"^regex: ORD-[0-9]{5}$", printed, re.M)
    assert re.search(r"^choice: (yes|no)$", printed, re.M)
    assert (
        "refused: response_format.json_schema.schema#/type: unknown type 'int' (did you mean 'integer'?)"
        in printed
    )


def test_two_people_of_each_client(run):
    people(run("instructor_client"), "json_schema_mode", "tool_call")
    people(run("langchain_client"), "structured", "tool")
    people(run("pydantic_ai_client"), "NativeOutput", "ToolOutput")


def test_tools(run):
    table = {
        "properties": {
            "guests": {"minimum": 1, "maximum": 8},
            "day": {"enum": ["friday", "saturday", "sunday"]},
        },
        "required": ["guests", "day"],
    }
    order = {
        "properties": {"order_id": {"pattern": "^ORD-[0-9]{5}$"}},
        "required": ["order_id"],
    }
    calls = [line.split(" ", 1) for line in run("tools").splitlines()]
    assert len(calls) >= 2
    assert calls[-1][0] == "BookTable"
    for name, arguments in calls:
        jsonschema.validate(
            json.loads(arguments), {"BookTable": table, "CancelOrder": order}[name]
        )
