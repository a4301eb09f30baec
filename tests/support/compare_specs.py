"""Schemas, regexes, grammars and tags of the requests in `compare_requests`."""

__all__ = ["GRAMMARS", "HARD", "RECORD", "REGEXES", "SCHEMAS", "TAGS", "obj"]


def obj(closed=True, **properties):
    made = {"type": "object", "properties": properties, "required": list(properties)}
    return {**made, "additionalProperties": False} if closed else made


SHORT = {"type": "string", "maxLength": 6}
RECORD = obj(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 120})

SCHEMAS = {
    "record": RECORD,
    "open object": obj(False, a={"type": "boolean"}),
    "optional": {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}},
    "nested": obj(a=obj(b=obj(c={"type": "boolean"}))),
    "array": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [{"const": "a"}, {"type": "boolean"}], "items": False},
    "enum": {"enum": ["a", "b c", 3, None, True]},
    "const": obj(kind={"const": "record"}, ok={"type": "boolean"}),
    "integer bounds": obj(n={"type": "integer", "minimum": -5, "maximum": 300}),
    "number bounds": obj(n={"type": "number", "minimum": 0, "exclusiveMaximum": 2}),
    "lengths": obj(s={"type": "string", "minLength": 2, "maxLength": 4}),
    "pattern": obj(s={"type": "string", "pattern": "^[a-f]{2,5}$"}),
    "date": obj(d={"type": "string", "format": "date"}),
    "uuid": obj(d={"type": "string", "format": "uuid"}),
    "ipv4": obj(d={"type": "string", "format": "ipv4"}),
    "anyOf": obj(a={"anyOf": [{"type": "boolean"}, {"const": "x"}]}),
    "nullable": obj(a={"type": ["boolean", "null"]}),
    "$ref": {**obj(a={"$ref": "#/$defs/b"}), "$defs": {"b": {"type": "boolean"}}},
    "allOf of one": obj(a={"allOf": [{"type": "boolean"}]}),
    "annotations": {**obj(a={"type": "boolean", "description": "d", "default": True}), "title": "t"},
    "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 1},
    "true": True,
}
HARD = {
    "multipleOf": obj(n={"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 7}),
    "uniqueItems": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "uniqueItems": True},
    "if": {
        **RECORD,
        "if": {"properties": {"name": {"const": "x"}}},
        "then": {"properties": {"age": {"const": 1}}},
    },
    "not": obj(n={"type": "integer", "minimum": 0, "maximum": 9, "not": {"const": 0}}),
    "contains": {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}, "maxItems": 3},
    "oneOf": obj(a={"oneOf": [{"type": "boolean"}, {"const": True}]}),
    "pattern and length": obj(s={"type": "string", "pattern": "^[a-f]+$", "maxLength": 5}),
    "minProperties": {
        **obj(False, a={"type": "boolean"}),
        "minProperties": 2,
        "additionalProperties": {"const": 1},
    },
    "propertyNames": {
        "type": "object",
        "propertyNames": {"pattern": "^[ab]$"},
        "additionalProperties": {"const": 1},
    },
    "dependentRequired": {
        "properties": {"a": {"const": 1}, "b": {"const": 2}},
        "type": "object",
        "dependentRequired": {"a": ["b"]},
    },
    "email": obj(d={"type": "string", "format": "email"}),
    "allOf": obj(n={"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}),
}
REGEXES = {
    "digits": "[0-9]{3}",
    "words": "(red|green) (cat|dog)",
    "anchored": "^ab?c$",
    "escapes": r"\d{2}-\w{3}",
    "optional": "a(b(c)?)?",
    "lazy": "[ab]+?c{2}",
    "dot": "x.{2}y",
    "unicode": "[äöü]{2}€",
    "group": "(?:ab|cd){2}",
}
GRAMMARS = {
    "ebnf": ('root ::= "a" root "b" | "ab"', r"a+b+"),
    "ebnf classes": ('root ::= [a-c]+ "." digit\ndigit ::= [0-9]', r"[a-c]+\.[0-9]"),
    "lark": ('start: "x" item ("," item)?\nitem: /[0-9]{2}/', r"x[0-9]{2}(,[0-9]{2})?"),
}
CALL = {"type": "json_schema", "json_schema": obj(ok={"type": "boolean"})}
TAG = {"type": "tag", "begin": "<c>", "content": CALL, "end": "</c>"}
TAGS = {
    "tag": {"type": "structural_tag", "format": TAG},
    "triggered": {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<c>"],
            "tags": [TAG],
            "at_least_one": True,
            "stop_after_first": True,
        },
    },
    "sequence": {
        "type": "structural_tag",
        "format": {"type": "sequence", "elements": [{"type": "const_string", "value": "so "}, TAG]},
    },
    "older": {
        "type": "structural_tag",
        "structures": [{"begin": "<c>", "schema": CALL["json_schema"], "end": "</c>"}],
        "triggers": ["<c>"],
    },
}
