"""A trace as a picture: typical steps, a lane for each track, and its waits. Needs
matplotlib."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.trace.recorder import WAIT, Span, lanes
from guided_plugin.errors import PluginError

_COLOURS = {
    "forward": "#9aa7b8",
    "sample": "#c8d0da",
    "append": "#b9c3ce",
    "check_stop": "#dbe1e8",
    "plan": "#e0a53c",
    "fill_mask": "#d9822b",
    "apply_mask": "#b5452c",
    "schedule_update": "#2f7f93",
    "finish_update": "#5fa8b5",
    "upload": "#d9822b",
    "download": "#2f7f93",
    "write": "#2f7f93",
    "fill": "#7a9e3f",
    "accept": "#4c6b2a",
}
"""The host's own work is grey; masks are warm, tokens blue, grammars green."""

_OTHER = "#777777"
_LABEL_SHARE = 0.007
"""A character needs this share of the picture's width."""
_LEAST_SHARE = 0.0006
"""A span is drawn at least this wide, or it could not be seen."""


def plot_trace(
    spans: list[Span], path: Path, *, steps: int = 4, title: str = ""
) -> None:
    """Draw `steps` typical steps into a PNG."""
    chosen, start, end = typical_steps(spans, steps)
    width = end - start
    shown = [span for span in spans if span.end > start and span.start < end]
    tracks = lanes(shown)[::-1]
    unit, scale = ("milliseconds", 1e6) if width > 2e7 else ("microseconds", 1e3)
    figure = _figure_class()(
        figsize=(14, 1.3 + 0.75 * len(tracks)), dpi=120, layout="constrained"
    )
    axes = figure.add_subplot()
    axes.spines[["top", "right", "left"]].set_visible(False)
    drawn: dict[str, Any] = {}
    for lane, track in enumerate(tracks):
        for name in dict.fromkeys(span.name for span in shown if span.track == track):
            bars = [span for span in shown if span.track == track and span.name == name]
            least = width * _LEAST_SHARE
            places = [
                ((s.start - start) / scale, max(s.end - s.start, least) / scale)
                for s in bars
            ]
            drawn[name] = axes.broken_barh(places, (lane - 0.4, 0.8), **_look(name))
            if name != WAIT:
                _label(axes, bars, lane, start, scale, width)
    for step, begin in _begins(spans).items():
        if step in chosen:
            axes.axvline(
                (begin - start) / scale, color="#999999", linewidth=0.8, zorder=0
            )
            axes.text(
                (begin - start) / scale,
                len(tracks) - 0.45,
                f" step {step}",
                fontsize=7,
                color="#777777",
            )
    axes.set_yticks(range(len(tracks)), tracks)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{unit}; a line where the engine thread begins a step")
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlim(0, width / scale)
    axes.set_ylim(-0.6, len(tracks) - 0.2)
    figure.legend(
        drawn.values(), drawn, loc="outside right center", fontsize=7, frameon=False
    )
    # Its bytes depend on what is drawn alone.
    figure.savefig(path, format="png", metadata={"Software": None})


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PluginError(
            f"drawing needs matplotlib: {error}",
            where="--png",
            hint="pip install matplotlib",
        ) from error
    return Figure


def typical_steps(spans: list[Span], steps: int) -> tuple[range, int, int]:
    """`steps` consecutive steps that all take about the median time, and where they
    begin and end."""
    begins = _begins(spans)
    numbers = list(begins)
    if not numbers:
        raise PluginError(
            "the trace has no step", where="--png", hint="trace at least one step"
        )
    last = max(span.end for span in spans if span.track == "engine thread")
    ends = [*list(begins.values())[1:], last]
    took = [end - begin for begin, end in zip(begins.values(), ends, strict=True)]
    count = min(steps, len(numbers))
    usual = statistics.median(took)
    first = min(
        range(len(numbers) - count + 1),
        key=lambda place: max(
            abs(length - usual) for length in took[place : place + count]
        ),
    )
    chosen = range(numbers[first], numbers[first + count - 1] + 1)
    return chosen, begins[numbers[first]], ends[first + count - 1]


def _begins(spans: list[Span]) -> dict[int, int]:
    """When the engine thread begins each step: with its forward pass, or what there is
    instead."""
    found: dict[int, int] = {}
    own = [
        span for span in spans if span.track == "engine thread" and span.name != WAIT
    ]
    named = [span for span in own if span.name == "forward"]
    for span in sorted(named or own, key=lambda span: (span.step, span.start)):
        found.setdefault(span.step, span.start)
    return found


def _look(name: str) -> dict[str, Any]:
    if name == WAIT:
        return {
            "facecolor": "white",
            "edgecolor": "#555555",
            "hatch": "////",
            "linewidth": 0.4,
        }
    return {"facecolor": _COLOURS.get(name, _OTHER), "linewidth": 0}


def _label(
    axes: Any, bars: list[Span], lane: int, start: int, scale: float, width: int
) -> None:
    """The name, in those bars that have room for it."""
    for span in bars:
        left = max(span.start, start)
        right = min(span.end, start + width)
        if right - left >= _LABEL_SHARE * len(span.name) * width:
            axes.text(
                ((left + right) / 2 - start) / scale,
                lane,
                span.name,
                ha="center",
                va="center",
                fontsize=7,
            )
