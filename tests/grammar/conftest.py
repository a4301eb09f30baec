"""A table of grammars."""

from __future__ import annotations

import pytest
from grammar_tables import VOCABULARY, Table
from raw_xgrammar import RawXGrammar

from guided_plugin.config import GuidedConfig


@pytest.fixture(scope="module")
def backend():
    return RawXGrammar(VOCABULARY, GuidedConfig(threads=2))


@pytest.fixture
def table(backend):
    return Table(backend)
