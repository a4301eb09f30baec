"""`benchmarks.maskbench`: files are measured in children, and what hangs or crashes
costs one row."""

import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import odd_backend
import pytest

from benchmarks.maskbench.__main__ import main
from benchmarks.maskbench.paired import main as paired
from benchmarks.samples import TextTokens, open_sample
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import VocabularyError
from guided_plugin.grammar.vocabulary import Vocabulary


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """The backend `odd`, installed for this process and its children; where a hanging
    child leaves its id."""
    site = tmp_path / "site"
    info = site / "odd_backend-1.dist-info"
    info.mkdir(parents=True)
    shutil.copy(odd_backend.__file__, site)
    metadata = "Metadata-Version: 2.1\nName: odd-backend\nVersion: 1\n"
    (info / "METADATA").write_text(metadata)
    (info / "entry_points.txt").write_text("[guided_plugin]\nodd = odd_backend\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(Path.cwd())]))
    pid = tmp_path / "pid"
    monkeypatch.setenv("ODD_PID", str(pid))
    return pid


def case(schema, *tests):
    given = [{"valid": valid, "data": data} for valid, data in tests]
    return json.dumps({"schema": schema, "tests": given})


@pytest.fixture
def measure(tmp_path):
    """The command with the demo's tokenizer, over these files: exit code, rows by
    name."""

    def call(files, *arguments):
        folder = tmp_path / "sample"
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(
                parents=True,
                exist_ok=True,
            )
            path.write_text(text)
        out = tmp_path / "out.json"
        options = [
            "--tokenizer",
            str(MODEL_DIR),
            "--json",
            str(out),
            *arguments,
        ]
        code = main([str(folder), *options])
        (run,) = json.loads(out.read_text())["runs"]
        return code, {row["name"]: row for row in run["files"]}

    return call


SAMPLE = {
    "a/passing.json": case(
        {"type": "integer"},
        (True, 12),
        (False, "12"),
        (True, -3),
    ),
    "a/refused.json": case({"type": "string", "pattern": "(a)\\1"}, (True, "aa")),
    "b/no-tests.json": case({"type": "boolean"}),
    "b/text.json": "no JSON",
}


def test_a_sample_is_measured_shown_and_written(measure, capsys):
    code, found = measure(SAMPLE, "--backend", "llguidance")
    assert code == 0
    assert {name: row["status"] for name, row in found.items()} == {
        "a/passing.json": "passing",
        "a/refused.json": "refused",
        "b/no-tests.json": "passing",
        "b/text.json": "died",
    }
    passing = found["a/passing.json"]
    assert passing["backend"] == "llguidance"
    assert passing["first_mask_ms"] > 0
    assert passing["masks"]["p50_us"] <= passing["masks"]["max_us"]
    assert "backreference" in found["a/refused.json"]["error"]
    assert found["b/no-tests.json"]["masks"] == {"count": 0}
    assert "JSONDecodeError" in found["b/text.json"]["error"]
    table = capsys.readouterr().out
    figures = next(line for line in table.splitlines() if "llguidance" in line).split()
    assert figures[:8] == [
        "llguidance",
        "2",
        "0",
        "0",
        "0",
        "1",
        "1",
        "0",
    ]
    assert all(float(part) > 0 for figure in figures[8:] for part in figure.split("/"))


def test_schemas_in_turns_with_llguidance(tmp_path, capsys):
    (tmp_path / "a.json").write_text(SAMPLE["a/passing.json"])
    (tmp_path / "b.json").write_text(SAMPLE["a/refused.json"])
    assert (
        paired(
            [
                str(tmp_path),
                "--tokenizer",
                str(MODEL_DIR),
            ]
        )
        == 0
    )
    first = capsys.readouterr().out.splitlines()[0]
    assert first.split() == ["schemas", "1.000", "1.000", "1.00"]


MATCHED = (True, 1), (False, 2)
LEAKED = (True, [1, 2]), (True, "é")
ODD = {
    "crash": (MATCHED, "died", "SIGABRT, before the first mask"),
    "raise": (MATCHED, "died", "RuntimeError('a bug in odd')"),
    "hang": (MATCHED, "died", "killed after 1 s, matching test 0"),
    "refuse": (MATCHED, "refused", "#: odd as well ("),
    "break its word": (MATCHED, "wrong", "the mask allows token 0, and it is refused"),
    "get stuck": (MATCHED, "wrong", "no token is allowed at token 0"),
    "stop early": (LEAKED, "early stop", "a stop token is allowed at token 1"),
    "stop late": (LEAKED, "early stop", "a stop token is missing at token 1"),
    "let special tokens in": (
        LEAKED,
        "early stop",
        "a special token that doesn't stop",
    ),
    "behave": (LEAKED, "passing", ""),
}
"""By what the backend does: the tests, the status, and what is said of it."""


def test_what_a_backend_gets_wrong_costs_its_own_row(odd, measure):
    files = {
        f"{title}.json": case({"title": title}, *tests)
        for title, (tests, *_) in ODD.items()
    }
    words = [
        "--backend",
        "odd",
        "--limit",
        "1",
        "--jobs",
        "2",
    ]
    code, found = measure(files, *words)
    assert code == 0
    for title, (_, status, said) in ODD.items():
        row = found[f"{title}.json"]
        told = [
            row["error"],
            *row["faults"],
            *row["early_stops"],
        ]
        assert row["status"] == status, title
        assert any(said in one for one in told), told
    with pytest.raises(ProcessLookupError):
        os.kill(int(odd.read_text()), 0)


def test_an_archive_writes_nowhere_else(tmp_path):
    members = {"../outside.json": b"1", "/root.json": b"2", "../../outside.json": b"3"}
    with tarfile.open(tmp_path / "deep.tar", "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    with open_sample(tmp_path / "deep.tar") as files:
        found = sorted(path.read_bytes() for path in files.values())
        assert found == [b"1", b"2", b"3"]
        assert len({path.parent for path in files.values()}) == 1
    assert list(tmp_path.rglob("*.json")) == []


def test_texts_as_tokens(byte_vocabulary):
    pieces = byte_vocabulary.tokens
    found = [pieces[t] for t in TextTokens(byte_vocabulary)('{"é":true')]
    assert found == [
        b'{"',
        "é".encode(),
        b'":',
        b"true",
    ]
    # An encoder that changes the text, or takes it for a control token, isn't used for
    # that text.
    for wrong in ([1], [byte_vocabulary.stop_token_ids[0]]):
        tokens = TextTokens(
            Vocabulary(
                pieces,
                (266,),
                frozenset({266}),
                encode=lambda _, w=wrong: w,
            )
        )
        assert b"".join(pieces[t] for t in tokens("</s>")) == b"</s>"
        assert 266 not in tokens("</s>")
    with pytest.raises(VocabularyError, match="no token spells byte 0x78"):
        TextTokens(Vocabulary.from_tokens([b"a", b"</s>"], [1]))("x")
