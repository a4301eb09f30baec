"""Patterns for whitespace. `re` says which texts a pattern matches."""

import itertools
import re

import pytest

from guided_plugin.errors import SpecError
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.forms import whitespace_of

TEXTS = ["".join(text) for count in range(4) for text in itertools.product(" \n\t\r", repeat=count)]

ANY = [r"\s*", r"[\s]*", r"[ \n\t\r]*", "[ \n\t\r]*", r"[\r\t\n ]*", r"([ \n\r\t]*)", r"(?:[\s ]*)"]
NONE = ["", r"[ ]?", r"[\n\t ]*", r" *", r"( |\n)*", r"\s?", r"[ \n\t\r]{0,5}", r"[ \n]{0,2}", r"(\s*|x)"]
REFUSED = [" ", r"\s+", r"\n", r"[ \n\t\r]+", r"( |\t){1,2}", "x"]


@pytest.mark.parametrize("pattern", ANY)
def test_any_whitespace_makes_it_flexible(pattern):
    assert all(re.fullmatch(pattern, text) for text in TEXTS)
    assert whitespace_of(pattern, "here") == "flexible"
    assert OutputSpec.parse({"json": {}, "whitespace_pattern": pattern}).whitespace == "flexible"


@pytest.mark.parametrize("pattern", NONE)
def test_what_matches_nothing_makes_it_compact(pattern):
    assert re.fullmatch(pattern, "")
    assert whitespace_of(pattern, "here") == "compact"
    assert OutputSpec.parse({"guided_json": {}, "guided_whitespace_pattern": pattern}).whitespace == "compact"


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_demands_some_is_refused(pattern):
    assert not re.fullmatch(pattern, "")
    with pytest.raises(SpecError, match="whitespace_pattern: demands whitespace"):
        OutputSpec.parse({"json": {}, "whitespace_pattern": pattern})


@pytest.mark.parametrize("pattern", [3, ["x"], "(", "(" * 500, " " * 2000, r"(?<=x)", "[", "*"])
def test_what_is_no_pattern_is_refused(pattern):
    with pytest.raises(SpecError, match="whitespace_pattern: "):
        OutputSpec.parse({"json": {}, "whitespace_pattern": pattern})


@pytest.mark.parametrize(
    ("options", "whitespace"),
    [
        ({"whitespace": "compact", "whitespace_pattern": r"\s*"}, "compact"),
        ({"whitespace": "flexible", "whitespace_pattern": r"\s*"}, "flexible"),
        ({"disable_any_whitespace": True, "whitespace_pattern": r"\s*"}, "compact"),
        ({"disable_any_whitespace": True, "whitespace_pattern": " ?"}, "compact"),
    ],
)
def test_next_to_other_options_the_narrower_holds(options, whitespace):
    assert OutputSpec.parse({"json": {}, **options}).whitespace == whitespace


def test_a_pattern_that_allows_less_than_the_option_is_refused():
    with pytest.raises(SpecError, match="allows less than the option"):
        OutputSpec.parse({"json": {}, "whitespace": "flexible", "whitespace_pattern": " ?"})
