"""`benchmarks.answers` with a real vLLM and a user's tasks."""

import json

import pytest

pytest.importorskip("vllm")

from benchmarks.answers.__main__ import main
from guided_plugin.demo import MODEL_DIR

# One that each way answers right, and one that is refused: a grammar cannot look
# behind.
SCHEMAS = {
    "taken": {"enum": ["ab"]},
    "refused": {"type": "string", "pattern": "(?<=a)b"},
}


def test_tasks_of_a_file_are_answered_and_a_refused_one_leaves_the_others(
    tmp_path, capsys
):
    tasks, out, texts = (
        tmp_path / name for name in ("own.jsonl", "out.json", "texts.jsonl")
    )
    common = {"prompt": "x", "judge": {"equals": "ab"}, "max_tokens": 16}
    lines = [
        {**common, "id": name, "schema": schema} for name, schema in SCHEMAS.items()
    ]
    tasks.write_text(
        "\n".join(json.dumps(line) for line in [*lines, {**lines[0], "id": "again"}])
    )
    given = [
        "--model",
        str(MODEL_DIR),
        "--tasks",
        str(tasks),
        "--ways",
        "unguided,compact,flexible+close",
    ]
    assert main([*given, "--out", str(out), "--texts", str(texts)]) == 0, (
        capsys.readouterr().err
    )
    figures = {one["way"]: one for one in json.loads(out.read_text())["figures"]}
    found = {
        way: (one["right"], one["refused"], one["failed"])
        for way, one in figures.items()
    }
    assert found == {
        "unguided": (0, 0, 0),
        "compact": (2, 1, 0),
        "flexible+close": (2, 1, 0),
    }
    told = [json.loads(line) for line in texts.read_text().splitlines()]
    (refused,) = (
        one for one in told if one["finish"] == "refused" and one["way"] == "compact"
    )
    assert refused["id"] == "refused"
    assert "pattern" in refused["reason"]
    assert {one["id"] for one in told if one["right"]} == {"taken", "again"}
