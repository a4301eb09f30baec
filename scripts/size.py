"""`make size`: how much there is to read, in AST nodes by folder, against the budgets
in `size.toml`.

    python3 scripts/size.py              prints the table; exit code 1 above a budget
    python3 scripts/size.py --set        writes what is there now as the budgets, rounded up

Nodes, not lines: a statement unfolded over several lines has the same size, and fewer
nodes a line. A line counts if it is neither blank nor a comment. A change that raises a
budget says in its commit what could not be taken away instead. Standard library only.
"""

from __future__ import annotations

import ast
import math
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = Path(__file__).with_suffix(".toml")
TREES = ("guided_plugin", "tests")
STEPS = {
    "files": 5,
    "methods of a class": 1,
    "nodes a line": 0.1,
    "nodes a line of a file": 0.1,
}
"""The multiples that budgets are rounded up to; all others to the next 100."""
_SHORT = 30
"""A file of fewer lines is not judged by its nodes a line: a table of imports has
many."""


@dataclass(frozen=True)
class Figure:
    """A figure of a tree, and what holds it."""

    size: float
    place: str = ""


@dataclass(frozen=True)
class SourceFile:
    """A Python file as it is counted."""

    name: Path
    nodes: int
    lines: int
    methods: Mapping[str, int]
    """By the names of its classes."""

    @property
    def folder(self) -> str:
        return "/".join(self.name.parts[:-1][:2]) or "."


def read(path: Path, tree: Path) -> SourceFile:
    """Count one file."""
    text = path.read_text()
    lines = [line.strip() for line in text.splitlines()]
    code = [line for line in lines if line and not line.startswith("#")]
    nodes = list(ast.walk(ast.parse(text)))
    methods = {}
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
            methods[node.name] = sum(isinstance(one, kinds) for one in node.body)
    return SourceFile(
        path.relative_to(tree),
        len(nodes),
        len(code),
        methods,
    )


def measured(tree: Path) -> dict[str, Figure]:
    """The figures of a tree."""
    files = [read(path, tree) for path in sorted(tree.rglob("*.py"))]
    folders: Counter[str] = Counter()
    for file in files:
        folders[file.folder] += file.nodes
    found = {folder: Figure(nodes) for folder, nodes in sorted(folders.items())}
    found["nodes"] = Figure(folders.total())
    found["nodes a line"] = Figure(
        folders.total() / max(1, sum(file.lines for file in files))
    )
    found["files"] = Figure(len(files))
    found["nodes of a file"] = _most(
        Figure(file.nodes, str(file.name)) for file in files
    )
    found["nodes a line of a file"] = _most(
        Figure(file.nodes / file.lines, str(file.name))
        for file in files
        if file.lines >= _SHORT
    )
    found["methods of a class"] = _most(
        Figure(count, f"{file.name}: {name}")
        for file in files
        for name, count in file.methods.items()
    )
    return found


def _most(figures: Iterable[Figure]) -> Figure:
    return max(figures, key=lambda figure: figure.size, default=Figure(0))


def main(arguments: Sequence[str], root: Path = ROOT, budgets: Path = BUDGETS) -> int:
    """Print the table, and on stderr what is above its budget."""
    found = {tree: measured(root / tree) for tree in TREES}
    if "--set" in arguments:
        budgets.write_text(
            "\n".join(_section(tree, figures) for tree, figures in found.items())
        )
        return 0
    limits: Mapping[str, Mapping[str, float]] = tomllib.loads(budgets.read_text())
    above = []
    for tree, figures in found.items():
        for name, figure in figures.items():
            limit = limits[tree].get(name, 0)
            print(f"{tree:14} {name:24} {_shown(figure.size):>9} of {_shown(limit):>9}")
            if figure.size > limit:
                where = f" ({figure.place})" if figure.place else ""
                above.append(
                    f"{tree}, {name}: {_shown(figure.size)} is above the budget of {_shown(limit)}{where}"
                )
    for line in above:
        print(line, file=sys.stderr)
    if above:
        print(
            "take something away; a budget of scripts/size.toml is raised with a reason",
            file=sys.stderr,
        )
    return int(bool(above))


def _section(tree: str, figures: Mapping[str, Figure]) -> str:
    lines = [f"[{tree}]"]
    for name, figure in figures.items():
        step = STEPS.get(name, 100)
        lines.append(f'"{name}" = {round(math.ceil(figure.size / step) * step, 2)}')
    return "\n".join([*lines, ""])


def _shown(size: float) -> str:
    return f"{size:,}" if isinstance(size, int) else f"{size:.2f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
