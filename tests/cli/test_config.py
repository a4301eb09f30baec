"""`guided-plugin config`: the options in effect, their sources, their schema."""

import dataclasses
import json

import jsonschema
import pytest

from guided_plugin.config import GuidedConfig


def test_the_options_that_hold_and_what_each_is_from(run, monkeypatch):
    monkeypatch.setenv("GUIDED_PLUGIN", '{"take_over": true, "threads": 2}')
    monkeypatch.setenv("COLUMNS", "24")  # a narrow console cuts nothing
    flag = ("--additional-config", '{"guided_plugin": {"threads": 3}, "another": 1}')
    rows = [line.split() for line in run("config", *flag).out.splitlines()]
    assert ["take_over", "true", "GUIDED_PLUGIN"] in rows
    assert ["threads", "3", "additional_config.guided_plugin"] in rows
    assert ["max_digits", "20", "default"] in rows
    found = run("config", *flag, "--json").json
    assert found["ok"]
    assert found["options"].keys() == {
        field.name for field in dataclasses.fields(GuidedConfig)
    }
    assert found["options"]["unenforced_keywords"] == {"value": [], "from": "default"}
    monkeypatch.setenv("GUIDED_PLUGIN", "0")
    found = run("config", *flag, "--json").json["options"]
    assert found["enabled"] == {"value": False, "from": "GUIDED_PLUGIN=0"}
    assert found["threads"]["from"] == "default"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "--additional-config: is not JSON"),
        ("[]", "--additional-config: must be a JSON object"),
        (
            '{"guided_plugin": {"unenforced_keywords": ["uniqeItems"]}}',
            "did you mean 'uniqueItems'?",
        ),
        ('{"guided_plugn": {}}', "did you mean 'guided_plugin'?"),
        (
            '{"guided_plugin": {"threads": -1}}',
            "additional_config.guided_plugin: threads: must be at least 0",
        ),
    ],
)
def test_what_cannot_be_read_is_an_error(run, text, part):
    run("config", "--additional-config", text).is_error(2, part)


def test_the_schema_takes_what_the_package_takes(run):
    schema = run("config", "--schema").json
    known = jsonschema.Draft202012Validator(schema)
    known.check_schema(schema)
    assert all(one["description"] for one in schema["properties"].values())
    defaults = {name: one["default"] for name, one in schema["properties"].items()}
    assert GuidedConfig.from_mapping(defaults) == GuidedConfig()
    assert json.dumps(defaults)
    assert known.is_valid(defaults)
    for wrong in (
        {"thread": 1},
        {"threads": -1},
        {"mode": "proces"},
        {"enabled": 1},
        {"disabled_plugins": [1]},
    ):
        assert not known.is_valid(wrong)
