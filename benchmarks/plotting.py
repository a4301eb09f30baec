"""Results of the benchmarks as pictures: ratios against rows, and the times of masks. Imports matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
            f"drawing needs matplotlib: {error}", where="--png", hint="pip install matplotlib"
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


_LINES = ("runner", "forward", "way", "schema", "backend")
"""What tells the lines of a picture apart, as far as it differs between them."""


def plot_ratios(result: Mapping[str, Any], path: Path) -> None:
    """A line for each schema (and runner, way, forward): the ratio of a guided step to an unguided one."""
    figures = [figure for figure in result["figures"] if figure.get("way") not in _UNGUIDED]
    if not figures:
        raise PluginError("the result has no guided figure", where="--png", hint="measure a schema")
    fields = [name for name in _LINES if len({figure.get(name) for figure in figures}) > 1]
    figure = new_figure(7, 4)
    axes = open_axes(figure)
    ratio = "steady_ratio" if "steady_ratio" in figures[0] else "ratio"
    lines: dict[str, list[tuple[int, float]]] = {}
    for measured in figures:
        name = ", ".join(str(measured[field]) for field in fields) or str(measured["schema"])
        lines.setdefault(name, []).append((measured["rows"], measured[ratio]))
    for place, (name, points) in enumerate(lines.items()):
        axes.plot(*zip(*sorted(points), strict=True), "o-", label=name, color=COLOURS[place % len(COLOURS)])
    axes.axhline(1, color="#999999", linewidth=0.8, zorder=0)
    axes.set_xscale("log", base=2)
    rows = sorted({measured["rows"] for measured in figures})
    axes.set_xticks(rows, map(str, rows))
    axes.minorticks_off()
    values = [1.0, *(value for points in lines.values() for _, value in points)]
    margin = max(0.002, 0.06 * (max(values) - min(values)))
    axes.set_ylim(min(values) - margin, max(values) + margin)
    axes.set_xlabel("guided rows")
    axes.set_ylabel("guided step / unguided step")
    axes.ticklabel_format(axis="y", useOffset=False)
    about = result["environment"]
    axes.set_title(f"bench {result['benchmark']}, {result.get('model', '')}, {about['device']}", fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    save(figure, path)


_UNGUIDED = ("unguided", "loaded", "logit_bias", "logit_bias, loaded")


def plot_masks(result: Mapping[str, Any], path: Path) -> None:
    """How many of MaskBench's files stay below a time, a line for each backend: masks, and first masks."""
    figure = new_figure(10, 4)
    panels: Sequence[tuple[str, Callable[[Mapping[str, Any]], float | None]]] = (
        ("average mask of a file, us", lambda row: row["masks"].get("avg_us")),
        ("slowest mask of a file, us", lambda row: row["masks"].get("max_us")),
        ("first mask with its compile, ms", lambda row: row["first_mask_ms"]),
    )
    measured = False
    for place, (label, value) in enumerate(panels):
        axes = open_axes(figure, 1, len(panels), place + 1)
        for line, run in enumerate(result["runs"]):
            times = sorted(time for row in run["files"] if (time := value(row)) is not None)
            if times:
                measured = True
                shares = [(at + 1) / len(times) for at in range(len(times))]
                name = f"{run['backend']}, {len(times)} files" if place == 0 else None
                axes.step(times, shares, where="post", color=COLOURS[line % len(COLOURS)], label=name)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.02)
        axes.set_xlabel(label)
        if place == 0:
            axes.set_ylabel("share of the files that is as fast")
    if not measured:
        raise PluginError("no file has a mask", where="--png", hint="measure files that compile")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    save(figure, path)
