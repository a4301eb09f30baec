"""Lists of tools as clients write them: each tool, and where its schema is."""

import pytest

from guided_plugin.diagnose.tools import left_behind, tools_of
from guided_plugin.errors import SpecError

A = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT = {"type": "function", "function": {"name": "a", "parameters": A}}
FLAT = {"type": "function", "name": "a", "parameters": A, "strict": True}
MCP = {"name": "a", "description": "A tool.", "inputSchema": A}


@pytest.mark.parametrize(
    ("document", "places"),
    [
        ([CHAT, CHAT], ["/0/function/parameters", "/1/function/parameters"]),
        ([FLAT], ["/0/parameters"]),
        (
            {"model": "m", "messages": [], "grammar": "x", "tools": [FLAT]},
            ["/tools/0/parameters"],
        ),
        ({"tools": [MCP], "nextCursor": "x"}, ["/tools/0/inputSchema"]),
        (
            {"jsonrpc": "2.0", "id": 1, "result": {"tools": [MCP]}},
            ["/result/tools/0/inputSchema"],
        ),
        (
            [{"type": "custom", "name": "a", "input_schema": A}],
            ["/0/input_schema"],
        ),
        (
            [{"type": "namespace", "name": "n", "tools": [FLAT]}, {"type": "web"}],
            ["/0/tools/0/parameters"],
        ),
        (CHAT, ["/function/parameters"]),
        (MCP, ["/inputSchema"]),
    ],
)
def test_tools_are_found_in_each_form(document, places):
    assert tools_of(document) == [("a", place, A) for place in places]


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "a"}},
        {"type": "function", "function": {"name": "a", "parameters": None}},
        {"name": "a"},
    ],
)
def test_a_tool_without_a_schema_takes_an_object(tool):
    ((name, _, schema),) = tools_of([tool])
    assert (name, schema) == ("a", {"type": "object"})


@pytest.mark.parametrize(
    "document",
    [
        A,
        True,
        "text",
        {"tools": 3},
        {"properties": {"tools": {}}, "parameters": {}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": A}},
    ],
)
def test_other_documents_list_none(document):
    assert tools_of(document) is None


@pytest.mark.parametrize(
    ("document", "where", "what"),
    [
        ([], "#", "lists no tools"),
        ({"tools": []}, "#/tools", "lists no tools"),
        ([CHAT, 3], "#/1", "is not a tool: 3"),
        ([{"type": "function", "function": {}}], "#/0", "is not a tool"),
        ([{"type": "function"}], "#/0", "is not a tool"),
        ({"function": {"parameters": A}}, "#", "is not a tool"),
        ([{"name": "a", "paramters": A}], "#/0/paramters", "unknown key of tool 'a'"),
        (
            [{"function": {"name": "a", "parameter": A}}],
            "#/0/function/parameter",
            "unknown key of tool 'a'",
        ),
    ],
)
def test_what_is_no_tool_is_refused_at_its_place(document, where, what):
    with pytest.raises(SpecError) as caught:
        tools_of(document)
    assert caught.value.where == where
    assert what in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": A}}, []),
        ({"$ref": "other.json"}, []),
        ({"properties": {"a": {"$ref": "#/definitions/a"}}}, ["#/properties/a/$ref"]),
        ({"items": {"$ref": "#"}}, ["#/items/$ref"]),
        (
            {"$ref": "#/definitions/a", "items": {"$ref": "#/definitions/b"}},
            ["#/$ref"],
        ),
    ],
)
def test_references_that_vllm_leaves_behind(schema, places):
    assert [told.partition(":")[0] for told in left_behind(schema)] == places
