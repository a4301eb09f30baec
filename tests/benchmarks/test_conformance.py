"""Raw files of conformance, and samples of real schemas."""

import gzip
import json

import pytest

from benchmarks.closing import main as closing
from benchmarks.conformance.__main__ import main
from guided_plugin.demo import MODEL_DIR


def case(schema, *tests):
    given = [{"valid": valid, "data": data} for valid, data in tests]
    return json.dumps({"schema": schema, "tests": given})


SAMPLE = {
    "a/passing.json": case(
        {"type": "integer"},
        (True, 12),
        (False, "12"),
        (True, -3),
    ),
    "a/refused.json": case({"type": "string", "pattern": "(a)\\1"}, (True, "aa")),
    "b/no-tests.json": case({"type": "boolean"}),
    "b/wrong.json": case({"type": "integer"}, (True, "1"), (False, 2)),
}


@pytest.fixture
def sample(tmp_path):
    """A folder with these files."""
    folder = tmp_path / "sample"
    for name, text in SAMPLE.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_sample_is_judged_and_written(sample, tmp_path):
    main(["--sample", str(sample)], tmp_path)
    (file,) = tmp_path.glob("*-conformance-maskbench.json.gz")
    runs = json.loads(gzip.decompress(file.read_bytes()))["runs"]
    wrong = {"wrong_accepts": 1, "wrong_refusals": 1, "refused": 1}
    right = {"files": 4, "tests": 6, "passing": 2, "early_stops": 0, "died": 0}
    ours, *libraries = [
        {name: run[name] for name in run if name != "named"} for run in runs
    ]
    assert ours == {"engine": "auto", **wrong, **right}
    assert [one["engine"] for one in libraries] == ["raw-llguidance", "raw-xgrammar"]
    refused, judged = runs[0]["named"]
    assert "backreference" in refused["error"]
    assert (judged["name"], judged["error"]) == ("b/wrong.json", "")


def test_the_suite_is_judged_and_written(tmp_path):
    group = {"description": "d", "schema": {"type": "integer"}}
    cases = {"valid": True, "data": 1}, {"valid": False, "data": "1"}
    folder = tmp_path / "tests" / "draft7"
    folder.mkdir(parents=True)
    (folder / "type.json").write_text(json.dumps([{**group, "tests": cases}]))
    main(["--suite", str(tmp_path)], tmp_path)
    (file,) = tmp_path.glob("*-conformance-suite.json.gz")
    rows = json.loads(gzip.decompress(file.read_bytes()))["suite"]
    found = {row["engine"]: row for row in rows if row["draft"] == "draft7"}
    assert list(found) == ["auto", "raw-llguidance", "raw-xgrammar"]
    for row in found.values():
        counts = row["schemas"], row["valid_accepted"], row["invalid_refused"]
        assert counts == (1, 1, 1)


def test_ends_near_a_limit_are_judged_and_counted(sample, capsys):
    assert closing([str(sample), "--tokenizer", str(MODEL_DIR)]) == 0
    result = json.loads(capsys.readouterr().out)
    counts = result["counts"]
    # Of three schemas that compile: by two models, with five limits.
    assert (counts["schemas"], result["bad"]) == (3, [])
    assert counts["valid"] + counts.get("too little room", 0) == 3 * 2 * 5
