"""The trace of a run: every call of every step, on one clock, in a form that Perfetto opens."""

import json
import sys

import pytest

import guided_plugin as gp
from guided_plugin.bench import trace_plot
from guided_plugin.bench.trace import TRACKS, Span, chrome_trace, trace_loop
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.spec import OutputSpec

CALLS = ["forward", "plan", "fill_mask", "apply_mask", "sample", "schedule_update"]
CALLS += ["append", "check_stop", "finish_update"]
AHEAD = ["plan", "fill_mask", "forward", *CALLS[3:]]
"""Where a worker fills the masks, they are asked for at the end of the step before."""


def test_every_step_has_all_its_calls_in_order(demo_model, demo_vocabulary, config, mode):
    spec = OutputSpec.json_schema({"type": "array", "items": {"type": "integer"}, "minItems": 99})
    compiler = GrammarCompiler(demo_vocabulary, config=config)
    spans = trace_loop(demo_model, compiler, spec, rows=3, steps=5, mode=mode)
    by_step = {step: [s for s in spans if s.step == step] for step in range(8, 13)}
    assert sum(map(len, by_step.values())) == len(spans)
    for found in by_step.values():
        assert all(span.start <= span.end for span in found)
        expected = AHEAD if mode == "process" else CALLS
        assert [span.name for span in found if span.track == "engine thread"] == expected
    if mode == "inline":
        assert {span.track for span in spans} == {"engine thread"}
        return
    for step in range(8, 12):
        at = {(span.track, span.name): span for span in by_step[step]}
        fill, accept = at["worker", "fill"], at["worker", "accept"]
        assert at["engine thread", "plan"].start < fill.start
        assert fill.end < at["engine thread", "apply_mask"].end
        assert at["engine thread", "schedule_update"].start < accept.start


def test_the_command_writes_what_perfetto_opens(tmp_path, capsys):
    from guided_plugin.cli import app

    out = tmp_path / "trace.json"
    app(
        ["trace", "--out", str(out), "--rows", "2", "--steps", "3", "--mode", "inline"], standalone_mode=False
    )
    assert "27 spans of 3 steps" in capsys.readouterr().out
    events = json.loads(out.read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert tuple(names.values()) == TRACKS
    calls = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in calls} == set(CALLS)
    assert min(event["ts"] for event in calls) == 0
    assert all(event["dur"] >= 0 for event in calls)


@pytest.mark.parametrize("wrong", [("--mode", "inlin"), ("--schema", "plane"), ("--shape", "qwen3-0.6")])
def test_wrong_values_are_named_with_what_was_meant(tmp_path, wrong):
    from guided_plugin.cli import app
    from guided_plugin.cli.loading import InputError

    with pytest.raises(InputError, match=f"{wrong[0]}.*did you mean"):
        app(["trace", "--out", str(tmp_path / "t"), *wrong], standalone_mode=False)


def test_some_steps_are_drawn_where_asked(tmp_path, capsys):
    from PIL import Image

    from guided_plugin.cli import app

    out, png = tmp_path / "trace.json", tmp_path / "trace.png"
    asked = ["trace", "--out", str(out), "--png", str(png), "--rows", "2", "--steps", "6", "--mode", "inline"]
    app(asked, standalone_mode=False)
    assert "some steps of it" in capsys.readouterr().out
    with Image.open(png) as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000
        drawn = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    assert (0x9A, 0xA7, 0xB8) in drawn  # the forward pass


def test_the_picture_shows_whole_steps_of_the_middle(tmp_path):
    spans = [
        Span(track, name, 10**6 * step + at, 10**6 * step + at + 10**5, step)
        for step in range(10)
        for at, (track, name) in enumerate([("engine thread", "plan"), ("side stream", "upload")])
    ]
    assert sorted({span.step for span in trace_plot._middle(spans, 4)}) == [3, 4, 5, 6]
    assert len(trace_plot._middle(spans, 99)) == len(spans)
    trace_plot.plot_trace(spans, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(gp.GuidedError, match="no step"):
        trace_plot.plot_trace([], tmp_path / "b.png")


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(gp.GuidedError, match=r"pip install 'guided-plugin\[plot\]'"):
        trace_plot.load_matplotlib()


def test_nothing_makes_an_empty_trace():
    assert len(chrome_trace([])["traceEvents"]) == len(TRACKS)
