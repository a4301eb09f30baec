"""Fixtures of the tests with vLLM."""

import pytest


@pytest.fixture
def byte_tokenizer(monkeypatch):
    """Engines without a model: the vocabulary of `vllm_support` in place of a tokenizer's."""
    from vllm_support import VOCABULARY

    monkeypatch.setattr("guided_plugin.hosts.vllm.engine.vocabulary_of", lambda config: VOCABULARY)
