"""`make size`: the budgets of lines, files and methods, and what is said above one."""

from script_files import load_script


def test_what_is_above_a_budget_is_named_and_an_exit_code(tmp_path, capsys):
    size = load_script("scripts/size.py")
    for tree in size.TREES:
        (tmp_path / tree / "a" / "b" / "c").mkdir(parents=True)
        (tmp_path / tree / "top.py").write_text("class One:\n    def x(self): ...\n")
        (tmp_path / tree / "a" / "b" / "c" / "deep.py").write_text("pass\n" * 60)
    budgets = tmp_path / "size.toml"
    assert size.main(["--set"], tmp_path, budgets) == 0
    assert size.main([], tmp_path, budgets) == 0
    assert "a/b                           60 of     100" in capsys.readouterr().out
    (tmp_path / "tests" / "a" / "b" / "c" / "deep.py").write_text("pass\n" * 101)
    (tmp_path / "guided_plugin" / "new").mkdir()
    (tmp_path / "guided_plugin" / "new" / "one.py").write_text("class Two:\n" + "    def x(self): ...\n" * 2)
    assert size.main([], tmp_path, budgets) == 1
    assert capsys.readouterr().err.splitlines() == [
        "guided_plugin, new: 3 is above the budget of 0",
        "guided_plugin, methods of a class: 2 is above the budget of 1 (new/one.py: Two)",
        "tests, a/b: 101 is above the budget of 100",
        "tests, lines: 103 is above the budget of 100",
        "tests, lines of a file: 101 is above the budget of 100 (a/b/c/deep.py)",
        "take something away; a budget of scripts/size.toml is raised with a reason",
    ]
