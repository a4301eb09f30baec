"""A trace as a picture: some steps in four lanes, which show what runs at the same time.

Imports matplotlib, which the extra `plot` installs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guided_plugin.bench.trace import TRACKS, Span
from guided_plugin.errors import PluginError

_COLOURS = {
    "forward": "#9aa7b8",
    "sample": "#c8d0da",
    "append": "#c8d0da",
    "check_stop": "#c8d0da",
    "plan": "#e0a53c",
    "fill_mask": "#d9822b",
    "apply_mask": "#b5452c",
    "schedule_update": "#2f7f93",
    "finish_update": "#5fa8b5",
    "upload": "#d9822b",
    "download": "#2f7f93",
    "fill": "#7a9e3f",
    "accept": "#4c6b2a",
}
"""The host's own work is grey; masks are warm, tokens blue, grammars green."""

_OTHER = "#777777"
_LABEL_SHARE = 0.03
"""A span this wide, as a share of the picture, has room for its name."""


def load_matplotlib() -> Any:
    """matplotlib's `Figure` and a canvas that needs no display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PluginError(
            f"drawing needs matplotlib: {error}", where="--png", hint="pip install 'guided-plugin[plot]'"
        ) from error
    return Figure, FigureCanvasAgg


def plot_trace(spans: list[Span], path: Path, *, steps: int = 4, title: str = "") -> None:
    """Draw the middle `steps` steps into a PNG."""
    figure_class, canvas_class = load_matplotlib()
    shown = _middle(spans, steps)
    origin = min(span.start for span in shown)
    width = max(span.end for span in shown) - origin
    unit, scale = ("milliseconds", 1e6) if width > 2e7 else ("microseconds", 1e3)
    drawn: dict[str, Any] = {}
    figure = figure_class(figsize=(14, 4), dpi=120, layout="constrained")
    canvas_class(figure)
    axes = figure.add_subplot()
    for lane, track in enumerate(reversed(TRACKS)):
        for name in dict.fromkeys(span.name for span in shown if span.track == track):
            bars = [s for s in shown if s.track == track and s.name == name]
            least = width / 2000
            places = [((s.start - origin) / scale, max(s.end - s.start, least) / scale) for s in bars]
            colour = _COLOURS.get(name, _OTHER)
            drawn[name] = axes.broken_barh(places, (lane - 0.4, 0.8), color=colour, linewidth=0)
            for span, (start, length) in zip(bars, places, strict=True):
                if span.end - span.start >= _LABEL_SHARE * width:
                    axes.text(start + length / 2, lane, name, ha="center", va="center", fontsize=7)
    for step in sorted({span.step for span in shown}):
        first = min(span.start for span in shown if span.step == step and span.track == TRACKS[0])
        axes.axvline((first - origin) / scale, color="#cccccc", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(TRACKS)), list(reversed(TRACKS)))
    axes.set_xlabel(f"{unit}; a line where the engine's thread begins a step")
    axes.set_title(title, fontsize=10)
    axes.set_xlim(0, width / scale)
    figure.legend(drawn.values(), drawn, loc="outside right center", fontsize=7, frameon=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(path)


def _middle(spans: list[Span], steps: int) -> list[Span]:
    """Whole steps in the middle."""
    numbers = sorted({span.step for span in spans if span.track == TRACKS[0]})
    if not numbers:
        raise PluginError("the trace has no step", where="--png", hint="trace at least one step")
    first = max(0, (len(numbers) - steps) // 2)
    chosen = set(numbers[first : first + steps])
    return [span for span in spans if span.step in chosen]
