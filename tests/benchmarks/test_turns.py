"""Ways that take turns, and what figures say of the machine."""

import datetime
import platform
from importlib.metadata import version

import pytest

import guided_plugin
from benchmarks.turns import (
    check_outputs,
    compared,
    environment,
    in_turns,
)
from guided_plugin.cli.results import show_table
from guided_plugin.errors import RequestError
from guided_plugin.spec import OutputSpec


def test_a_wrong_output_is_no_figure(demo_vocabulary):
    with pytest.raises(RequestError, match="row 0, token 0: a fresh matcher refuses"):
        check_outputs(demo_vocabulary, OutputSpec.choice(["yes"]), [[300, 301]])


def test_ways_take_turns_in_going_first():
    order = []
    times = iter(range(1, 99))

    def way(name):
        return lambda: (order.append(name), float(next(times)))[1]

    found = in_turns({"unguided": way("u"), "guided": way("g")}, 3)
    assert "".join(order) == "ugguug"
    assert found == {"unguided": [1, 4, 5], "guided": [2, 3, 6]}
    figure = compared({**found, "other": [1, 4, 5]})
    assert (figure["unguided_ms"], figure["guided_ms"]) == (4, 3)
    assert figure["ratio"] == pytest.approx(((2 + 1.2) / 2 + 0.75) / 2)
    assert figure["other_ratio"] == 1.0


def test_environment_tells_versions():
    found = environment()
    assert list(found) == [
        "date",
        "guided_plugin",
        "python",
        "versions",
        "cpus",
        "device",
    ]
    assert found["guided_plugin"] == guided_plugin.__version__
    assert found["python"] == platform.python_version()
    for package in ("torch", "xgrammar", "transformers"):
        assert found["versions"][package] == version(package)
    today = datetime.datetime.now(datetime.UTC).date()
    assert abs((datetime.date.fromisoformat(found["date"]) - today).days) <= 1
    assert found["cpus"] >= 1


def test_a_narrow_console_cuts_no_figure(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "24")
    figures = [{"backend": "llguidance", "times": "12.5/1234/123456", "count": 7}]
    show_table(
        figures,
        [("backend", "{backend}"), ("avg/p99/max us", "{times}"), ("files", "{count}")],
    )
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split() == ["llguidance", "12.5/1234/123456", "7"]
