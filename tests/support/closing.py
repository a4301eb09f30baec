"""Specs whose outputs end before their token limit, and independent checks of what came out."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema

import guided_plugin as gp

__all__ = ["CASES", "SCHEMA", "is_valid", "least_of"]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1},
    },
    "required": ["name", "age", "tags"],
}
_TAG = {
    "type": "triggered_tags",
    "triggers": ["<call>"],
    "tags": [
        {"begin": "<call>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</call>"}
    ],
    "at_least_one": True,
}
_REGEX = "[a-f]{3,}-([0-9]{2,}|xy+)z"
_CHOICES = ["yes", "no", "maybe, if the weather is fine"]
_CLOSES: dict[str, Any] = {"close_before_length": True}

CASES = {
    "schema": gp.OutputSpec.json_schema(SCHEMA, **_CLOSES),
    "spaces": gp.OutputSpec.json_schema(SCHEMA, whitespace="flexible", **_CLOSES),
    "regex": gp.OutputSpec.regex(_REGEX, **_CLOSES),
    "choice": gp.OutputSpec.choice(_CHOICES, **_CLOSES),
    "tag": gp.OutputSpec.structural_tag({"format": _TAG}, **_CLOSES),
}


def least_of(pipeline: gp.StepPipeline, spec: gp.OutputSpec) -> int:
    """The fewest tokens of an output, its stop token included, as the place where it is compiled says."""
    return pipeline.prepare(spec).result().least


def is_valid(kind: str, text: str) -> bool:
    """Whether a text is a whole output of a case."""
    if kind in ("regex", "choice"):
        return bool(re.fullmatch(_REGEX, text)) if kind == "regex" else text in _CHOICES
    calls = re.findall("<call>(.*?)</call>", text, re.DOTALL) if kind == "tag" else [text]
    try:
        for call in calls:
            jsonschema.validate(json.loads(call), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return bool(calls)
