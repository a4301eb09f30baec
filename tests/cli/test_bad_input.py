"""Input that can't be used ends in one line on stderr and exit code 2, a bad spec with
exit code 1; with `--json` in a document too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_it_runs_in_a_process_of_its_own():
    command = [
        sys.executable,
        "-c",
        "from guided_plugin.cli import main; main()",
        "check",
        "no-such-file",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert (
        done.stderr == "error: no-such-file: can't be read: No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b'{"type":\n  "obj', ["line 2, column 3", "is not JSON"]),
        (b"", ["line 1, column 1", "is not JSON"]),
        (b"[" * 100_000, ["JSON"]),
        (
            b'{"properties": {"a": {"type": "intger"}}}',
            ["#/properties/a/type", "did you mean 'integer'"],
        ),
        (b'{"type": "text"}', ["plain text"]),
        (b"[1]", ["#/0", "is not a tool: 1"]),
    ],
)
def test_bad_spec_file(run, write, content, parts):
    path = write("spec.json", content)
    run("check", path).is_error(1, str(path), *parts)
    for command in ("check", "explain"):
        told = run(command, path, "--json")
        assert told.code == 1
        assert list(told.json) == ["ok", "error"]
        assert list(told.json["error"]) == ["type", "what", "where", "hint"]
        assert all(part in " ".join(told.json["error"].values()) for part in parts)
    many = run("check", path, write("good.json", True), "--json")
    assert (many.code, [one["ok"] for one in many.json["specs"]]) == (1, [False, True])
    assert many.json["specs"][0]["error"] == told.json["error"]


def test_options_of_the_environment_hold_and_garbage_in_it_is_refused(
    run, write, monkeypatch
):
    path = write("spec.json", b'{"choice": ["a", "b", "c"]}')
    monkeypatch.setenv("GUIDED_PLUGIN", '{"max_nodes": 2}')
    assert "max_nodes" in run("check", path).out
    for text in ("yes", "[1]", '{"max_nodess": 2}'):
        monkeypatch.setenv("GUIDED_PLUGIN", text)
        run("check", path).is_error(
            2, "GUIDED_PLUGIN" if text != '{"max_nodess": 2}' else "max_nodes"
        )


def test_files_that_cannot_be_read_are_named(run, write, tmp_path, monkeypatch):
    good = write("s.json", {})
    missing = tmp_path / "gone"
    run("check", missing).is_error(
        2, f"{missing}: can't be read: No such file or directory"
    )
    run("check", tmp_path).is_error(2, f"{tmp_path}: can't be read: Is a directory")
    run("check", good, "--instance", missing).is_error(2, f"{missing}: can't be read")
    run("check", write("no-text", b"\xff\xfe{}")).is_error(
        2, "no-text: is not UTF-8 text (byte 0)"
    )
    for more in ((), (good,)):
        result = run("check", missing, *more, "--json")
        assert (result.code, result.json["ok"]) == (2, False)
        assert "can't be read" in json.dumps(result.json)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    # file modes don't bind root, who may run the tests
    monkeypatch.setattr(Path, "read_text", refuse)
    run("check", good).is_error(2, f"{good}: can't be read: Permission denied")


def test_folders_of_tokenizers_are_named(run, write, tmp_path):
    spec = write("s.json", {})
    folder = tmp_path / "some"
    missing = tmp_path / "gone"
    folder.mkdir()
    tokenizer = ("check", spec, "--tokenizer")
    run(*tokenizer, missing).is_error(2, f"{missing}: is not a folder")
    write("some/tokenizer.json", "{")
    run(*tokenizer, folder).is_error(
        2, f"{folder}: contains no tokenizer that transformers can load: "
    )


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("chekc",), "No such command 'chekc'"),
        (("check",), "Missing argument"),
        (("check", "x", "--bogus"), "No such option"),
        (("demo", "--seed", "a"), "--seed"),
    ],
)
def test_wrong_usage(run, arguments, part):
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert part in result.err
    assert "Usage: guided-plugin" in result.err
    assert "Traceback" not in result.err
