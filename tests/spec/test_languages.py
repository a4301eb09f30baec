"""Patterns without anchors and lookahead, against Python's `re` on random patterns and
all short texts.

The random patterns are written twice, for ECMA and for Python, so that the parser is
under test as well.
"""

import json
import random
import re
from pathlib import Path

import pytest
from llguidance_specs import terminal_takes
from schemas import TEXTS, random_pattern

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.grammar.llguidance.lark import patterns
from guided_plugin.grammar.llguidance.lark.patterns import matches
from guided_plugin.spec.languages import EMPTY, NOTHING, searched, whole

TABLES = json.loads(Path(__file__).with_name("languages.json").read_bytes())


@pytest.mark.parametrize("looks", [False, True])
def test_random_patterns_agree_with_re(looks):
    refused = 0
    chance = random.Random(looks)
    for _ in range(150):
        pattern, python = random_pattern(chance, 3, looks)
        search = re.compile(python)
        full = re.compile(rf"\A(?:{python})\Z")
        try:
            quoted = patterns.pattern(pattern)
            text_alone = patterns.whole_text(pattern)
        except UnsupportedSpecError:
            refused += 1
            continue
        for text in chance.sample(TEXTS, 20):
            found = search.search(text) is not None
            assert matches(pattern, text) == found, (pattern, text)
            assert terminal_takes(quoted, json.dumps(text)) == found, (pattern, text)
            assert terminal_takes(text_alone, text) == (
                full.search(text) is not None
            ), (pattern, text)
    assert refused < 30


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    TABLES["anchors_and_lookahead"],
)
def test_anchors_and_lookahead(pattern, found, missed):
    for text in [*found, *missed]:
        assert matches(pattern, text) == (text in found), text
        assert terminal_takes(patterns.pattern(pattern), json.dumps(text)) == (
            text in found
        ), text


@pytest.mark.parametrize("pattern", ["a^", "^a^", "x(?=y)$", "[]", "a[]"])
def test_patterns_that_match_nothing(pattern):
    assert (searched(pattern) == NOTHING) == ("^" in pattern)
    assert not terminal_takes(patterns.pattern(pattern), '"a"')


def test_anchors_around_a_whole_text_say_nothing():
    assert whole("^ab$") == whole("ab") == whole("(?:^)ab(?:$)")
    assert whole("^$") == EMPTY


@pytest.mark.parametrize(
    "pattern",
    [
        "^((?!no).)*$",
        "(?:a(?=b)|b)*x",
        "(^a|b)*c",
        "^(?:a$|b)+$",
        "^x?(^a|b)",
        "(^a?|b)" * 500,
    ],
)
def test_what_stays_out_of_reach_is_refused(pattern):
    with pytest.raises(UnsupportedSpecError) as caught:
        searched(pattern)
    assert caught.value.where == "pattern"
    assert caught.value.hint
