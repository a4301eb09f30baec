"""Print every constant of the package that is a number, with what stands below it: where
it was measured, or that it was chosen. A test fails where that is missing.

    python scripts/constants.py
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def numbers() -> Iterator[tuple[str, str, str, str]]:
    """Each constant that is a number: its file, its name, its value, and the text below
    it."""
    for file in sorted((ROOT / "guided_plugin").rglob("*.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
            if isinstance(node, ast.Assign | ast.AnnAssign) and _is_number(node.value):
                name, _, value = ast.unparse(node).partition(" = ")
                text = ast.get_docstring(ast.Module([after], [])) or ""
                place = file.relative_to(ROOT / "guided_plugin").as_posix()
                yield place, name.partition(":")[0], value, text


def _is_number(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Tuple):
        return all(
            isinstance(each, ast.Constant) and _is_number(each) for each in node.elts
        )
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    value = getattr(node, "value", None)
    return isinstance(value, int | float) and not isinstance(value, bool)


def main() -> None:
    """Print them, one a line."""
    for file, name, value, text in numbers():
        said = " ".join(text.split())
        sys.stdout.write(f"{file} {name} = {value}: {said}\n")


if __name__ == "__main__":
    main()
