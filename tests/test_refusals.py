"""Every refusal of a spec names the place, what is wrong, what to change and, inside
tools, the tool."""

import json
import random
import re

import jsonschema
import official_suite
import pytest
from refused_specs import FORMS, GRAMMARS, SCHEMAS, TAGS, in_tool

import guided_plugin as gp
from guided_plugin.errors import (
    GrammarError,
    GuidedError,
    SpecError,
    UnsatisfiableSpecError,
)
from guided_plugin.keywords import ASSERTIONS
from guided_plugin.spec.telling import tool_at


def refused(compiler, form, **options):
    def admit():
        compiler.compile(
            gp.OutputSpec.json_schema(form, **options)
            if options
            else gp.OutputSpec.parse(form)
        )

    with pytest.raises(GuidedError) as caught:
        admit()
    return caught.value


def lacks(error, keyword=True):
    """What a client needs and the error doesn't have."""
    found = []
    if not error.where.startswith(("#", "grammar", "regex", "choice", "backend")):
        found.append("a place")
    last = r"^(regex|choice)|/([A-Za-z$]+|patternProperties/.*)$"
    if keyword and "`" not in error.what and not re.search(last, error.where):
        found.append("a keyword")
    if not error.hint:
        found.append("a remedy")
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(compiler, name):
    schema, where, says = SCHEMAS[name]
    error = refused(compiler, {"json_schema": {"schema": schema}})
    assert error.where == where
    assert says in str(error)
    assert lacks(error) == []


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_of_tools(compiler, name):
    schema, where, _ = SCHEMAS[name]
    # References are about another root there, and a tool that can never be called
    # leaves free text.
    if "$ref" in str(schema) or name == "a pattern of nothing":
        return
    for style, form in in_tool(schema).items():
        error = refused(compiler, form)
        assert error.where.startswith("#/"), (style, error)
        if style != "calls as JSON" or not isinstance(error, UnsatisfiableSpecError):
            assert error.where.endswith(where.removeprefix("#")), (style, error)
            assert "tool 'get_weather'" in str(error), style
        assert error.hint


WRONG = (
    None,
    True,
    -1,
    1.5,
    7,
    "5",
    "",
    [],
    {},
    [None],
    [7],
    [[]],
    {"a": 7},
    {"a": [7]},
)


@pytest.mark.parametrize("keyword", sorted(ASSERTIONS | {"$defs", "definitions"}))
def test_a_keyword_of_the_wrong_type_is_told_the_same_wherever_its_schema_is(
    compiler, keyword
):
    meta = jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA)
    seen = 0
    for value in WRONG:
        inner = {"title": "x", keyword: value}
        outside = told_of(
            compiler, {"json_schema": {"schema": {"properties": {"a": inner}}}}
        )
        # What the newest draft takes is for the backend to say, and older drafts have
        # more.
        if outside is None or meta.is_valid(inner):
            continue
        schema = {"type": "object", "properties": {"a": inner}}
        for style, form in {**in_tool(schema), **in_older_tag(schema)}.items():
            inside = told_of(compiler, form)
            assert inside is not None, (style, value)
            assert (
                inside.what.removesuffix(", in tool 'get_weather'") == outside.what
            ), style
            assert inside.where.endswith(outside.where.removeprefix("#")), style
            assert inside.hint == outside.hint
        seen += 1
    assert seen > 1 or keyword in (
        "const",
        "additionalItems",
        "definitions",
        "dependencies",
        "items",
    )


def told_of(compiler, form):
    """The error of a schema that is malformed; None where nothing is wrong with its
    types."""
    try:
        spec = gp.OutputSpec.parse(form)
        compiler.compile(spec)
    except SpecError as error:
        return error
    except GrammarError:
        return None
    return None


def in_older_tag(schema):
    older = {"begin": "<function=get_weather>", "schema": schema, "end": "</function>"}
    tag = {"structures": [older], "triggers": ["<function="]}
    return {"older tag": {"structural_tag": tag}}


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_a_number_that_json_does_not_have_is_told(compiler, number):
    schema = {"properties": {"a": {"enum": [1, number]}}}
    for form in (schema, json.dumps(schema)):
        error = refused(compiler, {"json_schema": form})
        assert error.where == "#"
        assert "Infinity" in error.what
    for style, form in in_tool(schema).items():
        assert "Infinity" in refused(compiler, form).what, style


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(compiler, name):
    form, where, says = GRAMMARS[name]
    error = refused(compiler, form)
    assert error.where.startswith(where)
    assert says in str(error)
    assert lacks(error, keyword=False) == []


@pytest.mark.parametrize("name", TAGS)
def test_tags(compiler, name):
    form, where, says = TAGS[name]
    error = refused(compiler, form)
    assert error.where.startswith(where)
    assert says in str(error)
    assert error.hint


@pytest.mark.parametrize("name", FORMS)
def test_forms(compiler, name):
    form, says = FORMS[name]
    error = refused(compiler, form)
    assert error.where
    assert error.hint
    assert says in str(error)


@pytest.mark.skipif(
    not official_suite.ARCHIVE.is_file(), reason="the official suite is not there"
)
def test_refusals_of_the_official_suite(compiler):
    groups = [
        group
        for draft in official_suite.DRAFTS
        for group in official_suite.groups(draft)
    ]
    random.Random(4).shuffle(groups)
    seen = []
    for group in groups[:400]:
        for strict in (True, False):
            try:
                compiler.compile(gp.OutputSpec.json_schema(group.schema, strict=strict))
            except GuidedError as error:
                seen.append((lacks(error), group.name, str(error)))
    assert len(seen) > 10
    assert [told for told in seen if told[0]] == []


def test_an_unsatisfiable_schema_that_opening_does_not_help_is_not_told_to_open(
    byte_vocabulary,
):
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1, "type": "string"}},
        "required": ["a"],
    }
    made = gp.GrammarCompiler(byte_vocabulary)
    assert "strict" not in str(refused(made, schema, strict=True))


@pytest.mark.parametrize(
    ("begin", "told"),
    [
        ("<function=get_it>", "tool 'get_it'"),
        ('{"name": "get_it", "arguments": ', "tool 'get_it'"),
        ('<invoke name="get_it">', "tool 'get_it'"),
        ("<|tool_call|>functions.get_it:0", "tool 'get_it'"),
        ("<think>", None),
    ],
)
def test_the_name_of_a_tool_is_read_from_its_tag(begin, told):
    assert (
        tool_at({"format": {"begin": begin, "content": {"x": 1}}}, "#/format/content/x")
        == told
    )
    assert tool_at({"format": {"x": 1}}, "#/format/x") is None
    assert tool_at({"format": {"begin": begin}}, "#/other") is None
