"""The command line: what it prints, its exit codes, and one-line errors for bad input."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer

from guided_plugin.cli import app, main
from guided_plugin.demo import DEMOS, MODEL_DIR

ROOT = Path(__file__).resolve().parents[2]
MODEL = ("--model", str(MODEL_DIR), "--prompt", "Person as JSON: ")
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
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The console script, in this process; on a terminal wide enough for one-line cells."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["guided-plugin", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        return Result(int(stop.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], Path]:
    """Write a file: text, bytes, or anything else as JSON."""

    def call(name: str, content: Any) -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return call


Write = Callable[[str, Any], Path]


def _is_error(result: Result, code: int, *parts: str) -> None:
    """One line on stderr that says all of this, nothing on stdout, this exit code."""
    assert result.code == code, result
    assert result.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", result.err), result.err
    for part in parts:
        assert part in result.err


def test_it_runs_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-c", "from guided_plugin.cli import main; main()", "check", "no-such-file"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: no-such-file: can't be read: No such file or directory\n"


# demo


def test_demo_json(run: Run) -> None:
    result = run("demo", "--json")
    assert (result.code, result.err.strip()) == (0, "")
    found = result.json
    assert list(found) == ["seed", "ms_per_token", "demos"]
    assert found["seed"] == 0
    assert list(found["ms_per_token"]) == ["unguided", "guided"]
    assert min(found["ms_per_token"].values()) > 0
    assert [(d["name"], d["prompt"]) for d in found["demos"]] == [(d.name, d.prompt) for d in DEMOS]
    for shown, entry in zip(found["demos"], DEMOS, strict=True):
        assert list(shown) == ["name", "prompt", "unguided", "guided"]
        assert list(shown["unguided"]) == list(shown["guided"]) == ["text", "valid", "why"]
        assert (shown["guided"]["valid"], shown["guided"]["why"]) == (True, None)
        jsonschema.validate(json.loads(shown["guided"]["text"]), entry.schema)
    # The demo has to show a difference: the person comes out with single quotes when unguided.
    assert not found["demos"][0]["unguided"]["valid"]
    assert "refused at" in found["demos"][0]["unguided"]["why"]


def test_demo_text(run: Run) -> None:
    result = run("demo")
    assert result.code == 0
    for entry in DEMOS:
        assert f"{entry.title} - prompt: {entry.prompt!r}" in result.out
    assert len(re.findall(r"\bvalid\b", result.out)) >= len(DEMOS)
    assert "refused at" in result.out
    assert re.search(r"\d+\.\d\d ms guided", result.out)


def test_demo_seeds_differ_and_repeat(run: Run) -> None:
    first, again, other = (run("demo", "--json", "--seed", seed).json["demos"] for seed in "445")
    assert first == again
    assert first != other


def test_demo_exits_1_when_a_guided_output_is_not_valid(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from guided_plugin.cli import demo

    monkeypatch.setattr(demo, "_verdict", lambda *_: "refused [here]")
    result = run("demo")
    assert result.code == 1
    assert "refused [here]" in result.out


# generate


def test_generate_with_a_schema(run: Run, write: Write) -> None:
    result = run("generate", *MODEL, "--schema", write("s.json", PERSON))
    assert (result.code, result.err.strip()) == (0, "")
    jsonschema.validate(json.loads(result.out), PERSON)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--regex", "[0-9]{3}-x", "[0-9]{3}-x"),
        ("--choice", "left, right", "left|right"),
    ],
)
def test_generate_with_a_regex_or_a_choice(run: Run, option: str, value: str, expected: str) -> None:
    result = run("generate", *MODEL, option, value)
    assert (result.code, result.err.strip()) == (0, "")
    assert re.fullmatch(f"(?:{expected})\n", result.out)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("g.ebnf", 'root ::= "<" [a-c]{2,4} ">"'),
        ("g.GBNF", 'root ::= "<" [a-c]{2,4} ">"'),
        ("g.lark", 'start: "<" /[a-c]{2,4}/ ">"'),
    ],
)
def test_generate_with_a_grammar(run: Run, write: Write, name: str, source: str) -> None:
    result = run("generate", *MODEL, "--grammar", write(name, source))
    assert (result.code, result.err.strip()) == (0, "")
    assert re.fullmatch(r"<[a-c]{2,4}>\n", result.out)


def test_generate_without_a_constraint(run: Run) -> None:
    result = run("generate", *MODEL, "--max-new-tokens", "6", "--json")
    assert result.code == 0  # being cut is no failure when nothing was promised
    assert result.json["spec"] is None
    assert result.json["outputs"][0]["tokens"] == 6


def test_generate_json(run: Run) -> None:
    result = run("generate", *MODEL, "--regex", "[0-9]{4}", "--n", "3", "--json")
    assert result.code == 0
    found = result.json
    assert list(found) == ["prompt", "spec", "outputs"]
    assert (found["prompt"], found["spec"]) == (MODEL[-1], {"regex": "[0-9]{4}"})
    assert len(found["outputs"]) == 3
    for output in found["outputs"]:
        assert list(output) == ["text", "tokens", "stopped", "error"]
        assert re.fullmatch("[0-9]{4}", output["text"])
        assert (output["stopped"], output["error"]) == (True, None)
        assert 1 <= output["tokens"] <= 4


def test_generate_prints_a_line_an_output(run: Run) -> None:
    result = run("generate", *MODEL, "--regex", "[a-z]{2}", "--n", "2")
    assert re.fullmatch(r"[a-z]{2}\n[a-z]{2}\n", result.out)


def test_generate_flexible_allows_whitespace(run: Run, write: Write) -> None:
    schema = write("s.json", {"const": {"a": [1, 2]}})
    prompt = ("generate", "--model", MODEL_DIR, "--prompt", "", "--json", "--schema", schema)
    assert run(*prompt).json["outputs"][0]["text"] == '{"a":[1,2]}'
    assert run(*prompt, "--flexible").json["spec"]["whitespace"] == "flexible"


def test_generate_says_when_outputs_are_cut(run: Run) -> None:
    result = run("generate", *MODEL, "--regex", "[a-z]{40}", "--max-new-tokens", "2", "--n", "2")
    assert result.code == 1
    assert len(result.out.splitlines()) == 2  # what there is isn't lost
    expected = "error: 2 of 2 outputs ran into --max-new-tokens and are incomplete (raise it)\n"
    assert result.err == expected


def test_generate_json_is_whole_when_outputs_are_cut(run: Run) -> None:
    result = run("generate", *MODEL, "--regex", "[a-z]{40}", "--max-new-tokens", "2", "--json")
    assert result.code == 1
    assert result.json["outputs"][0]["stopped"] is False


def test_generate_takes_one_constraint(run: Run) -> None:
    result = run("generate", *MODEL, "--regex", "a", "--choice", "a,b")
    _is_error(result, 2, "only one of --schema, --regex, --choice and --grammar")


def test_generate_refuses_a_bad_regex(run: Run) -> None:
    _is_error(run("generate", *MODEL, "--regex", "[a-z"), 1, "regex")


def test_generate_refuses_an_empty_choice(run: Run) -> None:
    _is_error(run("generate", *MODEL, "--choice", "a,"), 2, "--choice", "'a,'")


def test_generate_refuses_a_grammar_of_unknown_syntax(run: Run, write: Write) -> None:
    path = write("g.txt", 'root ::= "a"')
    _is_error(run("generate", *MODEL, "--grammar", path), 2, str(path), ".ebnf, .gbnf, .lark")


def test_generate_refuses_a_wrong_sampling_option(run: Run) -> None:
    _is_error(run("generate", *MODEL, "--top-p", "3"), 2, "top_p", "not 3.0")


def test_an_output_that_fails_is_told_after_the_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from guided_plugin.errors import RequestError
    from guided_plugin.hosts.loop import DecodeLoop

    plain = DecodeLoop.run

    def failing(self: DecodeLoop, *arguments: Any, **options: Any) -> Any:
        outputs = plain(self, *arguments, **options)
        return [outputs[0], replace(outputs[1], error=RequestError("went wrong"))]

    monkeypatch.setattr(DecodeLoop, "run", failing)
    result = run("generate", *MODEL, "--regex", "ab", "--n", "2")
    assert (result.code, result.out, result.err) == (1, "ab\nab\n", "error: went wrong\n")


# check


def test_check_ok(run: Run, write: Write) -> None:
    result = run("check", write("s.json", PERSON), "--instance", write("i", '{"name":"é","on":true}'))
    assert result.code == 0
    assert re.search(r"^compiles with llguidance in \d+\.\d ms, \d+\.\d KiB$", result.out, re.M)
    assert "accepted" in result.out
    assert "warning" not in result.out


def test_check_tells_where_an_instance_is_refused(run: Run, write: Write) -> None:
    good, bad = write("good", '{"name":"b","on":true}'), write("bad", '{"name":"é","on":1}')
    result = run("check", write("s.json", PERSON), "--instance", good, "--instance", bad, "--json")
    assert result.code == 1
    found = result.json["instances"]
    assert [(i["name"], i["accepted"], i["position"]) for i in found] == [
        (str(good), True, None),
        (str(bad), False, len('{"name":"é","on":')),
    ]


def test_check_shows_every_verdict(run: Run, write: Write) -> None:
    bad = write("[bad]", '{"name":"é","on":1}')
    result = run("check", write("s.json", PERSON), "--instance", bad)
    assert result.code == 1
    assert "refused at character 17" in result.out
    assert "[bad]" in result.out  # brackets are no markup


def test_check_takes_pretty_printed_json_unless_raw(run: Run, write: Write) -> None:
    pretty = write("i", json.dumps({"name": "b", "on": False}, indent=2) + "\n")
    arguments = ("check", write("s.json", PERSON), "--instance", pretty, "--json")
    assert run(*arguments).code == 0
    raw = run(*arguments, "--raw")
    assert (raw.code, raw.json["instances"][0]["position"]) == (1, 1)
    one_line = write("j", pretty.read_text().rstrip("\n"))
    assert run(*arguments[:3], one_line, "--raw", "--flexible").code == 0
    assert run(*arguments, "--flexible").json["spec"]["whitespace"] == "flexible"


def test_check_open_allows_other_properties(run: Run, write: Write) -> None:
    extra = write("i", '{"name":"b","on":true,"more":1}')
    arguments = ("check", write("s.json", PERSON), "--instance", extra)
    assert run(*arguments).code == 1
    assert run(*arguments, "--open").code == 0


def test_check_warns_of_misspelt_keywords(run: Run, write: Write) -> None:
    path = write("s.json", {"type": "array", "items": {"type": "string", "maxLenght": 3}})
    result = run("check", path)
    assert result.code == 0
    expected = "warning: #/items/maxLenght: unknown keyword, ignored (did you mean 'maxLength'?)"
    assert expected in result.out


@pytest.mark.parametrize(
    ("name", "content", "instance"),
    [
        (
            "s.json",
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}},
            "12",
        ),
        ("s.json", {"type": "json_object"}, '{"a": 1}'),
        ("s.json", {"type": "regex_schema", "regex_schema": "[0-9]+"}, "12"),
        ("s.json", {"json_schema": {"type": "integer"}, "whitespace": "flexible"}, "12"),
        ("s.json", {"json": {"type": "integer"}}, "12"),
        ("s.json", {"choice": ["12", "13"]}, "12"),
        ("s.json", {"regex": "[0-9]+"}, "12\n"),
        ("s.json", {"grammar": "start: /[0-9]+/", "syntax": "lark"}, "12"),
        ("s.json", {"type": "integer"}, "12"),
        ("s.json", True, "[12]"),
        ("s.json", b'\xef\xbb\xbf{"type": "integer"}', "12"),  # a byte order mark
        ("s.lark", "start: /[0-9]+/", "12"),
        ("s.ebnf", "root ::= [0-9]+", "12"),
        ("s.gbnf", "root ::= [0-9]+", "12"),
    ],
)
def test_check_takes_every_form(run: Run, write: Write, name: str, content: Any, instance: str) -> None:
    spec = write(name, content)
    assert run("check", spec, "--instance", write("good", instance)).code == 0
    assert run("check", spec, "--instance", write("bad", "x")).code == 1


def test_check_shows_a_grammar_on_one_line(run: Run, write: Write) -> None:
    result = run("check", write("g.ebnf", 'root ::= a\na ::= "b"\n'))
    assert result.out.startswith('grammar root ::= a a ::= "b"\ncompiles with ')


def test_check_json(run: Run, write: Write) -> None:
    result = run("check", write("s.json", {"type": "integer", "minmum": 1}), "--json")
    assert result.code == 0
    found = result.json
    assert list(found) == [
        "ok",
        "spec",
        "backend",
        "reason",
        "compile_ms",
        "memory_bytes",
        "warnings",
        "error",
        "instances",
        "keywords",
    ]
    assert (found["ok"], found["backend"], found["error"], found["instances"]) == (
        True,
        "llguidance",
        None,
        [],
    )
    assert found["spec"] == {"json_schema": {"type": "integer", "minmum": 1}}
    assert any("did you mean 'minimum'" in warning for warning in found["warnings"])


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("s.json", False, "allows no output"),
        ("s.json", {"regex": "[a-z"}, "regex"),
        ("g.ebnf", 'root ::= "a', "line 1"),
        ("g.lark", "nothing: other", "grammar"),
    ],
)
def test_check_exits_1_for_a_spec_that_does_not_compile(
    run: Run, write: Write, name: str, content: Any, part: str
) -> None:
    path = write(name, content)
    result = run("check", path)
    assert result.code == 1
    refusal = result.out.splitlines()[1]
    assert refusal.startswith("refused: ")
    assert part in refusal
    assert "compiles" not in result.out
    as_json = run("check", path, "--json")
    assert as_json.code == 1
    assert as_json.json["ok"] is False
    assert list(as_json.json["error"]) == ["type", "what", "where", "hint"]
    assert part in " ".join(as_json.json["error"].values())


# Bad input


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"\xff\xfe{}", ["is not UTF-8 text (byte 0)"]),
        (b'{"type":\n  "obj', ["line 2, column 3", "is not JSON"]),
        (b"", ["line 1, column 1", "is not JSON"]),
        (b"[" * 100_000, ["JSON"]),
        (b'{"properties": {"a": {"type": "intger"}}}', ["#/properties/a/type", "did you mean 'integer'"]),
        (b'{"json_schema": {"type": "integer"}, "whitespac": 1}', ["'whitespac'", "'whitespace'"]),
        (b'{"regex": "a", "whitespace": "flex"}', ["whitespace", "'flex'", "'flexible'"]),
        (b'{"regex": "a", "choice": ["a"]}', ["more than one constraint"]),
        (b'{"type": "json_schema"}', ["has no 'json_schema'"]),
        (b'{"type": "text"}', ["plain text"]),
        (b"[1]", ["list"]),
    ],
)
def test_bad_spec_file(run: Run, write: Write, content: bytes, parts: list[str]) -> None:
    path = write("spec.json", content)
    _is_error(run("check", path), 2, str(path), *parts)


def test_spec_file_that_is_not_there(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    _is_error(run("check", path), 2, f"{path}: can't be read: No such file or directory")


def test_spec_file_that_is_a_folder(run: Run, tmp_path: Path) -> None:
    _is_error(run("check", tmp_path), 2, f"{tmp_path}: can't be read: Is a directory")


def test_spec_file_that_may_not_be_read(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("s.json", {})

    def refuse(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)  # file modes don't bind root, who may run the tests
    _is_error(run("check", path), 2, f"{path}: can't be read: Permission denied")


def test_instance_that_is_not_there(run: Run, write: Write, tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    _is_error(run("check", write("s.json", {}), "--instance", missing), 2, f"{missing}: can't be read")


def test_generate_refuses_a_schema_that_allows_nothing(run: Run, write: Write) -> None:
    _is_error(run("generate", *MODEL, "--schema", write("s.json", False)), 1, "allows no output")


def test_tokenizer_folder_that_is_not_there(run: Run, write: Write, tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    result = run("check", write("s.json", {}), "--tokenizer", missing)
    _is_error(result, 2, f"{missing}: is no folder")


def test_tokenizer_folder_that_is_none(run: Run, write: Write, tmp_path: Path) -> None:
    result = run("check", write("s.json", {}), "--tokenizer", tmp_path)
    _is_error(result, 2, f"{tmp_path}: holds no tokenizer (no tokenizer.json in it)")


def test_tokenizer_that_is_broken(run: Run, write: Write, tmp_path: Path) -> None:
    write("tokenizer.json", "{")
    result = run("check", write("s.json", {}), "--tokenizer", tmp_path)
    _is_error(result, 2, f"{tmp_path}: holds no tokenizer that transformers can load: ")


def test_model_folder_that_is_not_there(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    _is_error(run("generate", "--model", missing, "--prompt", "x"), 2, f"{missing}: is no folder")


def test_model_folder_that_is_none(run: Run, demo_tokenizer: Any, tmp_path: Path) -> None:
    demo_tokenizer.save_pretrained(tmp_path)
    result = run("generate", "--model", tmp_path, "--prompt", "x")
    _is_error(result, 2, f"{tmp_path}: holds no model (no config.json in it)")


def test_model_that_is_broken(run: Run, write: Write, demo_tokenizer: Any, tmp_path: Path) -> None:
    demo_tokenizer.save_pretrained(tmp_path)
    write("config.json", {"model_type": "llama"})
    result = run("generate", "--model", tmp_path, "--prompt", "x")
    _is_error(result, 2, f"{tmp_path}: holds no model that transformers can load: ")


@pytest.fixture(scope="session")
def narrow_model(
    quiet_transformers: Any, demo_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A model with 100 logits beside a tokenizer that has many more tokens."""
    folder = tmp_path_factory.mktemp("narrow")
    config = quiet_transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=1,
    )
    quiet_transformers.LlamaForCausalLM(config).save_pretrained(folder)
    demo_tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("command", [("generate", "--prompt", "x"), ("bench", "loop")])
def test_model_with_fewer_logits_than_tokens(run: Run, narrow_model: Path, command: tuple[str, ...]) -> None:
    result = run(*command, "--model", narrow_model)
    _is_error(result, 2, "100 columns", "don't belong together")


@pytest.mark.parametrize(
    "command", [("demo",), ("generate", *MODEL), ("bench", "loop", "--shape", "qwen3-0.6b")]
)
def test_device_that_is_none(run: Run, command: tuple[str, ...]) -> None:
    result = run(*command, "--device", "gpux")
    _is_error(result, 2, "--device: 'gpux' is no device (cpu or cuda)")


def test_device_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("No CUDA GPUs are available\nmore that nobody needs")

    monkeypatch.setattr(torch, "empty", refuse)
    result = run("demo", "--device", "cuda")
    _is_error(result, 2, "--device: 'cuda' can't be used: No CUDA GPUs are available\n")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("chekc",), "No such command 'chekc'"),
        (("check",), "Missing argument"),
        (("check", "x", "--bogus"), "No such option"),
        (("generate", "--model", "x"), "Missing option '--prompt'"),
        (("generate", *MODEL, "--n", "0"), "--n"),
        (("bench", "loop", "--steps", "2"), "--steps"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...], part: str) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert part in result.err
    assert "Usage: guided-plugin" in result.err
    assert "Traceback" not in result.err


# Help


def _commands() -> list[tuple[str, ...]]:
    found = []

    def visit(command: Any, path: tuple[str, ...]) -> None:
        found.append(path)
        for name, child in getattr(command, "commands", {}).items():
            visit(child, (*path, name))

    visit(typer.main.get_command(app), ())
    return found


def _command(path: tuple[str, ...]) -> Any:
    command: Any = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    return command


def test_the_commands() -> None:
    assert _commands() == [
        (),
        ("demo",),
        ("generate",),
        ("check",),
        ("maskbench",),
        ("trace",),
        ("bench",),
        ("bench", "loop"),
        ("bench", "transformers"),
        ("bench", "kernel"),
        ("bench", "soak"),
        ("bench", "vllm"),
    ]


@pytest.mark.parametrize("path", _commands(), ids=lambda path: " ".join(path) or "root")
def test_help_tells_every_option_and_command(run: Run, path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert (result.code, result.err) == (0, "")
    command = _command(path)
    shown = " ".join(result.out.split())
    assert " ".join(command.help.split()) in shown
    for param in command.params:
        assert param.help, f"{param.name} has no help text"
        for name in param.opts:
            assert name in shown
        assert " ".join(param.help.split()) in shown
    for name, child in getattr(command, "commands", {}).items():
        assert re.search(rf"^  {name} +\S", result.out, re.M)
        assert child.get_short_help_str(200).rstrip(".") in shown  # not cut off
    assert "..." not in result.out.replace("[ARGS]...", "")
    assert str(ROOT) not in result.out  # no path of this machine


def _docs_script() -> Any:
    location = importlib.util.spec_from_file_location("make_cli_docs", ROOT / "scripts/make_cli_docs.py")
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


def test_docs_are_up_to_date() -> None:
    written = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert written == _docs_script().render(), "run: .venv/bin/python scripts/make_cli_docs.py"


def test_docs_hold_every_option() -> None:
    page = _docs_script().render()
    for path in _commands():
        command = _command(path)
        if hasattr(command, "commands"):
            continue
        section = page.split(f"## {' '.join(('guided-plugin', *path))}\n")[1].split("\n## ")[0]
        for param in command.params:
            assert f"`{param.opts[0]}" in section
            assert param.help in section
