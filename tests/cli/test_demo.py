"""`guided-plugin demo`: what it shows, and that its outputs are checked."""

import json
import re

import jsonschema
import pytest

from guided_plugin.cli import demo
from guided_plugin.demo import DEMOS


def test_demo_json(run):
    result = run("demo", "--json")
    assert (result.code, result.err.strip()) == (0, "")
    found = result.json
    assert list(found) == ["seed", "ms_per_token", "demos"]
    assert found["seed"] == 0
    assert list(found["ms_per_token"]) == ["unguided", "guided"]
    assert min(found["ms_per_token"].values()) > 0
    assert [(d["name"], d["prompt"]) for d in found["demos"]] == [(d.name, d.prompt) for d in DEMOS]
    for shown, entry in zip(found["demos"], DEMOS, strict=True):
        assert list(shown) == ["name", "prompt", "unguided", "guided"]
        assert list(shown["unguided"]) == list(shown["guided"]) == ["text", "valid", "why"]
        assert (shown["guided"]["valid"], shown["guided"]["why"]) == (True, None)
        jsonschema.validate(json.loads(shown["guided"]["text"]), entry.schema)
    # The demo has to show a difference: the person comes out with single quotes when unguided.
    assert not found["demos"][0]["unguided"]["valid"]
    assert "refused at" in found["demos"][0]["unguided"]["why"]


@pytest.fixture
def one(monkeypatch):
    """Only the first demo, which is enough for most tests."""
    monkeypatch.setattr(demo, "DEMOS", DEMOS[:1])


def test_demo_text(run, one):
    result = run("demo")
    assert result.code == 0
    assert f"{DEMOS[0].title} - prompt: {DEMOS[0].prompt!r}" in result.out
    assert re.search(r"\bvalid\b", result.out)
    assert "refused at" in result.out
    assert re.search(r"\d+\.\d\d ms guided", result.out)


def test_demo_seeds_differ_and_repeat(run, one):
    first, again, other = (run("demo", "--json", "--seed", seed).json["demos"] for seed in "445")
    assert first == again
    assert first != other


def test_demo_exits_1_when_a_guided_output_is_not_valid(run, one, monkeypatch):
    monkeypatch.setattr(demo, "_verdict", lambda *_: "refused [here]")
    result = run("demo")
    assert result.code == 1
    assert "refused [here]" in result.out
