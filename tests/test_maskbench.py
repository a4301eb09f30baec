"""`guided-plugin maskbench`: files are measured in children, and what hangs or crashes costs one row."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guided_plugin.bench.maskbench import open_sample
from guided_plugin.bench.maskbench_child import FileBench
from guided_plugin.bench.maskbench_result import FileResult, compare, quantile, summarise
from guided_plugin.bench.text_tokens import TextTokens
from guided_plugin.cli import main
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError, VocabularyError
from guided_plugin.grammar.vocabulary import Vocabulary

ODD = '''
"""A backend `odd` that does what a schema's title says."""
import os, time
import numpy as np
from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.base import Grammar
from guided_plugin.hookspecs import hookimpl


class Matcher:
    complete = True

    def __init__(self, does):
        self.does = does


class Batch:
    def __init__(self, matchers):
        self.does = matchers[0].does

    def fill(self, mask, rows):
        if self.does == "hang in a mask":
            with open(os.environ["ODD_PID"], "w") as file:
                file.write(str(os.getpid()))
            time.sleep(1000)
        mask[rows] = 0 if self.does == "get stuck" else -1

    def accept(self, tokens):
        return [self.does != "break its word"]


class Backend:
    name = "odd"

    def __init__(self, vocabulary, config):
        self.threads = config.thread_count()

    def compile(self, spec):
        does = spec.document().get("title", "")
        if does == "refuse":
            raise UnsupportedSpecError("odd as well", where="#")
        if does == "crash":
            os.abort()
        if does == "raise":
            raise RuntimeError("a bug in odd")
        return Grammar(spec, "odd", does, 1000, 0.0, reason=f"threads {self.threads}")

    def start(self, grammar, stops):
        matcher = Matcher(grammar.handle)
        matcher.complete = matcher.does != "get stuck"
        return matcher

    def batch(self, matchers):
        return Batch(matchers)


@hookimpl
def register_backends(register):
    register("odd", Backend)
'''


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The backend `odd`, installed for this process and its children; where it leaves a hanging child's id."""
    site = tmp_path / "site"
    info = site / "odd_backend-1.dist-info"
    info.mkdir(parents=True)
    (site / "odd_backend.py").write_text(ODD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-backend\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[guided_plugin]\nodd = odd_backend\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(Path.cwd())]))
    pid = tmp_path / "pid"
    monkeypatch.setenv("ODD_PID", str(pid))
    return pid


def case(schema: Any, *tests: tuple[bool, Any]) -> str:
    return json.dumps({"schema": schema, "tests": [{"valid": valid, "data": data} for valid, data in tests]})


SAMPLE = {
    "a/passing.json": case({"type": "integer"}, (True, 12), (False, "12"), (True, -3)),
    "a/refused.json": case({"type": "array", "uniqueItems": True}, (True, [])),
    "b/no-tests.json": case({"type": "boolean"}),
    "b/unsatisfiable.json": case({"enum": []}),
    "b/text.json": "no JSON",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sample of the format, with a file that isn't."""
    for name, text in SAMPLE.items():
        path = tmp_path / "sample" / "deep" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "sample"


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command with the demo's tokenizer: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        command = ["guided-plugin", "maskbench", *map(str, arguments), "--tokenizer", str(MODEL_DIR)]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return call


def rows(path: Path) -> dict[str, dict[str, Any]]:
    (run,) = json.loads(path.read_text())["runs"]
    return {row["name"]: row for row in run["files"]}


def test_a_sample_measured_and_written(run: Run, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.json"
    code, table, errors = run(folder, "--json", out, "--backend", "llguidance")
    assert (code, errors.strip()) == (0, "")
    found = rows(out)
    assert {name: row["status"] for name, row in found.items()} == {
        "a/passing.json": "passing",
        "a/refused.json": "refused",
        "b/no-tests.json": "passing",
        "b/text.json": "unreadable",
        "b/unsatisfiable.json": "refused",
    }
    passing = found["a/passing.json"]
    assert (passing["backend"], passing["reason"]) == ("llguidance", "as a JSON schema")
    assert passing["first_mask_ms"] > 0
    assert passing["masks"]["p50_us"] <= passing["masks"]["p99_us"] <= passing["masks"]["max_us"]
    assert "uniqueItems" in found["a/refused.json"]["error"]
    assert found["a/refused.json"]["first_mask_ms"] is None
    assert found["b/no-tests.json"]["first_mask_ms"] > 0
    assert found["b/no-tests.json"]["masks"] == {"count": 0}
    result = json.loads(out.read_text())
    assert result["environment"]["versions"]["llguidance"]
    assert (result["files"], result["jobs"], result["limit_seconds"]) == (5, 1, 60.0)
    assert 0 < result["runs"][0]["empty_call_us"] < 100
    assert result["runs"][0]["summary"]["unreadable"] == 1
    figures = next(line for line in table.splitlines() if "llguidance" in line).split()
    assert figures[:6] == ["llguidance", "2", "0", "0", "2", "0"]
    assert len(figures) == 8
    assert all(float(part) > 0 for figure in figures[6:] for part in figure.split("/"))
    assert "llguidance: files that can't be read: 1" in table


def test_what_hangs_or_crashes_costs_its_own_row(odd: Path, run: Run, tmp_path: Path) -> None:
    titles = ["crash", "raise", "hang in a mask", "refuse", "break its word", "get stuck", "behave"]
    for place, title in enumerate(titles):
        (tmp_path / f"{place}.json").write_text(case({"title": title}, (True, 1), (False, 2)))
    out = tmp_path / "result"
    code, table, _ = run(tmp_path, "--backend", "odd", "--limit", "1", "--jobs", "2", "--json", out)
    assert code == 0
    crash, raised, hang, refused, liar, stuck, behaved = rows(out).values()
    assert (crash["status"], crash["error"]) == ("died", "SIGABRT, compiling")
    assert raised["status"] == "died"
    assert raised["error"] == "exit code 1, compiling: RuntimeError: a bug in odd"
    assert (hang["status"], hang["error"]) == ("died", "killed after 1 s, matching test 0")
    with pytest.raises(ProcessLookupError):
        os.kill(int(odd.read_text()), 0)
    assert (refused["status"], refused["error"]) == ("refused", "#: odd as well")
    assert (liar["status"], liar["wrong_refusals"]) == ("wrong", [0])
    assert liar["faults"] == [f"test {i}: the mask allows token 0, and it is refused" for i in (0, 1)]
    assert stuck["faults"] == [f"test {i}: no token is allowed at token 0" for i in (0, 1)]
    # Its mask allows everything: also what isn't valid.
    assert (behaved["status"], behaved["wrong_accepts"]) == ("wrong", [1])
    assert behaved["reason"] == "threads 1"
    assert "odd 0 1 2 1 3" in " ".join(table.split())
    assert "odd: instances where a matcher contradicted itself or got stuck: 4" in table


def test_ctrl_c_leaves_no_child_and_prints_what_was_done(odd: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(case({"title": "refuse"}))
    (tmp_path / "2.json").write_text(case({"title": "hang in a mask"}))
    out = tmp_path / "result"

    def press() -> None:
        deadline = time.monotonic() + 60
        while not (odd.exists() and odd.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    code, table, _ = run(tmp_path, "--backend", "odd,auto", "--json", out)
    thread.join()
    assert code == 130
    assert "files measured: 1 of 2" in table
    assert "interrupted: by the user" in table
    assert rows(out)["1.json"]["status"] == "refused"  # and `auto` was not begun
    with pytest.raises(ProcessLookupError):
        os.kill(int(odd.read_text()), 0)


def test_compare_tells_the_files_that_flipped(odd: Path, run: Run, tmp_path: Path) -> None:
    sample, old, new = tmp_path / "sample", tmp_path / "old", tmp_path / "new"
    sample.mkdir()
    (sample / "1.json").write_text(case({}, (True, 1)))
    (sample / "2.json").write_text(case({"title": "refuse"}, (True, 1)))
    assert run(sample, "--backend", "odd", "--json", old)[0] == 0
    (sample / "1.json").write_text(case({}, (False, 1)))
    (sample / "2.json").write_text(case({}, (True, 1)))
    code, table, _ = run(sample, "--backend", "odd", "--limit", "5", "--json", new, "--compare", old)
    assert code == 1
    assert table.splitlines()[-4:] == [
        "limit_seconds: 60.0 then, 5.0 now",
        "files that flipped: 2; of them, passed before: 1",
        "odd 1.json: passing -> wrongly accepts tests 0",
        "odd 2.json: refused -> passing",
    ]
    assert [flip["name"] for flip in json.loads(new.read_text())["compared"]["flips"]] == ["1.json", "2.json"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--backend", "auto,xgramar"), "(did you mean 'xgrammar'?)"),
        (("--json", "."), "error: --json: can't write .: Is a directory"),
        (("--compare", "none.json"), "none.json: can't be read"),
        (("--compare", "sample/a.json"), "is no result of maskbench (give what --json wrote)"),
    ],
)
def test_bad_input_is_told_before_anything_is_measured(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "a.json").write_text(case({}))
    code, out, error = run("sample", *option)
    assert (code, out) == (2, "")
    assert message in error
    assert error.count("\n") == 1


def test_a_child_that_cannot_start_is_an_error(
    odd: Path, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(odd.parent / "nothing"))
    monkeypatch.chdir(odd.parent)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    code, out, error = run(folder, "--backend", "odd")
    assert (code, out) == (2, "")
    assert error.startswith("error: backend odd: ")
    assert error.count("\n") == 1
