"""Which objects take names that nothing describes: those that describe none.

`open_objects.json` has schemas, each with what it means with `strict` as the standard
reads it, for an oracle.
"""

import itertools
import json
from pathlib import Path

import pytest
from compilers import takes, unbounded
from instances import near, text_of
from llguidance_specs import VOCABULARY
from oracle import oracle

from guided_plugin import OutputSpec

TABLES = json.loads(Path(__file__).with_name("open_objects.json").read_bytes())


def in_tag(schema):
    content = {"type": "json_schema", "json_schema": schema}
    return OutputSpec.structural_tag({"format": content}, strict=True)


@pytest.fixture(scope="module")
def compiler():
    return unbounded(VOCABULARY)


def orders(value):
    """With `strict` the names of an object may have one order only."""
    if not isinstance(value, dict) or len(value) > 4:
        return [value]
    return [dict(items) for items in itertools.permutations(value.items())]


@pytest.mark.parametrize("form", [OutputSpec.json_schema, in_tag])
@pytest.mark.parametrize("case", TABLES["meanings"])
def test_with_strict_an_object_is_closed_where_it_describes_properties(
    compiler, form, case
):
    schema = case["schema"]
    spec = form(schema)
    valid = oracle(case["means"])
    seeds = [*TABLES["seeds"], *([seed] for seed in TABLES["seeds"])]
    seen = set()
    for value in near(case["means"], seeds, count=150, seed=1):
        texts = [text_of(order) for order in orders(value)]
        if texts[0].isprintable():
            taken = any(takes(compiler, spec, text) for text in texts)
            assert taken is valid(value), (spec.summary(), value)
            seen.add(taken)
    assert seen == {True, False}
