"""Questions of the Berkeley Function Calling Leaderboard, from the package
`bfcl-eval`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guided_plugin.cli.loading import InputError

FILES = (
    "BFCL_v4_simple_python",
    "BFCL_v4_multiple",
    "BFCL_v4_parallel",
    "BFCL_v4_parallel_multiple",
    "BFCL_v4_simple_java",
    "BFCL_v4_simple_javascript",
)
"""The questions that are asked. Those named `live` stay unseen."""
ANSWERS = "possible_answer"
"""The folder with a file of answers for each."""
_TYPES = {
    "dict": "object",
    "HashMap": "object",
    "float": "number",
    "double": "number",
    "long": "integer",
    "tuple": "array",
    "Array": "array",
    "ArrayList": "array",
    "String": "string",
    "char": "string",
    "Boolean": "boolean",
}
_NO_TYPE = ("any", "")
_ANNOTATIONS = ("optional",)


def questions(folder: Path) -> Iterator[dict[str, Any]]:
    """What users ask for, in a folder that holds these files: `id`, `messages`, the
    functions there are as `tools`, and the `calls` that answer it, each with the
    accepted values of every argument."""
    for name in FILES:
        answers = {
            one["id"]: one["ground_truth"] for one in _lines(folder / ANSWERS, name)
        }
        for one in _lines(folder, name):
            yield {
                "id": one["id"],
                "messages": [message for turn in one["question"] for message in turn],
                "tools": list(map(_tool, one["function"])),
                "calls": answers[one["id"]],
            }


def _lines(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    path = folder / f"{name}.json"
    if not path.is_file():
        hint = "python -m benchmarks.answers fetch bfcl, or --bfcl with the folder bfcl_eval/data"
        raise InputError("is missing", where=str(path), hint=hint)
    for line in path.read_text().splitlines():
        yield json.loads(line)


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    known = {name: function[name] for name in ("name", "description")}
    return {
        "type": "function",
        "function": {**known, "parameters": json_schema(function["parameters"])},
    }


def json_schema(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return BFCL's description of a value as JSON Schema: its types are named as in
    other languages."""
    schema = {
        name: value for name, value in parameters.items() if name not in _ANNOTATIONS
    }
    kind = schema.pop("type", "any")
    if kind not in _NO_TYPE:
        schema["type"] = _TYPES.get(kind, kind)
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {
            name: json_schema(value) for name, value in schema["properties"].items()
        }
    if isinstance(schema.get("items"), dict):
        schema["items"] = json_schema(schema["items"])
    return schema
