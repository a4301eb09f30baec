"""The dialect of regular expressions: what each construct means, and what is
refused."""

import json
from pathlib import Path

import pytest

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark.patterns import matches
from guided_plugin.spec.ecma import parse

TABLES = json.loads(Path(__file__).with_name("ecma.json").read_bytes())


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    TABLES["what_one_character_may_be"],
)
def test_what_one_character_may_be(pattern, matching, others):
    for char in matching + others:
        assert matches(f"^(?:{pattern})$", char) == (char in matching), char


@pytest.mark.parametrize(
    ("pattern", "what", "position"),
    TABLES["what_is_refused_and_where"],
)
def test_what_is_refused_and_where(pattern, what, position):
    with pytest.raises(UnsupportedSpecError) as caught:
        parse(pattern)
    assert what in caught.value.what
    assert f"at position {position} of" in caught.value.what
    assert caught.value.hint
