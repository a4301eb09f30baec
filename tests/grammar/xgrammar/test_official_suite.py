"""The official JSON Schema Test Suite on xgrammar alone: no invalid instance is taken."""

from __future__ import annotations

import pytest
from official_suite import ARCHIVE, DRAFTS, score
from stopping import special_vocabulary

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.plugins import Plugins

pytestmark = pytest.mark.skipif(
    not ARCHIVE.is_file(), reason="the JSON Schema Test Suite is not in ../shared/jsonschema-suite"
)

# Schemas that compile: where more of them do, raise the figure.
COMPILED = {"draft4": 19, "draft6": 27, "draft7": 27, "draft2019-09": 31, "draft2020-12": 31}


@pytest.mark.parametrize("draft", DRAFTS)
def test_takes_no_invalid_instance(draft):
    config = GuidedConfig(backend="xgrammar", threads=1, isolate_compiles=False)
    compiler = GrammarCompiler(
        special_vocabulary(padded=True), config=config, plugins=Plugins(entry_points=False)
    )
    found = score(draft, compiler)
    assert found.wrong_accepts == []
    assert found.early_stops == []
    assert found.leaks == []
    assert found.compiled >= COMPILED[draft], found.refused
