"""Imports point one way: between rooms by a fixed order, between files without a
cycle."""

import ast
import pathlib

import guided_plugin

PACKAGE = pathlib.Path(guided_plugin.__file__).parent

ROOMS = [
    *(
        "_version",
        "errors",
        "metrics",
        "ipc",
        "keywords",
        "config",
        "spec/python",
        "spec",
        "step",
        "kernels",
    ),
    *("grammar", "hookspecs", "grammar/llguidance/lark", "grammar/llguidance/distinct"),
    *("grammar/llguidance/tags", "grammar/llguidance"),
    "grammar/xgrammar",
    *(
        "plugins",
        "compiling",
        "worker",
        "worker/device",
        "worker/ranks",
        "worker/engine",
        "worker/child",
        "pipeline",
    ),
    *("hosts", "hosts/transformers", "hosts/vllm", "vllm", "diagnose", "__init__"),
    *("demo", "cli"),
]
"""Folders, and files that lie in no folder. Each may import itself and what stands
before it."""

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(
        path.read_text()
    )
    for path in sorted(PACKAGE.rglob("*.py"))
}


def module_of(name):
    """The file behind a dotted name: a module, or the `__init__` of a folder."""
    return name if name in MODULES else f"{name}.__init__".removeprefix(".")


def imports(module):
    """What a file imports, in functions and for annotations too."""
    found = set()
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            root, _, inside = (node.module or "").partition(".")
            if root == "guided_plugin":
                # The alias is a module, or a name inside one.
                names = (
                    ".".join(filter(None, (inside, alias.name))) for alias in node.names
                )
                found.update(
                    module_of(name if module_of(name) in MODULES else inside)
                    for name in names
                )
    return found - {module}


def room(module):
    folder = "/".join(module.split(".")[:-1])
    return folder or module


def test_every_file_has_a_room():
    assert {room(module) for module in MODULES} == set(ROOMS)


def test_rooms_import_only_what_stands_before_them():
    wrong = [
        f"{module} imports {target}"
        for module in MODULES
        for target in imports(module)
        if ROOMS.index(room(target)) > ROOMS.index(room(module))
    ]
    assert wrong == []


def cycle(graph):
    """A path that comes back to where it began; None without one."""
    done = set()

    def search(node, path):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        done.add(node)
        return next(
            filter(
                None, (search(target, [*path, node]) for target in sorted(graph[node]))
            ),
            None,
        )

    return next(filter(None, (search(node, []) for node in graph)), None)


def test_no_file_imports_itself_through_others():
    assert cycle({module: imports(module) for module in MODULES}) is None


def test_a_cycle_would_be_found():
    assert cycle({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == [
        "b",
        "d",
        "b",
    ]
    assert "spec.__init__" in imports("hosts.loop")
    assert "kernels.indexed_triton" in imports("kernels.__init__")  # inside a function
