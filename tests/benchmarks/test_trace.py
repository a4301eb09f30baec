"""The trace of a run: every call of every step, on one clock, in a form that Perfetto
opens."""

import json

import pytest

import guided_plugin as gp
from benchmarks.trace.__main__ import main
from benchmarks.trace.recorder import WAIT, Span, read_chrome_trace, trace_loop, waits
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.spec import OutputSpec

CALLS = ["forward", "plan", "fill_mask", "apply_mask", "sample", "schedule_update"]
CALLS += ["append", "check_stop", "finish_update"]
AHEAD = ["plan", "fill_mask", "forward", *CALLS[3:]]
"""Where a worker fills the masks, they are asked for at the end of the step before."""


def test_every_step_has_all_its_calls_in_order(
    demo_model, demo_vocabulary, config, mode
):
    spec = OutputSpec.json_schema(
        {"type": "array", "items": {"type": "integer"}, "minItems": 99}
    )
    compiler = GrammarCompiler(demo_vocabulary, config=config)
    spans = trace_loop(demo_model, compiler, spec, rows=3, steps=5, mode=mode)
    by_step = {step: [s for s in spans if s.step == step] for step in range(8, 13)}
    assert sum(map(len, by_step.values())) == len(spans)
    for found in by_step.values():
        assert all(span.start <= span.end for span in found)
        expected = AHEAD if mode == "process" else CALLS
        own = [span.name for span in found if span.track == "engine thread"]
        assert [name for name in own if name != WAIT] == expected
    if mode == "inline":
        assert {span.track for span in spans} == {"engine thread"}
        return
    for step in range(8, 12):
        at = {(span.track, span.name): span for span in by_step[step]}
        fill = at["worker", "fill"]
        accept = at["worker", "accept"]
        assert at["engine thread", "plan"].start < fill.start
        assert fill.end < at["engine thread", "apply_mask"].end
        assert at["engine thread", "schedule_update"].start < accept.start


def test_the_command_writes_what_perfetto_opens_and_draws_some_steps(tmp_path, capsys):
    from PIL import Image

    out, png, again = (
        tmp_path / name for name in ("trace.json", "trace.png", "again.png")
    )
    main(
        [
            "--out",
            str(out),
            "--png",
            str(png),
            "--rows",
            "2",
            "--steps",
            "6",
            "--mode",
            "inline",
        ]
    )
    assert "54 spans of 6 steps" in capsys.readouterr().out
    events = json.loads(out.read_text())["traceEvents"]
    names = {
        event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"
    }
    assert list(names.values()) == ["engine thread"]  # no lane stays empty
    calls = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in calls} == set(CALLS)
    assert min(event["ts"] for event in calls) == 0
    assert all(event["dur"] >= 0 for event in calls)
    main(["--read", str(out), "--png", str(again)])
    assert again.read_bytes() == png.read_bytes()
    with Image.open(png) as drawn:
        assert (drawn.format, drawn.width > 1000) == ("PNG", True)
        colours = {colour for _, colour in drawn.convert("RGB").getcolors(1 << 24)}
    assert (0x9A, 0xA7, 0xB8) in colours  # the forward pass


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        # On the CPU the host waits for the worker ...
        (
            [
                Span("engine thread", "apply_mask", 20, 50, 1),
                Span("worker", "fill", 0, 40, 1),
            ],
            [Span("engine thread", WAIT, 20, 40, 1)],
        ),
        # ... unless the masks were there before,
        (
            [
                Span("engine thread", "apply_mask", 20, 50, 1),
                Span("worker", "fill", 0, 10, 1),
            ],
            [],
        ),
        # on CUDA the side stream, and the main stream for that.
        (
            [
                Span("engine thread", "apply_mask", 5, 9, 1),
                Span("main stream", "apply_mask", 30, 60, 1),
                Span("side stream", "upload", 10, 50, 1),
                Span("worker", "fill", 0, 45, 1),
            ],
            [
                Span("main stream", WAIT, 30, 50, 1),
                Span("side stream", WAIT, 10, 45, 1),
            ],
        ),
        # Inline, the host waits for the tokens of the step before.
        (
            [
                Span("engine thread", "fill_mask", 20, 50, 2),
                Span("side stream", "download", 0, 30, 1),
                Span("main stream", "forward", 0, 9, 2),
            ],
            [Span("engine thread", WAIT, 20, 30, 2)],
        ),
    ],
)
def test_waits_are_where_one_track_needs_another(spans, expected):
    assert waits(spans) == expected


@pytest.mark.parametrize(
    "document", [[], {}, {"traceEvents": [{}]}, {"traceEvents": []}, {"traceEvents": 1}]
)
def test_other_files_are_no_trace(tmp_path, document):
    with pytest.raises(gp.GuidedError, match="--read: is not a trace of this command"):
        read_chrome_trace(document)
