"""A compiler over single bytes."""

from __future__ import annotations

import pytest

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.plugins import Plugins


@pytest.fixture(scope="module")
def compiler(byte_vocabulary: Vocabulary) -> GrammarCompiler:
    # In this process: a helper for each of so many schemas takes minutes.
    config = GuidedConfig(threads=1, isolate_compiles=False)
    return GrammarCompiler(byte_vocabulary, config=config, plugins=Plugins(entry_points=False))
