"""The vLLM whose Python files lie in a folder, read as syntax trees: nothing is imported, and no compiled
part is needed. `Sources` finds names as `hosts/vllm/patches.installed` does in the vLLM of this process.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

from guided_plugin.hosts.vllm.patches import Missing, Shape

_ROOT = "vllm"

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def installed_folder() -> Path | None:
    """The folder with the installed vLLM's Python files in `vllm/`; None if it is not installed."""
    found = find_spec(_ROOT)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations))).parent


class Sources:
    """The vLLM whose Python files lie in a folder: an unpacked wheel, a checkout, `site-packages`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[str, ast.Module | None] = {}

    def find(self, path: str) -> Shape:
        """The shape of a name. Raises Missing."""
        module, _, names = path.partition(":")
        if self._tree(module) is None:
            raise Missing(f"no module {module}")
        owner, *inner = names.split(".")
        found = self._top(module, owner)
        for name in inner:
            found = None if found is None else self._member(*found, name)
        if found is None:
            raise Missing(f"no {path}")
        where, node = found
        if isinstance(node, ast.ClassDef):
            known = {name for _, one in self._lineage(where, node) for name in _attributes(one)}
            return Shape((), known.__contains__)
        return Shape(_parameters(node), lambda name: False)

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._modules:
            stem = self._folder.joinpath(*module.split("."))
            files = [file for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file()]
            self._modules[module] = ast.parse(files[0].read_bytes()) if files else None
        return self._modules[module]

    def _top(self, module: str, name: str, depth: int = 8) -> tuple[str, ast.AST] | None:
        """A name of a module, through what the module imports: where it is defined, and its definition."""
        tree = self._tree(module)
        found: tuple[str, ast.AST] | None = None
        for node in _statements(tree.body if tree and depth else ()):
            if isinstance(node, ast.ClassDef | _Function) and node.name == name:
                found = module, node
            elif isinstance(node, ast.ImportFrom):
                origin = self._origin(module, node)
                for alias in node.names:
                    if (alias.asname or alias.name) == name and origin.partition(".")[0] == _ROOT:
                        found = self._top(origin, alias.name, depth - 1) or found
        return found

    def _origin(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = module.split(".")
        if not self._folder.joinpath(*package, "__init__.py").is_file():
            package = package[:-1]
        return ".".join(filter(None, [*package[: len(package) - node.level + 1], node.module]))

    def _member(self, module: str, node: ast.AST, name: str) -> tuple[str, ast.AST] | None:
        """A method of a class or of what it derives from."""
        for where, one in self._lineage(module, node):
            for inner in reversed(list(_statements(one.body))):
                if isinstance(inner, ast.ClassDef | _Function) and inner.name == name:
                    return where, inner
        return None

    def _lineage(self, module: str, node: ast.AST) -> Iterator[tuple[str, ast.ClassDef]]:
        """A class and those of vLLM's that it derives from."""
        if not isinstance(node, ast.ClassDef):
            return
        yield module, node
        for base in node.bases:
            named = base.value if isinstance(base, ast.Subscript) else base
            found = self._top(module, named.id) if isinstance(named, ast.Name) else None
            if found is not None and found[1] is not node:
                yield from self._lineage(*found)


def _statements(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Statements and what is in them, but for what is in functions and classes."""
    for node in nodes:
        yield node
        if not isinstance(node, ast.ClassDef | _Function):
            yield from _statements(ast.iter_child_nodes(node))


def _parameters(node: ast.AST) -> tuple[str, ...]:
    if not isinstance(node, _Function):
        return ()
    given = node.args
    ordered = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return tuple(one.arg for one in ordered if one is not None)


def _attributes(owner: ast.ClassDef) -> Iterator[str]:
    """What a class's body defines, and what its methods assign to `self`."""
    for node in _statements(owner.body):
        if isinstance(node, ast.ClassDef | _Function):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
    for node in ast.walk(owner):
        match node:
            case ast.Attribute(ast.Name("self"), name, ast.Store()):
                yield name
