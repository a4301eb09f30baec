"""Which objects take names that nothing describes: those that describe none, with each
backend."""

import itertools
import json

import pytest
from instances import near, text_of
from llguidance_specs import VOCABULARY
from oracle import oracle

from guided_plugin import GuidedConfig, OutputSpec
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import UnsupportedSpecError

OPEN = {"type": "object"}
CLOSED = {"additionalProperties": False}
NULL = {"type": "null"}
LIST = {"type": "array", "items": OPEN}


def of(properties, **more):
    return {"type": "object", "properties": properties, **more}


# With `strict`, what each means as the standard reads it.
MEANINGS = [
    (OPEN, OPEN),
    (of({}), OPEN),
    ({**OPEN, "additionalProperties": True}, OPEN),
    ({**OPEN, "additionalProperties": NULL}, {**OPEN, "additionalProperties": NULL}),
    ({**OPEN, **CLOSED}, {**OPEN, **CLOSED}),
    (of({"a": NULL}), of({"a": NULL}, **CLOSED)),
    (of({"a": OPEN}), of({"a": OPEN}, **CLOSED)),
    (
        of({"a": NULL}, required=["b"]),
        of({"a": NULL, "b": {}}, required=["b"], **CLOSED),
    ),
    ({"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": OPEN}}, LIST),
]
SAME = [
    {**OPEN, "minProperties": 1},
    {**OPEN, "minProperties": 2, "maxProperties": 3},
    {**OPEN, "required": ["a"]},
    {**OPEN, "required": ["a", "b"], "minProperties": 3},
    {**OPEN, "propertyNames": {"enum": ["a", "b"]}},
    {**OPEN, "not": of({"a": NULL})},
    {"anyOf": [OPEN, of({"a": NULL}, required=["a"])]},
]
PATTERN = {"^x": NULL}
LLGUIDANCE = [
    *MEANINGS,
    *((schema, schema) for schema in SAME),
    (
        {**OPEN, "patternProperties": PATTERN},
        {**OPEN, "patternProperties": PATTERN, **CLOSED},
    ),
    (
        {**OPEN, "patternProperties": PATTERN, "required": ["x", "b"]},
        of({"b": {}}, patternProperties=PATTERN, required=["x", "b"], **CLOSED),
    ),
    (
        of({"a": NULL}, dependentRequired={"a": ["b"]}),
        {
            "anyOf": [
                of({}, **CLOSED),
                of({"a": NULL, "b": {}}, required=["a", "b"], **CLOSED),
            ]
        },
    ),
    (
        # A name that only a negation asks for is not described.
        {"oneOf": [of({"a": NULL}, required=["a"]), of({"b": NULL}, required=["b"])]},
        {"anyOf": [of({name: NULL}, required=[name], **CLOSED) for name in "ab"]},
    ),
    (of({"a": {}}, anyOf=[OPEN, of({"b": {}})]), of({"a": {}, "b": {}}, **CLOSED)),
]
FORMS = {
    "schema": OutputSpec.json_schema,
    "tag": lambda schema, **options: OutputSpec.structural_tag(
        {"format": {"type": "json_schema", "json_schema": schema}}, **options
    ),
    "lark": lambda schema, **options: OutputSpec.grammar(
        f"start: %json {json.dumps(schema)}", "lark", **options
    ),
}


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(
        VOCABULARY, config=GuidedConfig(threads=1, isolate_compiles=False)
    )


def taken(compiler, spec, value):
    """Whether an output has this value. With `strict` the names of an object may have
    one order only."""
    grammar = compiler.compile(spec)
    backend = compiler.backend(grammar.backend)
    items = (
        list(itertools.islice(value.items(), 4)) if isinstance(value, dict) else None
    )
    for order in (
        itertools.permutations(items) if items and len(items) == len(value) else [None]
    ):
        matcher = backend.start(grammar, VOCABULARY.stop_token_ids)
        text = text_of(value if order is None else dict(order)).encode(
            errors="surrogatepass"
        )
        if matcher.accept_text(text) and matcher.complete:
            return True
    return False


def compare(compiler, spec, means):
    judge = oracle(means)
    seen = set()
    seeds = [
        {},
        {"a": 1},
        {"b": [{"c": 2}]},
        {"a": None},
        {"a": None, "b": None},
        {"x": None, "b": 1},
        {"a": {"b": 1}},
        {"a": 1, "b": 2, "c": 3},
    ]
    for value in near(means, [*seeds, *([seed] for seed in seeds)], count=150, seed=1):
        try:
            text_of(value).encode()
        except UnicodeEncodeError:
            continue
        seen.add(judge(value))
        assert taken(compiler, spec, value) is judge(value), (spec.summary(), value)
    assert seen == {True, False}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("schema", "means"), LLGUIDANCE, ids=lambda each: json.dumps(each)[:60]
)
def test_with_strict_an_object_is_closed_where_it_describes_properties(
    compiler, form, schema, means
):
    spec = FORMS[form](schema, strict=True)
    unlisted = schema.get("minProperties", 0) - len(schema.get("required", ()))
    if form == "lark" and unlisted > 1:
        with pytest.raises(UnsupportedSpecError, match="inside a grammar"):
            compiler.compile(spec)
    else:
        compare(compiler, spec, means)


@pytest.mark.parametrize(
    "schema", [one for one, _ in LLGUIDANCE], ids=lambda each: json.dumps(each)[:60]
)
def test_without_strict_schemas_mean_what_the_standard_says(compiler, schema):
    compare(compiler, OutputSpec.json_schema(schema, strict=False), schema)


def test_no_text_of_an_open_object_has_spaces_that_were_not_asked_for(compiler):
    grammar = compiler.compile(
        OutputSpec.json_schema(of({"a": OPEN}), whitespace="compact")
    )
    for text, good in [
        ('{"a":{"b":1,"c":[1,2]}}', True),
        ('{"a":{"b":1, "c":[1,2]}}', False),
    ]:
        backend = compiler.backend(grammar.backend)
        matcher = backend.start(grammar, VOCABULARY.stop_token_ids)
        assert (matcher.accept_text(text.encode()) and matcher.complete) is good
