"""`refused: "vllm"`: which refusals are left to vLLM's manager, without an engine."""

import asyncio

import pytest

pytest.importorskip("vllm")

from vllm_support import TAKES_OVER, config, params_of

from guided_plugin.errors import (
    CompileLimitError,
    GrammarError,
    PipelineError,
    SpecError,
    UnsatisfiableSpecError,
    UnsupportedSpecError,
    VocabularyError,
)
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.hosts.vllm.specs import LEFT, may_leave

REFUSED = {"json": {"enum": ["a", "b"]}, "whitespace_pattern": "[.]"}
"""vLLM takes it, and drops the pattern, which demands what JSON can't have."""


def test_refused_specs_are_left_and_limits_and_troubles_of_the_server_are_not():
    for kind in (GrammarError, SpecError, UnsatisfiableSpecError, UnsupportedSpecError):
        assert may_leave(kind("no"))
    for kind in (CompileLimitError, PipelineError, VocabularyError):
        assert not may_leave(kind("no"))


def test_guided_is_never_left(caplog):
    caplog.set_level("WARNING", "guided_plugin")
    gate, theirs = Gate(config({**TAKES_OVER, "refused": "vllm"})), params_of(REFUSED, theirs=True)
    for _ in range(2):  # the second time it is remembered
        for admit in (gate.admit, lambda params: asyncio.run(gate.admit_async(params))):
            carried = admit(theirs)
            assert carried.extra_args["guided"] is LEFT
            assert gate.admit(carried) is carried
            assert carried.structured_outputs is theirs.structured_outputs
            with pytest.raises(SpecError):
                admit(params_of({**REFUSED, "disable_any_whitespace": False}))
    assert len(caplog.records) == 1
    gate.complete(carried, None)
    assert carried.extra_args == {"guided_left": True}
    with pytest.raises(SpecError):
        Gate(config(TAKES_OVER)).admit(theirs)
