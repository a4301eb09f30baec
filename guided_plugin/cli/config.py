"""`guided-plugin config`: the options that a server started here would have, and what
each is from."""

from __future__ import annotations

import ast
import inspect
import json
from typing import Annotated, Any

import typer

from guided_plugin import config as options
from guided_plugin.cli.results import JsonOutput, json_object, print_json, show_table
from guided_plugin.config import CHOICES, LEAST, GuidedConfig

_COLUMNS = (("option", "{option}"), ("value", "{value}"), ("from", "{from}"))


def config(
    additional_config: Annotated[
        str, typer.Option(help="The value of vLLM's flag of this name, a JSON object.")
    ] = "{}",
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of the options.")
    ] = False,
    json_output: JsonOutput = False,
) -> None:
    """Show the options in effect: those of GUIDED_PLUGIN and of vLLM's
    --additional-config, merged."""
    if schema:
        print_json(options_schema())
        return
    hint = 'such as {"guided_plugin": {"take_over": true}}'
    found, sources = GuidedConfig.read(
        json_object(additional_config, "--additional-config", hint)
    )
    names = options_schema()["properties"]
    told = {
        name: {"value": getattr(found, name), "from": sources.get(name, "default")}
        for name in names
    }
    if json_output:
        print_json({"ok": True, "options": told})
    else:
        lines = [
            {**one, "option": name, "value": json.dumps(one["value"])}
            for name, one in told.items()
        ]
        show_table(lines, _COLUMNS)


def options_schema() -> dict[str, Any]:
    """The JSON Schema of the options, with what the code says of each."""
    body = ast.parse(inspect.getsource(options)).body
    properties: dict[str, Any] = {}
    # The options that most operators look for are in the last class.
    for node in [node for node in body if isinstance(node, ast.ClassDef)][::-1]:
        for field, after in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                name = ast.unparse(field.target)
                text = " ".join(ast.literal_eval(after.value).split())
                properties[name] = _property(name) | {"description": text}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Options of guided_plugin: {options.ENVIRONMENT_VARIABLE}, {options.FLAG}",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _property(name: str) -> dict[str, Any]:
    default = getattr(GuidedConfig, name)
    if isinstance(default, bool):
        return {"type": "boolean", "default": default}
    if isinstance(default, int | float):
        kind = "integer" if isinstance(default, int) else "number"
        return {
            "type": kind,
            "minimum": LEAST.get(name, (1, ""))[0],
            "default": default,
        }
    if isinstance(default, tuple):
        return {"type": "array", "items": {"type": "string"}, "default": list(default)}
    return {"type": "string", "default": default} | (
        {"enum": [*CHOICES[name]]} if name in CHOICES else {}
    )
