"""A compiler for all tests of a file: they only compile, and helper processes take
seconds to start."""

import pytest

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.plugins import Plugins


@pytest.fixture(scope="module")
def byte_compiler(byte_vocabulary, config):
    compiler = GrammarCompiler(
        byte_vocabulary, config=config, plugins=Plugins(entry_points=False)
    )
    yield compiler
    compiler.close()
