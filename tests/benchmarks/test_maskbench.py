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
from benchmarks.maskbench.child import FileBench
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
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: odd-backend\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text("[guided_plugin]\nodd = odd_backend\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(Path.cwd())]))
    pid = tmp_path / "pid"
    monkeypatch.setenv("ODD_PID", str(pid))
    return pid


def case(schema, *tests):
    return json.dumps(
        {
            "schema": schema,
            "tests": [{"valid": valid, "data": data} for valid, data in tests],
        }
    )


SAMPLE = {
    "a/passing.json": case({"type": "integer"}, (True, 12), (False, "12"), (True, -3)),
    "a/refused.json": case({"type": "string", "pattern": "(a)\\1"}, (True, "aa")),
    "b/no-tests.json": case({"type": "boolean"}),
    "b/unsatisfiable.json": case({"enum": []}),
    "b/text.json": "no JSON",
}


@pytest.fixture
def folder(tmp_path):
    """A sample of the format, with a file that isn't."""
    for name, text in SAMPLE.items():
        path = tmp_path / "sample" / "deep" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "sample"


@pytest.fixture
def measure(capsys, monkeypatch):
    """The command with the demo's tokenizer: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        code = main([*map(str, arguments), "--tokenizer", str(MODEL_DIR)])
        return code, *capsys.readouterr()

    return call


def rows(path):
    (run,) = json.loads(path.read_text())["runs"]
    return {row["name"]: row for row in run["files"]}


def test_a_sample_measured_and_written(measure, folder, tmp_path):
    out = tmp_path / "new" / "out.json"
    code, table, errors = measure(folder, "--json", out, "--backend", "llguidance")
    assert (code, errors.strip()) == (0, "")
    found = rows(out)
    assert {name: row["status"] for name, row in found.items()} == {
        "a/passing.json": "passing",
        "a/refused.json": "refused",
        "b/no-tests.json": "passing",
        "b/text.json": "died",
        "b/unsatisfiable.json": "refused",
    }
    passing = found["a/passing.json"]
    assert (passing["backend"], passing["reason"]) == (
        "llguidance",
        "the configuration names it",
    )
    assert passing["first_mask_ms"] > 0
    assert (
        passing["masks"]["p50_us"]
        <= passing["masks"]["p99_us"]
        <= passing["masks"]["max_us"]
    )
    assert "backreference" in found["a/refused.json"]["error"]
    assert found["a/refused.json"]["first_mask_ms"] is None
    assert found["b/no-tests.json"]["first_mask_ms"] > 0
    assert found["b/no-tests.json"]["masks"] == {"count": 0}
    result = json.loads(out.read_text())
    assert result["environment"]["versions"]["llguidance"]
    assert (result["files"], result["jobs"], result["limit_seconds"]) == (5, 1, 60.0)
    assert 0 < result["runs"][0]["empty_call_us"] < 100
    figures = next(line for line in table.splitlines() if "llguidance" in line).split()
    assert figures[:7] == ["llguidance", "2", "0", "0", "0", "2", "1"]
    assert len(figures) == 9
    assert all(float(part) > 0 for figure in figures[7:] for part in figure.split("/"))
    assert "JSONDecodeError" in found["b/text.json"]["error"]


def test_schemas_in_turns_with_llguidance(folder, capsys):
    (folder / "deep/b/text.json").unlink()
    assert paired([str(folder), "--tokenizer", str(MODEL_DIR)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.split() == ["schemas", "2.000", "2.000", "1.00"]


def test_what_hangs_or_crashes_costs_its_own_row(odd, measure, tmp_path):
    titles = [
        "crash",
        "raise",
        "hang",
        "refuse",
        "break its word",
        "get stuck",
        "behave",
    ]
    for place, title in enumerate(titles):
        (tmp_path / f"{place}.json").write_text(
            case({"title": title}, (True, 1), (False, 2))
        )
    out = tmp_path / "result"
    code, table, _ = measure(
        tmp_path, "--backend", "odd", "--limit", "1", "--jobs", "2", "--json", out
    )
    assert code == 0
    crash, raised, hang, refused, liar, stuck, behaved = rows(out).values()
    assert (crash["status"], crash["error"]) == (
        "died",
        "SIGABRT, before the first mask",
    )
    assert raised["status"] == "died"
    assert raised["error"].startswith("exit code 1, before the first mask: ")
    assert "RuntimeError('a bug in odd')" in raised["error"]
    assert (hang["status"], hang["error"]) == (
        "died",
        "killed after 1 s, matching test 0",
    )
    with pytest.raises(ProcessLookupError):
        os.kill(int(odd.read_text()), 0)
    assert refused["status"] == "refused"
    assert refused["error"].startswith("#: odd as well (")
    assert (liar["status"], liar["wrong_refusals"]) == ("wrong", [0])
    assert liar["faults"] == [
        f"test {i}: the mask allows token 0, and it is refused" for i in (0, 1)
    ]
    assert stuck["faults"] == [
        f"test {i}: no token is allowed at token 0" for i in (0, 1)
    ]
    # Its mask allows everything: also what isn't valid.
    assert (behaved["status"], behaved["wrong_accepts"]) == ("wrong", [1])
    assert behaved["reason"] == "the configuration names it; threads 1"
    assert "odd 0 1 2 0 1 3" in " ".join(table.split())
    assert "odd: instances where a matcher contradicted itself or got stuck: 4" in table


def test_a_backend_that_leaks_special_tokens_is_found(odd, measure, tmp_path):
    titles = ["stop early", "stop late", "let special tokens in", "behave"]
    for place, title in enumerate(titles):
        (tmp_path / f"{place}.json").write_text(
            case({"title": title}, (True, [1, 2]), (True, "é"))
        )
    out = tmp_path / "result"
    code, table, _ = measure(tmp_path, "--backend", "odd", "--json", out)
    assert code == 0
    early, late, special, behaved = rows(out).values()
    for row, what in (
        (early, "a stop token is allowed at token 1, and the output is not complete"),
        (late, "a stop token is missing at token 1, and the output is complete"),
        (special, "a special token that doesn't stop is allowed at token 1"),
    ):
        assert row["status"] == "early stop"
        assert row["early_stops"] == [f"test {index}: {what}" for index in (0, 1)]
    assert (behaved["status"], behaved["early_stops"]) == ("passing", [])
    summary = json.loads(out.read_text())["runs"][0]["summary"]
    assert (summary["passing"], summary["early_stops"]) == (1, 3)
    assert "odd 1 0 1 3 0 0" in " ".join(table.split())


def test_compare_tells_the_files_that_flipped(odd, measure, tmp_path):
    sample = tmp_path / "sample"
    old = tmp_path / "old"
    new = tmp_path / "new"
    sample.mkdir()
    (sample / "1.json").write_text(case({}, (True, 1)))
    (sample / "2.json").write_text(case({"title": "refuse"}, (True, 1)))
    assert measure(sample, "--backend", "odd", "--json", old)[0] == 0
    (sample / "1.json").write_text(case({}, (False, 1)))
    (sample / "2.json").write_text(case({}, (True, 1)))
    code, table, _ = measure(
        sample, "--backend", "odd", "--limit", "5", "--json", new, "--compare", old
    )
    assert code == 1
    assert table.splitlines()[-4:] == [
        "limit_seconds: 60.0 then, 5.0 now",
        "files that flipped: 2; of them, passed before: 1",
        "odd 1.json: passing -> wrongly accepts tests 0",
        "odd 2.json: refused -> passing",
    ]
    assert [
        flip["name"] for flip in json.loads(new.read_text())["compared"]["flips"]
    ] == ["1.json", "2.json"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--backend", "auto,xgramar"), "(did you mean 'xgrammar'?)"),
        (("--json", "."), "error: --json: can't write .: Is a directory"),
        (("--compare", "none.json"), "none.json: can't be read"),
    ],
)
def test_bad_input_is_told_before_anything_is_measured(
    measure, tmp_path, monkeypatch, option, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "a.json").write_text(case({}))
    code, out, error = measure("sample", *option)
    assert (code, out) == (2, "")
    assert message in error
    assert error.count("\n") == 1


def archive(path, members, mode="w:xz"):
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_an_archive_writes_nowhere_else(tmp_path):
    members = {"../outside.json": b"1", "/root.json": b"2", "../../outside.json": b"3"}
    with open_sample(archive(tmp_path / "deep.tar", members, "w")) as files:
        assert sorted(path.read_bytes() for path in files.values()) == [
            b"1",
            b"2",
            b"3",
        ]
        assert len({path.parent for path in files.values()}) == 1
    assert list(tmp_path.rglob("*.json")) == []


@pytest.fixture(scope="module")
def bench(byte_vocabulary):
    """In this process, with a vocabulary that has no encoder."""
    return FileBench(byte_vocabulary, "llguidance")


def test_instances_are_matched_as_python_writes_them(bench, tmp_path):
    path = tmp_path / "file.json"
    schema = {
        "type": "object",
        "properties": {"b": {"pattern": "^\\W*$"}, "a": {"type": "string"}},
    }
    # In their own order, with spaces, as characters; open objects.
    tests = (
        (True, {"b": "", "a": "é", "c": [1.0, None]}),
        (False, {"a": 1}),
        (True, {"b": "--"}),
    )
    path.write_text(case(schema, *tests))
    result = bench.measure(path)
    assert (result.status, result.error, result.faults) == ("passing", "", [])
    texts = ['{"b": "", "a": "é", "c": [1.0, null]}', '{"a": ', '{"b": "--"}']
    greedy = TextTokens(Vocabulary.from_tokens(bench._tokens._vocabulary.tokens, [0]))
    # A mask a token and one at the end; the wrong token has one too.
    assert len(result.mask_ns) == sum(len(greedy(text)) + 1 for text in texts)
    assert (result.mask_ns > 0).all()


def test_texts_as_tokens(byte_vocabulary):
    pieces = byte_vocabulary.tokens
    found = [pieces[t] for t in TextTokens(byte_vocabulary)('{"é":true')]
    assert found == [b'{"', "é".encode(), b'":', b"true"]
    # An encoder that changes the text, or takes it for a control token, isn't used for
    # that text.
    for wrong in ([1], [byte_vocabulary.stop_token_ids[0]]):
        tokens = TextTokens(
            Vocabulary(pieces, (266,), frozenset({266}), encode=lambda _, w=wrong: w)
        )
        assert b"".join(pieces[t] for t in tokens("</s>")) == b"</s>"
        assert 266 not in tokens("</s>")
    right = TextTokens(
        Vocabulary(pieces, (266,), encode=lambda text: list(text.encode()))
    )
    assert right("true") == list(b"true")
    with pytest.raises(VocabularyError, match="no token spells byte 0x78"):
        TextTokens(Vocabulary.from_tokens([b"a", b"</s>"], [1]))("x")
