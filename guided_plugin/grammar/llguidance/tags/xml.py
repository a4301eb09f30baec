"""Schemas whose properties are written as XML elements: strings as raw text, other
values as JSON.

Depends on fields. Takes objects of described properties; the rest is refused.
Whitespace is at most one line's end between elements and around values that are not any
string.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from guided_plugin.errors import shown
from guided_plugin.grammar.llguidance.tags.fields import Fields, Reading, refusal
from guided_plugin.grammar.llguidance.tags.nodes import (
    EMPTY,
    Dispatch,
    Node,
    Path,
    Schema,
    Text,
    closed,
    either,
    optional,
    sequence,
)
from guided_plugin.keywords import ANNOTATIONS

_SHARED = ("$schema", "$defs", "definitions")


@dataclass(frozen=True, slots=True)
class _Style:
    """The texts around a value. `{key}` and `{string}` (whether it is raw text) are
    filled in."""

    begin: str
    end: str
    lines: tuple[str, ...] = ("", "\n")
    """What may be around a text that is one of several."""


_STYLES = {
    "qwen_xml": _Style("<parameter={key}>", "</parameter>"),
    "minimax_xml": _Style('<parameter name="{key}">', "</parameter>"),
    "deepseek_xml": _Style(
        '<｜DSML｜parameter name="{key}" string="{string}">',
        "</｜DSML｜parameter>",
        ("",),
    ),
    "deepseek_v4_1_xml": _Style(
        '<｜DSML｜ parameter name="{key}" string="{string}">',
        "</｜DSML｜ parameter>",
        ("",),
    ),
    "glm_xml": _Style("<arg_key>{key}</arg_key>{line}<arg_value>", "</arg_value>"),
}


def xml_schema(reading: Reading, node: Fields, path: Path) -> Node:
    """The properties of a schema in a style, in the order of the schema."""
    style = _STYLES.get(node["style"]) if isinstance(node["style"], str) else None
    if style is None:
        raise refusal(f"a style of {shown(node['style'])}", (*path, "style"))
    if node.get("any_order") or not reading.strict:
        hint = "use strict: true and no any_order"
        raise refusal(
            f"a style of {shown(node['style'])} with these options",
            (*path, "style"),
            hint,
        )
    schema = node["json_schema"]
    path = (*path, "json_schema")
    properties, required = _described(schema, path)
    shared = {key: schema[key] for key in _SHARED if key in schema}
    # In front of an end that begins with one, a line's end belongs to what comes next.
    ahead = any(end.startswith("\n") for end in reading.ends)
    parts: list[Node] = [] if ahead else [optional(Text("\n"))]
    for key, value in properties.items():
        part = _element(
            reading, style, key, value, shared, (*path, "properties", key), ahead=ahead
        )
        if not ahead:
            part = sequence([part, optional(Text("\n"))])
        parts.append(part if key in required else optional(part))
    return sequence(parts)


def _described(schema: Any, path: Path) -> tuple[dict[str, Any], list[str]]:
    """The properties of a closed object and those that it requires."""
    described = (
        isinstance(schema, Mapping)
        and schema.get("type") == "object"
        and "properties" in schema
    )
    if not described or schema.get("additionalProperties", False) is not False:
        raise refusal("an object that takes any properties, as XML,", path)
    known = {
        "type",
        "properties",
        "required",
        "additionalProperties",
        *_SHARED,
        *ANNOTATIONS,
    }
    unknown = next((key for key in schema if key not in known), None)
    if unknown is not None:
        raise refusal(
            f"`{unknown}` of an object that is written as XML", (*path, unknown)
        )
    properties = schema["properties"]
    required = schema.get("required", [])
    if any(name not in properties for name in required):
        raise refusal(
            "a required property that is not described, as XML,", (*path, "required")
        )
    if any(character in key for key in properties for character in '<>"&\n'):
        raise refusal("a property of this name, as XML,", (*path, "properties"))
    return properties, required


def _element(
    reading: Reading,
    style: _Style,
    key: str,
    value: Any,
    shared: Mapping[str, Any],
    path: Path,
    *,
    ahead: bool,
) -> Node:
    raw = _raw_values(value, path)
    string = raw is not None
    begins = [
        style.begin.replace("{line}", line)
        .replace("{string}", str(string).lower())
        .replace("{key}", key)
        for line in (("", "\n") if "{line}" in style.begin else ("",))
    ]
    if ahead:
        begins += ["\n" + begin for begin in begins]
    spelled = reading.names.spelled
    if raw == []:
        free = closed(Dispatch((), (style.end,)), [Text(style.end)], reading.names)
        return sequence([either([spelled(begin) for begin in begins]), free])
    content = either([spelled(text) if text else EMPTY for text in raw or [""]])
    lines = style.lines
    if raw is None:
        lines = ("", "\n")
        whole = {**shared, **value} if isinstance(value, Mapping) and shared else value
        content = Schema(
            whole, path, shared=path[:-2] if shared else None, without_strings=True
        )
    heads = [spelled(begin + line) for begin in begins for line in lines]
    return sequence(
        [either(heads), content, either([spelled(line + style.end) for line in lines])]
    )


def _raw_values(value: Any, path: Path) -> list[str] | None:
    """Of a string, the texts that it may be; none listed: any. None: it is no
    string."""
    if not isinstance(value, Mapping):
        return None
    listed = value.get("enum", [value["const"]] if "const" in value else None)
    if listed is not None and all(isinstance(each, str) for each in listed):
        known = {"enum", "const", "type", *ANNOTATIONS}
        if not known.issuperset(value) or ("const" in value and "enum" in value):
            raise refusal("a string with values and other keywords, as XML,", path)
        return (
            list(dict.fromkeys(listed))
            if value.get("type", "string") == "string"
            else None
        )
    if value.get("type") != "string":
        return None
    if not {"type", *ANNOTATIONS}.issuperset(value):
        raise refusal("a string with a pattern, a format or a length, as XML,", path)
    return []
