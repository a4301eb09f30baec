"""Tools as clients list them: in a request to OpenAI's API, or as an MCP server does.

Finds the schema of each tool's arguments, and compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from guided_plugin.errors import SpecError, near_miss, shown
from guided_plugin.spec.references import pointer
from guided_plugin.spec.schema import walk

_SCHEMAS = ("parameters", "inputSchema", "input_schema")
"""The key of the schema of a tool's arguments: OpenAI's, MCP's and Anthropic's."""

_FORM = 'write {"type": "function", "function": {"name": ..., "parameters": {...}}}'


class Tool(NamedTuple):
    """A tool, and the schema of its arguments."""

    name: str
    at: str
    """The JSON pointer of the schema in the document."""
    schema: Any


def tools_of(document: Any) -> list[Tool] | None:
    """The tools that a document lists; None where it lists none.

    Takes a list, one tool, an object with `tools` such as the body of a request, and
    what an MCP server answers to `tools/list`. Raises SpecError for what stands in a
    list and is not a tool.
    """
    at = ""
    for key in ("result", "tools"):
        if isinstance(document, dict) and isinstance(document.get(key), dict | list):
            document = document[key]
            at += f"/{key}"
    if isinstance(document, list):
        return list(_tools(document, at))
    alone = isinstance(document, dict) and "properties" not in document
    if alone and {"function", *_SCHEMAS} & document.keys():
        return list(_tool(document, at))
    return None


def _tools(tools: list[Any], at: str) -> Iterator[Tool]:
    if not tools:
        raise SpecError("lists no tools", where=f"#{at}", hint=_FORM)
    for index, tool in enumerate(tools):
        yield from _tool(tool, f"{at}/{index}")


def _tool(tool: Any, at: str) -> Iterator[Tool]:
    match tool:
        case {"function": {"name": str(name)} as function}:
            at += "/function"
        case {"tools": list(inside)}:  # a namespace of OpenAI's Responses
            yield from _tools(inside, f"{at}/tools")
            return
        case {"type": str(kind)} if kind != "function" and not {*_SCHEMAS} & {*tool}:
            return  # a tool of the server's own has no schema
        case {"name": str(name)}:
            function = tool
        case _:
            raise SpecError(f"is not a tool: {shown(tool)}", where=f"#{at}", hint=_FORM)
    for key in function:
        if near := near_miss(key, _SCHEMAS):
            raise SpecError(
                f"unknown key of tool {name!r}",
                where=f"#{at}/{key}",
                hint=f"did you mean {near!r}?",
            )
    key = next((key for key in _SCHEMAS if function.get(key) is not None), None)
    if key is None:
        yield Tool(name, at, {"type": "object"})
    else:
        yield Tool(name, f"{at}/{key}", function[key])


def left_behind(schema: Any) -> Iterator[str]:
    """A warning of the references of a tool's schema that vLLM leaves behind where
    some tool must be called: it puts the schema into one of its own, whose `$defs` are
    those of all tools."""
    lost = [
        (*path, "$ref")
        for path, node in walk(schema)
        if isinstance(node, Mapping)
        and re.match(r"#(?!/\$defs/)", str(node.get("$ref")))
    ]
    if lost:
        yield (
            f'{pointer(lost[0])}: with `tool_choice: "required"` vLLM keeps only `$defs`, '
            f"and references elsewhere ({len(lost)} here) point at nothing (rename "
            "`definitions` to `$defs`)"
        )
