"""Specs that no backend can serve, or that ask for nothing clear: what a client is told
is looked at."""

from __future__ import annotations

from typing import Any

from tag_forms import const, json_of, tag, triggered

__all__ = ["FORMS", "GRAMMARS", "SCHEMAS", "TAGS", "in_tool"]


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


SCHEMAS: dict[str, tuple[Any, str, str]] = {
    # name: the schema, the place, what the message has
    "a name that nothing describes": (
        {**_object(a={}), "required": ["zz"], "additionalProperties": False},
        "#/required",
        "take it out",
    ),
    "the same further inside": (
        _object(x={**_object(a={}), "required": ["zz"], "additionalProperties": False}),
        "#/properties/x/required",
        '"zz"',
    ),
    "crossed bounds": (
        _object(a={"type": "integer", "minimum": 3, "maximum": 2}),
        "#/properties/a/minimum",
        "raise",
    ),
    "values of another type": (
        _object(a={"type": "integer", "enum": ["x"]}),
        "#/properties/a/enum",
        "`type`",
    ),
    "false": (False, "#", "false"),
    "a property that is false": (
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        "#/properties/a",
        "false",
    ),
    "not anything": ({"not": {}}, "#/not", "`not`"),
    "an empty enum": ({"enum": []}, "#/enum", "leave `enum` out"),
    "parts that contradict": (
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        "#/allOf",
        "`allOf`",
    ),
    "an empty member of allOf": (
        {"allOf": [{"type": "string"}, False]},
        "#/allOf/1",
        "false",
    ),
    "a pattern over its length": (
        {"type": "string", "pattern": "^a{10}$", "maxLength": 3},
        "#/maxLength",
        "`pattern`",
    ),
    "no multiple in range": (
        {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6},
        "#/maximum",
        "`multipleOf`",
    ),
    "no item may be there": (
        {"type": "array", "items": False, "minItems": 1},
        "#/items",
        "false",
    ),
    "an item that is empty": (
        {"type": "array", "items": {"enum": [1], "type": "null"}, "minItems": 1},
        "#/items/enum",
        "`type`",
    ),
    "a recursion without an end": (
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "#/required",
        "recursion",
    ),
    "the same beside items that could not be written where objects are open": (
        _object(
            r={"$ref": "#"},
            l={
                "type": "array",
                "uniqueItems": True,
                "items": _object(a={"type": "string"}),
            },
        ),
        "#/required",
        "recursion",
    ),
    "a prefix, and none behind it": (
        {
            "type": "array",
            "prefixItems": [{"enum": [1], "type": "null"}],
            "items": {"not": {}},
            "minItems": 1,
        },
        "#/minItems",
        "`prefixItems`",
    ),
    "behind a reference": (
        {
            "$defs": {
                "n": {
                    "type": "object",
                    "required": ["b"],
                    "additionalProperties": False,
                }
            },
            **_object(a={"$ref": "#/$defs/n"}),
        },
        "#/$defs/n/required",
        '"b"',
    ),
    "too few properties": (
        {"type": "object", "properties": {"a": {}}, "minProperties": 3},
        "#/minProperties",
        "strict: false",
    ),
    "contains of another type": (
        {"type": "array", "contains": {"type": "string"}, "items": {"type": "integer"}},
        "#/contains",
        "`items`",
    ),
    "a lookbehind": (
        _object(a={"type": "string", "pattern": "(?<=a)b"}),
        "#/properties/a/pattern",
        "lookbehind",
    ),
    "a backreference": (
        {"type": "string", "pattern": r"(a)\1"},
        "#/pattern",
        "backreference",
    ),
    "a pattern without an end": (
        {"type": "string", "pattern": "(a"},
        "#/pattern",
        "position",
    ),
    "a pattern of nothing": (
        {"type": "string", "pattern": r"^[^\s\S]$"},
        "#/pattern",
        "`pattern`",
    ),
    "divided by nothing": (
        {"type": "integer", "multipleOf": 0},
        "#/multipleOf",
        "greater than 0",
    ),
    "an unknown type": ({"type": "text"}, "#/type", "known: array"),
    "a reference to nothing": ({"$ref": "#/$defs/x"}, "#/$ref", "#/$defs/Name"),
    "a reference outside": ({"$ref": "http://x/y"}, "#/$ref", "$defs"),
    "a reference to itself": ({"$ref": "#"}, "#/$ref", "itself"),
    "too long": (
        {"type": "string", "minLength": 10**7},
        "#/minLength",
        "max_repetition",
    ),
    "a length in quotes": (
        {"type": "string", "minLength": "3"},
        "#/minLength",
        "without quotes",
    ),
    "a list in place of properties": (
        {"type": "object", "properties": []},
        "#/properties",
        "write it as {",
    ),
}

GRAMMARS: dict[str, tuple[dict[str, Any], str, str]] = {
    "regex, lookbehind": ({"regex": "(?<=a)b"}, "regex", "position 0"),
    "regex, open group": ({"regex": "(a"}, "regex", "backslash"),
    "regex, backreference": ({"regex": r"(a)\1"}, "regex", "position 3"),
    "regex, empty class": ({"regex": r"[^\s\S]"}, "regex", "empty class"),
    "regex, too long": ({"regex": "a{5000000}"}, "regex", "max_repetition"),
    "choice, surrogate": ({"choice": ["\ud800"]}, "choice[0]", "surrogate"),
    "ebnf, surrogate": (
        {"grammar": 'root ::=\n "\ud800"'},
        "grammar, line 2, column 3",
        "surrogate",
    ),
    "lark, surrogate": (
        {"grammar": 'start: "\ud800"'},
        "grammar, line 1, column 9",
        "surrogate",
    ),
    "ebnf, no root": ({"grammar": 'a ::= "x"'}, "grammar, line 1, column 1", "`root`"),
    "ebnf, undefined": (
        {"grammar": 'root ::= "a"\n  b'},
        "grammar, line 2, column 3",
        "define it",
    ),
    "ebnf, open text": ({"grammar": 'root ::= "x'}, "grammar, line 1", "double quote"),
    "ebnf, endless": ({"grammar": "root ::= root"}, "grammar", "recursion"),
    "ebnf, class": ({"grammar": "root ::= [z-a]"}, "grammar, line 1", "smaller"),
    "ebnf for llguidance": (
        {"grammar": 'root ::= "x"', "backend": "llguidance"},
        "grammar",
        "xgrammar",
    ),
    "lark given as ebnf": (
        {"grammar": 'start: "::="'},
        "grammar, line 1, column 6",
        'syntax="lark"',
    ),
    "ebnf given as lark": (
        {"grammar": 'root ::= "x"', "syntax": "lark"},
        "grammar, line 1, column 7",
        'syntax="ebnf"',
    ),
    "lark, no start": ({"grammar": 'a: "x"'}, "grammar", "`start`"),
    "lark, undefined": (
        {"grammar": 'start: "a"\n  | b'},
        "grammar, line 1, column 8",
        "define it",
    ),
    "lark, own header": (
        {"grammar": "%llguidance {}\nstart: b"},
        "grammar, line 2, column 8",
        "define it",
    ),
    "lark, open text": ({"grammar": 'start: "x'}, "grammar, line 1", "quote"),
    "lark, open groups": ({"grammar": "start: ((("}, "grammar, line 1", "bracket"),
    "lark, twice": (
        {"grammar": 'start: "a"\nstart: "b"'},
        "grammar, line 2",
        "keep one",
    ),
    "lark, lookbehind": (
        {"grammar": "start: /(?<=a)b/"},
        "grammar, line 1, column 8",
        "look-around",
    ),
    "lark, endless": ({"grammar": "start: start"}, "grammar", "recursion"),
    "lark, circle": (
        {"grammar": 'start: A\nA: A "x"'},
        "grammar, line 2",
        "lower case",
    ),
    "lark, json": (
        {"grammar": 'start: %json {"type":"text"}'},
        "grammar, line 1, column 8, #/type",
        "text",
    ),
    "lark, crossed json": (
        {"grammar": 'start: %json {"type":"integer","minimum":3,"maximum":2}'},
        "grammar, line 1",
        "minimum",
    ),
    "lark, token": (
        {"grammar": "start: <|nope|>"},
        "grammar, line 1, column 8",
        "vocabulary",
    ),
    "lark, import": (
        {"grammar": "%import common.NOPE\nstart: NOPE"},
        "grammar, line 1",
        "common.INT",
    ),
    "lark, directive": (
        {"grammar": '%foo\nstart: "a"'},
        "grammar, line 1",
        "directives",
    ),
}


def in_tool(schema: Any, name: str = "get_weather") -> dict[str, dict[str, Any]]:
    """A schema as the arguments of a tool, in the tags of several models and as one
    JSON array of calls."""
    styles = {
        "function": ("<function=", f"<function={name}>", "</function>"),
        "hermes": (
            "<tool_call>",
            f'<tool_call>\n{{"name": "{name}", "arguments": ',
            "}\n</tool_call>",
        ),
        "invoke": ("<invoke", f'<invoke name="{name}">', "</invoke>"),
    }
    found = {
        style: _tag(
            triggered(
                tag(begin.replace(name, "other"), {"type": "any_text"}, end),
                tag(begin, json_of(schema), end),
                triggers=(trigger,),
            )
        )
        for style, (trigger, begin, end) in styles.items()
    }
    found["older form"] = {
        "type": "structural_tag",
        "structures": [
            {"begin": f"<function={name}>", "schema": schema, "end": "</function>"}
        ],
        "triggers": ["<function="],
    }
    call = {
        "type": "object",
        "properties": {"name": {"enum": [name]}, "parameters": schema},
    }
    found["calls as JSON"] = {
        "json_schema": {
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [{**call, "required": ["name", "parameters"]}]},
        }
    }
    return found


def _tag(content: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": content}


_LOOKBEHIND = {"type": "regex", "pattern": "(?<=a)b"}
_NO_RULE = {"type": "grammar", "grammar": "root ::= b"}
_BACKWARDS = json_of({"type": "string", "pattern": r"(a)\1"})
TAGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "empty": (_tag({}), "#/format", "docs/specs.md"),
    "unknown": (_tag({"type": "foo"}), "#/format", "foo"),
    "no content": (_tag({"type": "tag", "begin": "<a>"}), "#/format", "content"),
    "no trigger": (
        _tag(triggered(tag("<f>", {"type": "any_text"}, "</f>"), triggers=("<x",))),
        "#/format/triggers",
        "trigger",
    ),
    "regex": (
        _tag(tag("<a>", _LOOKBEHIND, "</a>")),
        "#/format/content/pattern",
        "lookbehind",
    ),
    "grammar": (
        _tag(tag("<a>", _NO_RULE, "</a>")),
        "#/format/content",
        "of type 'grammar'",
    ),
    "in a sequence": (
        _tag({"type": "sequence", "elements": [const("a"), _BACKWARDS]}),
        "#/format/elements/1/json_schema/pattern",
        "backreference",
    ),
    "no alternative": (
        _tag({"type": "or", "elements": []}),
        "#/format/elements",
        "empty",
    ),
    "no format": ({"type": "structural_tag"}, "structural_tag", "format"),
}

FORMS: dict[str, tuple[Any, str]] = {
    "json_object is false next to its type": (
        {"type": "json_object", "json_object": False},
        "json_object: must be true",
    ),
    "json_object is false": ({"json_object": False}, "json_object: must be true"),
    "json_object is a word": ({"json_object": "yes"}, "json_object: must be true"),
    "json_object is a schema": (
        {"json_object": {"type": "object"}},
        '{"json_schema": {...}}',
    ),
    "json_schema is missing": ({"type": "json_schema"}, "has no 'json_schema'"),
    "json_schema is null": (
        {"type": "json_schema", "json_schema": None},
        "has no 'json_schema'",
    ),
    "the wrapper has no schema": (
        {"type": "json_schema", "json_schema": {"name": "x"}},
        "no `schema`",
    ),
    "the wrapped schema is null": (
        {"json_schema": {"name": "x", "schema": None}},
        "must be a mapping",
    ),
    "plain text with a schema": ({"type": "text", "json_schema": {}}, "plain text"),
    "two constraints": ({"regex": "a", "choice": ["b"]}, "more than one constraint"),
    "nothing": ({}, "is empty"),
    "null": ({"regex": None}, "regex is null"),
    "options alone": ({"strict": True}, "no constraint"),
    "a schema that is bare": (
        {"type": "object", "properties": {}},
        '{"json_schema": {...}}',
    ),
    "a number": (5, "mapping"),
    "a list": ([1], "mapping"),
    "text": ("abc", "JSON"),
    "an older form of nothing": ({"guided_json_object": False}, "no constraint"),
    "an older form with a number": ({"guided_regex": 5}, "must be a string"),
    "strict is a word": (
        {"json_schema": {"type": "string"}, "strict": "yes"},
        "true or false",
    ),
    "backend is a number": ({"regex": "a", "backend": 5}, "backend"),
    "syntax without a grammar": ({"regex": "a", "syntax": "lark"}, "syntax"),
    "an unknown syntax": ({"grammar": "x", "syntax": "peg"}, "ebnf, lark"),
    "a key in capitals": (
        {"json_schema": {"name": "x", "schema": {}, "Strict": True}},
        "did you mean 'strict'",
    ),
    "JSON that is cut": ({"json_schema": '{"type": '}, "line 1"),
    "a choice that is a text": ({"choice": "a"}, "list of strings"),
    "a choice of numbers": ({"choice": [1]}, "choice[0]"),
    "an empty choice": ({"choice": []}, "nothing"),
    "a regex that is a number": (
        {"type": "regex_schema", "regex_schema": 3},
        "must be a string",
    ),
}
