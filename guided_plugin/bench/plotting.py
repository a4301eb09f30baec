"""What all pictures share: matplotlib without a display, and the form of their axes.

Imports matplotlib, which the extra `plot` installs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from guided_plugin.errors import PluginError

COLOURS = ("#2f7f93", "#d9822b", "#7a9e3f", "#b5452c", "#5b5f97", "#8a6d3b")
"""Of lines, in their order."""


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


def new_figure(width: float, height: float) -> Any:
    """An empty figure, in inches."""
    figure_class, canvas_class = load_matplotlib()
    figure = figure_class(figsize=(width, height), dpi=120, layout="constrained")
    canvas_class(figure)
    return figure


def open_axes(figure: Any, *place: int) -> Any:
    """Axes without a box around them."""
    axes = figure.add_subplot(*place)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def save(figure: Any, path: Path) -> None:
    """Write a PNG whose bytes depend on what is drawn alone."""
    figure.savefig(path, format="png", metadata={"Software": None})
