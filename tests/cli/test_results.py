"""How commands print their tables."""

from guided_plugin.cli.results import show_table


def test_a_narrow_console_cuts_no_figure(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "24")
    figures = [{"backend": "llguidance", "times": "12.5/1234/123456", "count": 7}]
    show_table(figures, [("backend", "{backend}"), ("avg/p99/max us", "{times}"), ("files", "{count}")])
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split() == ["llguidance", "12.5/1234/123456", "7"]
