"""The backend."""

import pytest
from llguidance_specs import VOCABULARY

from guided_plugin import GuidedConfig
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend


@pytest.fixture(scope="module")
def backend():
    return LLGuidanceBackend(VOCABULARY, GuidedConfig(threads=2))
