"""Specs whose outputs end before their token limit, and independent checks of what came
out."""

import json
import re

import jsonschema

import guided_plugin as gp

_FIELDS = {
    "name": {"type": "string", "minLength": 1},
    "age": {"type": "integer"},
    "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1},
}
_SCHEMA = {"type": "object", "properties": _FIELDS, "required": [*_FIELDS]}
_CALL = {
    "begin": "<call>",
    "content": {"type": "json_schema", "json_schema": _SCHEMA},
    "end": "</call>",
}
_TAG = {
    "type": "triggered_tags",
    "triggers": ["<call>"],
    "tags": [_CALL],
    "at_least_one": True,
}
_REGEX = "[a-f]{3,}-([0-9]{2,}|xy+)z"
_CHOICES = ["yes", "no", "maybe, if the weather is fine"]

CASES = {
    "schema": gp.OutputSpec.json_schema(_SCHEMA, close_before_length=True),
    "spaces": gp.OutputSpec.json_schema(
        _SCHEMA, whitespace="flexible", close_before_length=True
    ),
    "regex": gp.OutputSpec.regex(_REGEX, close_before_length=True),
    "choice": gp.OutputSpec.choice(_CHOICES, close_before_length=True),
    "tag": gp.OutputSpec.structural_tag({"format": _TAG}, close_before_length=True),
}


def least_of(pipeline, spec):
    """The fewest tokens of an output, its stop token included, as the place where it is
    compiled says."""
    return pipeline.prepare(spec).result().least


def is_valid(kind, text):
    """Whether a text is a whole output of a case."""
    if kind in ("regex", "choice"):
        return bool(re.fullmatch(_REGEX, text)) if kind == "regex" else text in _CHOICES
    calls = (
        re.findall("<call>(.*?)</call>", text, re.DOTALL) if kind == "tag" else [text]
    )
    try:
        return bool(calls) and all(
            jsonschema.validate(json.loads(call), _SCHEMA) is None for call in calls
        )
    except (ValueError, jsonschema.ValidationError):
        return False
