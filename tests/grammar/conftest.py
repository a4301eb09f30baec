"""A table of grammars."""

from __future__ import annotations

import pytest
from grammar_tables import VOCABULARY, Table

from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend


@pytest.fixture(scope="module")
def backend():
    return XGrammarBackend(VOCABULARY, GuidedConfig(threads=2))


@pytest.fixture
def table(backend):
    return Table(backend)
