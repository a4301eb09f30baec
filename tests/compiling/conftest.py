"""Compilers whose helpers know the backend `strange`."""

import pytest
from strange_backend import PLUGIN, VOCABULARY

from guided_plugin import GuidedConfig, Plugins
from guided_plugin.compiling.chooser import Chooser
from guided_plugin.compiling.compiler import GrammarCompiler


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """A backend that misbehaves, installed as a package with an entry point."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "strange_plugin.py").write_text(PLUGIN)
    info = folder / "strange_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: strange-plugin\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(
        "[guided_plugin]\nstrange = strange_plugin:plugin\n"
    )
    return folder


@pytest.fixture(scope="module")
def template(plugin):
    """A template that knows the backend `strange`. It takes seconds to start: a
    module's tests share it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(plugin))
        patch.syspath_prepend(str(plugin))
        owner = GrammarCompiler(VOCABULARY, config=GuidedConfig(compile_seconds=600.0))
        yield owner.template
        owner.close()


@pytest.fixture
def make(plugin, template, monkeypatch):
    """Makes compilers, with that template or one that has their configuration; ends
    them."""
    monkeypatch.setenv("PYTHONPATH", str(plugin))
    monkeypatch.syspath_prepend(str(plugin))
    made = []

    def make(*, own_template=False, **options):
        config = GuidedConfig(**options)
        plugins = Plugins()
        built = (
            None if own_template else (Chooser(VOCABULARY, config, plugins), template)
        )
        made.append(
            GrammarCompiler(VOCABULARY, config=config, plugins=plugins, built=built)
        )
        return made[-1]

    yield make
    for compiler in made:
        compiler.close()
