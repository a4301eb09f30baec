"""Schemas whose properties are written as XML elements: strings as raw text, other
values as JSON.

Depends on fields and texts. Takes objects of described properties; the rest is refused.
Whitespace is at most one line's end: before elements and the end, and in some styles
around values that are not any string.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from guided_plugin.grammar.llguidance.tags.fields import is_text, refusal
from guided_plugin.grammar.llguidance.tags.nodes import (
    EMPTY,
    Node,
    Schema,
    optional,
    sequence,
)
from guided_plugin.grammar.llguidance.tags.texts import Texts
from guided_plugin.keywords import ANNOTATIONS
from guided_plugin.spec.references import Path

_SHARED = ("$schema", "$defs", "definitions")
_OF_OBJECTS = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    *_SHARED,
    *ANNOTATIONS,
}
_OF_STRINGS = {"type", "enum", "const", *ANNOTATIONS}


@dataclass(frozen=True, slots=True)
class _Style:
    """The texts around a value. `{key}` and `{raw}` (whether it is raw text) are filled
    in."""

    begins: tuple[str, ...]
    end: str
    lines: tuple[str, ...] = ("", "\n")
    """The texts that may be around a value that is not any string."""


STYLES = {
    "qwen_xml": _Style(("<parameter={key}>",), "</parameter>"),
    "minimax_xml": _Style(('<parameter name="{key}">',), "</parameter>"),
    "deepseek_xml": _Style(
        ('<｜DSML｜parameter name="{key}" string="{raw}">',),
        "</｜DSML｜parameter>",
        lines=("",),
    ),
    "deepseek_v4_1_xml": _Style(
        ('<｜DSML｜ parameter name="{key}" string="{raw}">',),
        "</｜DSML｜ parameter>",
        lines=("",),
    ),
    "glm_xml": _Style(
        (
            "<arg_key>{key}</arg_key><arg_value>",
            "<arg_key>{key}</arg_key>\n<arg_value>",
        ),
        "</arg_value>",
    ),
}


def xml_elements(
    texts: Texts, style: str, schema: Any, path: Path, ends: tuple[str, ...]
) -> Node:
    """The properties of a schema in a style, in the order of the schema, and one of the
    ends."""
    found = STYLES[style]
    _check_object(schema, path)
    shared = {key: schema[key] for key in _SHARED if key in schema}
    parts = []
    for key, value in schema["properties"].items():
        place = (*path, "properties", key)
        strings = _strings(value, place)
        raw = "false" if strings is None else "true"
        begins = [
            begin.replace("{raw}", raw).replace("{key}", key) for begin in found.begins
        ]
        if strings == []:
            free = texts.free((found.end,), (found.end,), [(found.end, EMPTY)], place)
            element = sequence([_after_line(texts, begins), free])
        else:
            content = (
                Schema({**shared, **value}, place, shared=path, without_strings=True)
                if strings is None
                else texts.one_of(strings)
            )
            heads = [begin + line for begin in begins for line in found.lines]
            tails = [line + found.end for line in found.lines]
            element = sequence(
                [_after_line(texts, heads), content, texts.one_of(tails)]
            )
        required = key in schema.get("required", ())
        parts.append(element if required else optional(element))
    return sequence([*parts, _after_line(texts, ends)])


def _after_line(texts: Texts, options: Collection[str]) -> Node:
    """Texts that may come after a line's end. It is part of them, as a lexer takes the
    longest text that fits."""
    lines = ["\n" + text for text in options if not text.startswith("\n")]
    return texts.one_of([*options, *lines])


def _check_object(schema: Any, path: Path) -> None:
    """Refuse what is not a closed object of described properties."""
    closed = (
        isinstance(schema, dict)
        and schema.get("type") == "object"
        and "properties" in schema
        and schema.get("additionalProperties", False) is False
    )
    if not closed:
        raise refusal("an object that takes any properties, as XML,", path)
    for keyword in schema:
        if keyword not in _OF_OBJECTS:
            raise refusal(f"`{keyword}`, as XML,", (*path, keyword))
    properties = schema["properties"]
    if not properties.keys() >= set(schema.get("required", ())):
        what = "a required property that is not described, as XML,"
        raise refusal(what, (*path, "required"))
    for key, value in properties.items():
        named = is_text(key) and set(key).isdisjoint('<>"&\n')
        if not named or not isinstance(value, dict):
            what = "a property of this name, or of any value, as XML,"
            raise refusal(what, (*path, "properties", key))


def _strings(value: dict[str, Any], path: Path) -> list[str] | None:
    """The texts that a string may be, none for any. None: it is not a string."""
    single = [value["const"]] if "const" in value else []
    listed = value.get("enum", single)
    if value.get("type") != "string" and (not listed or "type" in value):
        return None
    if not all(isinstance(each, str) for each in listed):
        return None
    if not _OF_STRINGS.issuperset(value) or {"enum", "const"} <= value.keys():
        raise refusal("a string with further keywords, as XML,", path)
    return list(dict.fromkeys(listed))
