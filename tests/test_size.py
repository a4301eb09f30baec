"""`make size`: the budgets of nodes, files and methods, and what is said above one."""

from script_files import load_script

FOLDED = "[[1, 2], [3, 4]]\n" * 30
CLASS = "class One:\n" + "    def x(self): ...\n" * 2


def test_what_is_above_a_budget_is_named_and_an_exit_code(tmp_path, capsys):
    size = load_script("scripts/size.py")
    inner = tmp_path / "tests/a/b/c"
    inner.mkdir(parents=True)
    (tmp_path / "guided_plugin").mkdir()
    (tmp_path / "guided_plugin/one.py").write_text("class One:\n    x = 1\n")
    (inner / "deep.py").write_text("# A comment.\n\n" + "pass\n" * 60)
    budgets = tmp_path / "size.toml"
    assert size.main(["--set"], tmp_path, budgets) == 0
    assert size.main([], tmp_path, budgets) == 0
    assert "tests a/b 61 of 100" in " ".join(capsys.readouterr().out.split())
    (inner / "deep.py").write_text("pass\n" * 101)
    (inner / "folded.py").write_text(FOLDED)
    (tmp_path / "guided_plugin/new").mkdir()
    (tmp_path / "guided_plugin/new/one.py").write_text(CLASS)
    assert size.main([], tmp_path, budgets) == 1
    said = capsys.readouterr().err
    for line in (
        "guided_plugin, new: 12 is above the budget of 0",
        "guided_plugin, methods of a class: 2 is above the budget of 0 (new/one.py: One)",
        "tests, a/b: 433 is above the budget of 100",
        "tests, nodes of a file: 331 is above the budget of 100 (a/b/c/folded.py)",
    ):
        assert f"{line}\n" in said
    assert said.endswith(
        "take something away; a budget of scripts/size.toml is raised with a reason\n"
    )
