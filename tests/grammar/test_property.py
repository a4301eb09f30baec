"""Whatever the schema and whatever is sampled: an output that ends is JSON that the schema allows."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.table import GrammarTable, Phase
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

TOKENS_AT_MOST = 400
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')

names = st.sampled_from(["a", "name", "", "é", 'quo"te', "back\\slash", "new\nline", "a b", "true", "x/y~z"])
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1000, 1000),
    st.sampled_from(
        [0.5, -2.25, "", "é", 'say "hi"', "back\\slash", "\x01\n\t", [], [1, "a"], {}, {"k": [True]}]
    ),
)


def bounded(schema: dict[str, Any], lower: str, upper: str, low: int, high: int) -> st.SearchStrategy[Any]:
    """The schema with none, either or both of two bounds."""
    ordered = st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)
    keep = st.tuples(st.booleans(), st.booleans())
    return st.tuples(ordered, keep).map(
        lambda drawn: (
            schema | {name: bound for name, bound, kept in zip((lower, upper), *drawn, strict=True) if kept}
        )
    )


leaves = st.one_of(
    st.sampled_from(
        [{"type": "null"}, {"type": "boolean"}, {"type": "number"}, {"type": ["integer", "null"]}]
    ),
    bounded({"type": "integer"}, "minimum", "maximum", -120, 120),
    bounded({"type": "integer"}, "exclusiveMinimum", "maximum", -9, 9).filter(
        lambda s: s.get("exclusiveMinimum", -10) < s.get("maximum", 10)
    ),
    bounded({"type": "number"}, "minimum", "maximum", -3, 3),
    bounded({"type": "string"}, "minLength", "maxLength", 0, 5),
    st.sampled_from(
        ["^[a-c]{1,3}$", '^x"y$', r"^\\+$", "^(é|ß)?[^a-z]$", "^.[^b-z]?[^0-9]$", '^"[b-z]{2}$']
    ).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.lists(values, min_size=1, max_size=4).map(lambda several: {"enum": several}),
    values.map(lambda value: {"const": value}),
)


@st.composite
def objects(draw: st.DrawFn, members: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(names, members, max_size=4))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    return {"type": "object", "properties": properties, "required": required}


def containers(members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = members.flatmap(
        lambda items: bounded({"type": "array", "items": items}, "minItems", "maxItems", 0, 3)
    )
    either = st.lists(members, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches})
    return st.one_of(objects(members), arrays, either)


def nested(depth: int) -> st.SearchStrategy[Any]:
    return leaves if depth == 0 else st.one_of(containers(nested(depth - 1)), leaves)


schemas = containers(nested(2))


def walk(table: GrammarTable, vocabulary: Vocabulary, choose: random.Random) -> bytes | None:
    """Sample like a model with no sense, drawn a little to what ends things; None if it didn't end."""
    mask = np.zeros((1, vocabulary.words), np.int32)
    closing = [vocabulary.tokens.index(token) for token in (b'"', b"]", b"}", b'"}')]
    stop = vocabulary.stop_token_ids[0]
    for _ in range(TOKENS_AT_MOST):
        table.fill((0,), mask)
        assert table.failures == []
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        ending = [token for token in closing if token in allowed]
        if stop in allowed and choose.random() < 0.5:
            token = stop
        elif ending and choose.random() < 0.3:
            token = choose.choice(ending)
        else:
            token = choose.choice(allowed)
        table.accept((0,), [token])
        assert table.failures == []
        if table.phase(0) is Phase.DONE:
            return b"".join(vocabulary.tokens[token] for token in table.tokens(0)[:-1])
    return None


def rules_out_constants(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
def test_an_output_that_ends_satisfies_its_schema(byte_vocabulary, config, whitespace):
    backend, ended = LLGuidanceBackend(byte_vocabulary, config), []

    @settings(
        max_examples=60,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(schema=schemas, seed=st.integers(0, 2**32 - 1))
    def holds(schema: dict[str, Any], seed: int) -> None:
        spec = OutputSpec.json_schema(schema, whitespace=whitespace)
        grammar, choose = backend.compile(spec), random.Random(seed)
        for _ in range(3):
            table = GrammarTable(byte_vocabulary)
            table.add(0, "r0", spec, grammar, backend)
            output = walk(table, byte_vocabulary, choose)
            ended.append(output is not None)
            if output is None:
                event("did not end")
                continue
            text = output.decode()
            value = json.loads(text, parse_constant=rules_out_constants)
            jsonschema.Draft202012Validator(schema).validate(value)
            if whitespace == "compact":
                assert not re.search(r"\s", STRING.sub("", text))

    holds()
    assert sum(ended) > 0.8 * len(ended), "too few walks ended for this test to say much"
