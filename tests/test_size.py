"""`make size`: the budgets of nodes, files and methods, and what is said above one."""

import ast

from script_files import load_script


def nodes_of(text):
    return sum(1 for _ in ast.walk(ast.parse(text)))


def test_what_is_above_a_budget_is_named_and_an_exit_code(tmp_path, capsys):
    size = load_script("scripts/size.py")
    for tree in size.TREES:
        (tmp_path / tree / "a" / "b" / "c").mkdir(parents=True)
        (tmp_path / tree / "top.py").write_text("class One:\n    def x(self): ...\n")
        (tmp_path / tree / "a" / "b" / "c" / "deep.py").write_text(
            "# A comment.\n\n" + "pass\n" * 60
        )
    budgets = tmp_path / "size.toml"
    assert size.main(["--set"], tmp_path, budgets) == 0
    assert size.main([], tmp_path, budgets) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"tests a/b {nodes_of('pass' + chr(10) + 'pass') + 58} of 100" in printed
    (tmp_path / "tests" / "a" / "b" / "c" / "deep.py").write_text("pass\n" * 101)
    (tmp_path / "tests" / "a" / "b" / "c" / "folded.py").write_text(
        "[[1, 2], [3, 4]]\n" * 30
    )
    (tmp_path / "guided_plugin" / "new").mkdir()
    (tmp_path / "guided_plugin" / "new" / "one.py").write_text(
        "class Two:\n" + "    def x(self): ...\n" * 2
    )
    assert size.main([], tmp_path, budgets) == 1
    said = capsys.readouterr().err
    assert "guided_plugin, new: 12 is above the budget of 0\n" in said
    assert (
        "guided_plugin, methods of a class: 2 is above the budget of 1 (new/one.py: Two)\n"
        in said
    )
    assert "tests, a/b: 433 is above the budget of 100\n" in said
    assert (
        "tests, nodes of a file: 331 is above the budget of 100 (a/b/c/folded.py)\n"
        in said
    )
    assert (
        "tests, nodes a line of a file: 11.03 is above the budget of 1.10 (a/b/c/folded.py)\n"
        in said
    )
    assert said.endswith(
        "take something away; a budget of scripts/size.toml is raised with a reason\n"
    )


def test_unfolding_a_statement_does_not_make_a_file_larger(tmp_path):
    size = load_script("scripts/size.py")
    figures = []
    for name, text in (
        ("one", "x = [1, 2, 3]\n" * 40),
        ("many", "x = [\n    1,\n    2,\n    3,\n]\n" * 40),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.py").write_text(text)
        figures.append(size.measured(tmp_path / name))
    folded, unfolded = figures
    assert folded["nodes"] == unfolded["nodes"]
    assert folded["nodes a line"].size == 5 * unfolded["nodes a line"].size
