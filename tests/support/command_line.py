"""The console script, run in the process of the tests."""

import io
import json
import re
import sys
from dataclasses import dataclass

import pytest

from guided_plugin.cli import main

PERSON = {
    "type": "object",
    "properties": {"name": {"enum": ["é", "b"]}, "on": {"type": "boolean"}},
    "required": ["name", "on"],
}


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)

    def is_error(self, code, *parts):
        """One line on stderr that has all of these parts, nothing on stdout, this exit
        code. A bad spec is 1, what can't be used at all 2."""
        assert self.code == code, self
        assert self.out == ""
        assert re.fullmatch(r"error: [^\n]+\n", self.err), self.err
        for part in parts:
            assert part in self.err


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command; on a terminal wide enough for one-line cells."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["guided-plugin", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def standard_input(monkeypatch):
    """Give commands these bytes on their standard input."""

    def call(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return call


@pytest.fixture
def write(tmp_path):
    """Write a file: text, bytes, or anything else as JSON."""

    def call(name, content):
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(
                content if isinstance(content, str) else json.dumps(content),
                encoding="utf-8",
            )
        return path

    return call
