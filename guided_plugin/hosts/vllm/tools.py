"""`tools_strict`: every tool is held to its schema, whatever its own `strict` says. Imports vLLM lazily.

vLLM builds the tag of a request with tools by a strict level, which its server gives to its parsers
(`--tool-strict-level`). With the option it is the highest one: the calls of each tool, named, `required` or
`auto`, have the form that the model's parser reads, and arguments that satisfy the tool's schema.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from guided_plugin.hosts.vllm.contract import broken
from guided_plugin.hosts.vllm.parts import Part
from guided_plugin.hosts.vllm.wrapping import wrap

_log = logging.getLogger(__name__)

_HIGHEST = "parameter"


def hold_tools() -> None:
    """Have the parsers of this process's server hold every tool to its schema. Works once."""
    error = broken(Part.TOOLS)
    if error is not None:
        _log.error("tools_strict has no effect: %s", error.reason)
        return
    from vllm.parser.parser_manager import ParserManager

    def make(original: Any) -> Any:
        def get_parser(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **{**kwargs, "tool_strict_level": _HIGHEST})

        return get_parser

    wrap(ParserManager, "get_parser", make)
    wrap(import_module("vllm.tool_parsers.structural_tag_registry"), "resolve_tool_strictness", _described)


def _described(original: Any) -> Any:
    """A tool without parameters takes an empty object. vLLM reads that as any JSON: `"arguments": false`."""

    def resolve_tool_strictness(*args: Any, **kwargs: Any) -> Any:
        tools = original(*args, **kwargs)
        return None if tools is None else list(map(_with_parameters, tools))

    return resolve_tool_strictness


def _with_parameters(tool: Any) -> Any:
    function = getattr(tool, "function", tool)  # Responses have its fields in the tool
    if getattr(function, "parameters", {}) is not None:
        return tool
    function = function.model_copy(update={"parameters": {"type": "object", "properties": {}}})
    return tool.model_copy(update={"function": function}) if hasattr(tool, "function") else function
