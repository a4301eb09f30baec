"""Pictures of results: every line of the figures is in them, with the values that were measured."""

import json

import pytest

import guided_plugin as gp
from benchmarks import models, plotting
from benchmarks.plotting import plot_masks, plot_ratios

ENVIRONMENT = {"device": "cpu"}


@pytest.fixture
def drawn(monkeypatch):
    """The axes of the pictures that were drawn."""
    found = []

    save = plotting.save

    def keep(figure, path):
        found.extend(figure.axes)
        save(figure, path)

    monkeypatch.setattr(plotting, "save", keep)
    return found


def lines(axes):
    shown = [line for line in axes.lines if not line.get_label().startswith("_")]
    return {line.get_label(): list(zip(*map(list, line.get_data()), strict=True)) for line in shown}


def figure(rows, ratio, **more):
    return {"rows": rows, "schema": "plain", "ratio": ratio, **more}


def test_a_line_for_all_that_differs(drawn, tmp_path):
    figures = [
        figure(64, 1.5, way="built-in"),
        figure(8, 1.25, way="built-in"),
        figure(8, 1.0, way="unguided"),
        figure(8, 1.125, way="take_over"),
    ]
    result = {"benchmark": "vllm", "environment": ENVIRONMENT, "figures": figures}
    plot_ratios(result, tmp_path / "a.png")
    assert lines(drawn[0]) == {"built-in": [(8, 1.25), (64, 1.5)], "take_over": [(8, 1.125)]}
    low, high = drawn[0].get_ylim()
    assert low < 1 < 1.5 < high
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(("what", "names"), [("loop", {"plain"}), ("generate", {"eager", "static"})])
def test_the_command_draws_what_it_measured(drawn, tmp_path, capsys, what, names):
    png, out = tmp_path / "a.png", tmp_path / "a.json"
    short = ("--rows", "1,2", "--steps", "8", "--repetitions", "1", "--png", str(png), "--out", str(out))
    models.main([what, *short])
    result = json.loads(out.read_text())
    assert json.loads(capsys.readouterr().out) == result
    measured = {(figure["rows"], figure["ratio"]) for figure in result["figures"]}
    assert set(lines(drawn[0])) == names
    assert {point for points in lines(drawn[0]).values() for point in points} == measured
    assert png.exists()
    if what == "generate":
        assert all(figure["xgrammar_ratio"] > 0 for figure in result["figures"])


def mask_file(average, slowest, first):
    masks = {"count": 0} if average is None else {"count": 9, "avg_us": average, "max_us": slowest}
    return {"masks": masks, "first_mask_ms": first}


def test_files_by_the_times_of_their_masks(drawn, tmp_path):
    files = [mask_file(20.0, 90.0, 2.0), mask_file(10.0, 80.0, 1.0), mask_file(None, None, None)]
    plot_masks({"runs": [{"backend": "auto", "files": files}]}, tmp_path / "a.png")
    average, slowest, first = (list(map(list, axes.lines[0].get_data())) for axes in drawn)
    assert average == [[10.0, 20.0], [0.5, 1.0]]
    assert slowest == [[80.0, 90.0], [0.5, 1.0]]
    assert first == [[1.0, 2.0], [0.5, 1.0]]
    assert drawn[0].lines[0].get_label() == "auto, 2 files"
    with pytest.raises(gp.GuidedError, match="no file has a mask"):
        plot_masks({"runs": [{"backend": "auto", "files": files[2:]}]}, tmp_path / "b.png")
