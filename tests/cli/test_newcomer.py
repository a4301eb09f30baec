"""`make newcomer`: its tasks are those that are written down; one that fails tells what
a newcomer sees."""

import re
import sys

from script_files import ROOT, load_script

newcomer = load_script("scripts/newcomer.py")


def test_the_tasks_are_those_of_the_page():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    table = re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.M)
    assert [name for _, name in table] == list(newcomer.TASKS)
    assert [int(number) for number, _ in table] == list(range(1, 16))


def test_commands_of_the_page_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"python (examples/\S+\.py)", page)
    assert len(named) > 7
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_task_that_fails_is_told_and_the_next_one_runs(monkeypatch, capsys):
    def broken(walk):
        walk.run(sys.executable, "-c", "print('no room'); raise SystemExit(3)")

    tasks = {
        "install": lambda walk: "fine",
        "openai": broken,
        "check": lambda walk: {}["x"],
        "doctor": lambda walk: "well",
    }
    monkeypatch.setattr(newcomer, "TASKS", tasks)
    monkeypatch.setattr(sys, "argv", ["newcomer.py"])
    assert newcomer.main() == 1
    told = capsys.readouterr().out
    found = re.findall(r"^(\w+) +[\d.]+  (ok|NO) ", told, re.M)
    assert found == [
        ("install", "ok"),
        ("openai", "NO"),
        ("check", "NO"),
        ("doctor", "ok"),
    ]
    assert "--- openai failed; what a newcomer sees:" in told
    assert "exit code 3\nno room" in told
    assert "KeyError" in told
    monkeypatch.setattr(sys, "argv", ["newcomer.py", "--only", "doctor"])
    assert newcomer.main() == 0
