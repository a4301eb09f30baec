"""Compilers whose helpers know the backend `strange`."""

import pytest
from strange_backend import PLUGIN, VOCABULARY

from guided_plugin import GuidedConfig
from guided_plugin.compiling.compiler import GrammarCompiler


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """A backend that misbehaves, installed as a package with an entry point."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "strange_plugin.py").write_text(PLUGIN)
    info = folder / "strange_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[guided_plugin]\nstrange = strange_plugin:plugin\n")
    return folder


@pytest.fixture
def make(plugin, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(plugin))
    monkeypatch.syspath_prepend(str(plugin))
    made = []

    def make(**options):
        compiler = GrammarCompiler(VOCABULARY, config=GuidedConfig(**options))
        made.append(compiler)
        return compiler

    yield make
    for compiler in made:
        compiler.close()
