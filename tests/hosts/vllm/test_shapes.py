"""The shapes of functions and classes that are imported."""

import sys
import textwrap

import pytest

from guided_plugin.hosts.vllm import patches
from guided_plugin.hosts.vllm.names import Name
from guided_plugin.hosts.vllm.patches import Missing, Unavailable, difference, installed

FILES = {
    "__init__.py": "",
    "engine/__init__.py": """
        from .core import Core as Engine
        from {root}.base import helper
        import typing
        """,
    "base.py": """
        from dataclasses import dataclass
        from enum import Enum, auto

        class Base:
            kind: int = 1
            def __init__(self, config):
                self.config = config
                self.a, self.b = 1, 2
            async def send(self, method, timeout=None, *args, key=0, **kwargs): ...
            @property
            def size(self): return 1

        class Way(Enum):
            SWAP = auto()

        @dataclass
        class Fields:
            one: int
            two: int = 0

        if True:
            def helper(x, /, y): ...
        else:
            def other(): ...
        """,
    "engine/core.py": """
        from ..base import Base

        class Core(Base):
            def send(self, method, more, args=()): ...
            @classmethod
            def make(cls, name): ...
            @staticmethod
            def bare(name): ...
            def later(self):
                self.late: int = 3
                return self.never
        """,
    "broken.py": "import surely_not_installed\nclass Thing: ...\n",
}


@pytest.fixture
def small_package(tmp_path, monkeypatch):
    """A package that `installed` takes for vLLM."""
    root = "shapes_of_vllm"
    for name, text in FILES.items():
        file = tmp_path / root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).replace("{root}", root))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(patches, "_ROOT", root)
    yield
    for module in [
        module for module in sys.modules if module.partition(".")[0] == root
    ]:
        del sys.modules[module]


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("base:Base.__init__", ("self", "config")),
        ("base:Base.send", ("self", "method", "timeout", "args", "key", "kwargs")),
        ("engine:Engine.send", ("self", "method", "more", "args")),
        ("engine.core:Core.__init__", ("self", "config")),
        ("engine.core:Core.make", ("cls", "name")),
        ("engine.core:Core.bare", ("name",)),
        ("engine:helper", ("x", "y")),
        ("engine:Engine", ()),
    ],
)
def test_parameters_through_imports_and_base_classes(small_package, path, parameters):
    assert installed(f"shapes_of_vllm.{path}").parameters == parameters


@pytest.mark.parametrize(
    ("path", "there", "not_there"),
    [
        (
            "engine:Engine",
            ["kind", "config", "a", "b", "send", "size", "late", "make"],
            ["never", "more"],
        ),
        ("base:Way", ["SWAP"], ["swap"]),
        ("base:Fields", ["one", "two"], ["three"]),
    ],
)
def test_attributes_in_the_body_and_assigned_to_self(
    small_package, path, there, not_there
):
    shape = installed(f"shapes_of_vllm.{path}")
    assert [name for name in there if not shape.has(name)] == []
    assert [name for name in not_there if shape.has(name)] == []


@pytest.mark.parametrize(
    "path",
    [
        "nothing:Base",
        "base:Nothing",
        "base:Base.nothing",
        "engine:Engine.send.more",
        "engine.nothing:A",
    ],
)
def test_what_is_not_there_is_named(small_package, path):
    with pytest.raises(Missing, match=r"^no (module )?shapes_of_vllm\."):
        installed(f"shapes_of_vllm.{path}")


def test_a_module_that_lacks_another_package_is_told_from_one_that_is_gone(
    small_package,
):
    with pytest.raises(Unavailable, match="surely_not_installed"):
        installed("shapes_of_vllm.broken:Thing")
    thing = Name("shapes_of_vllm.broken:Thing")
    assert "surely_not_installed" in difference(thing, installed)
    gone = Name("shapes_of_vllm.gone:Thing", endpoint=True)
    assert "no module shapes_of_vllm.gone" in difference(gone, installed)
    assert (
        difference(Name("shapes_of_vllm.broken:Thing", endpoint=True), installed)
        is None
    )


def test_a_difference_says_what_is_missing(small_package):
    path = "shapes_of_vllm.engine:Engine"
    assert (
        difference(Name(f"{path}.send", begins=("self", "method")), installed) is None
    )
    assert "does not begin with the parameters self, name" in difference(
        Name(f"{path}.send", begins=("self", "name")), installed
    )
    assert difference(Name(f"{path}.send", takes=("args", "key")), installed) == (
        f"no parameter key of {path}.send"
    )
    assert (
        difference(Name(path, has=("kind", "never")), installed) == f"no {path}.never"
    )
