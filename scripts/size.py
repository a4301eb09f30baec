"""`make size`: lines of package and tests by folder, against the budgets in `size.toml`.

    python3 scripts/size.py              prints the table; exit code 1 above a budget
    python3 scripts/size.py --set        writes what is there now as the budgets, rounded up

Who raises a budget says in the commit what could not be taken away instead. Standard library only.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = Path(__file__).with_suffix(".toml")
TREES = ("guided_plugin", "tests")
STEPS = {"files": 5, "methods of a class": 1}
"""What budgets are rounded up to; lines to the next 50."""


def measured(tree: Path) -> dict[str, tuple[int, str]]:
    """The figures of a tree, each with what holds it: the longest file, the class with the most methods."""
    folders: Counter[str] = Counter()
    files: Counter[str] = Counter()
    classes: Counter[str] = Counter({"": 0})
    for path in sorted(tree.rglob("*.py")):
        name, text = path.relative_to(tree), path.read_text()
        files[str(name)] = len(text.splitlines())
        folders["/".join(name.parts[:-1][:2]) or "."] += files[str(name)]
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
                classes[f"{name}: {node.name}"] = sum(isinstance(one, kinds) for one in node.body)
    (file, lines), (one, methods) = files.most_common(1)[0], classes.most_common(1)[0]
    found = {folder: (size, "") for folder, size in sorted(folders.items())}
    found |= {"lines": (folders.total(), ""), "files": (len(files), "")}
    return found | {"lines of a file": (lines, file), "methods of a class": (methods, one)}


def main(arguments: Sequence[str], root: Path = ROOT, budgets: Path = BUDGETS) -> int:
    """Print the table, and on stderr what is above its budget."""
    found = {tree: measured(root / tree) for tree in TREES}
    if "--set" in arguments:
        budgets.write_text("\n".join(_section(tree, figures) for tree, figures in found.items()))
        return 0
    limits: Mapping[str, Mapping[str, int]] = tomllib.loads(budgets.read_text())
    above = []
    for tree, figures in found.items():
        for name, (size, place) in figures.items():
            limit = limits[tree].get(name, 0)
            print(f"{tree:14} {name:24} {size:7,} of {limit:7,}")
            if size > limit:
                where = f" ({place})" if place else ""
                above.append(f"{tree}, {name}: {size:,} is above the budget of {limit:,}{where}")
    for line in above:
        print(line, file=sys.stderr)
    if above:
        print("take something away; a budget of scripts/size.toml is raised with a reason", file=sys.stderr)
    return int(bool(above))


def _section(tree: str, figures: Mapping[str, tuple[int, str]]) -> str:
    steps = {name: STEPS.get(name, 50) for name in figures}
    lines = (f'"{name}" = {-(-size // steps[name]) * steps[name]}' for name, (size, _) in figures.items())
    return "\n".join([f"[{tree}]", *lines, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
