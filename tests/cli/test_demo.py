"""`guided-plugin demo`: what it shows, and that its outputs are checked."""

import json
import os
import re
import shlex
import subprocess
import sys

import jsonschema
import pytest
from script_files import ROOT

from guided_plugin.cli import demo
from guided_plugin.demo import DEMOS


def test_demo_json(run):
    result = run("demo", "--json")
    assert (result.code, result.err.strip()) == (0, "")
    found = result.json
    assert list(found) == ["seed", "demos"]
    assert found["seed"] == 0
    assert [(d["name"], d["prompt"]) for d in found["demos"]] == [
        (d.name, d.prompt) for d in DEMOS
    ]
    for shown, entry in zip(found["demos"], DEMOS, strict=True):
        assert list(shown) == ["name", "prompt", "unguided", "guided"]
        assert (
            list(shown["unguided"]) == list(shown["guided"]) == ["text", "valid", "why"]
        )
        assert (shown["guided"]["valid"], shown["guided"]["why"]) == (True, None)
        jsonschema.validate(json.loads(shown["guided"]["text"]), entry.schema)
    # The demo has to show a difference: the person comes out with single quotes when
    # unguided.
    assert not found["demos"][0]["unguided"]["valid"]
    assert "refused at" in found["demos"][0]["unguided"]["why"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_next_commands_work_as_printed(tmp_path):
    """As a newcomer has it: the program is in a virtual environment that is not on the
    PATH."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
        "COLUMNS": "200",
    }
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )

    def shell(command):
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shown = shell(f"{shlex.quote(sys.executable)} -m guided_plugin.cli demo")
    _, _, commands = shown.partition("Next, try these commands:\n\n")
    check, explain, _, *cost = commands.splitlines()
    assert re.search(r"^Guiding took \d+\.\d\d ms of a step here", cost[0])
    assert "compiles with" in shell(check)
    # 3 is below the minimum
    assert re.search(r"^characters +0-9$", shell(explain), re.M)


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


def test_demo_seeds_differ_and_repeat(run, one):
    first, again, other = (
        run("demo", "--json", "--seed", seed).json["demos"] for seed in "445"
    )
    assert first == again
    assert first != other


def test_demo_exits_1_when_a_guided_output_is_not_valid(run, one, monkeypatch):
    monkeypatch.setattr(demo, "_verdict", lambda *_: "refused [here]")
    result = run("demo")
    assert result.code == 1
    assert "refused [here]" in result.out
