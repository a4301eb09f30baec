"""Specs that no backend can serve, or that ask for nothing clear: what a client is told
is looked at.

They are in `refused_specs.json`.
"""

import json
from pathlib import Path

from tag_forms import json_of, tag, triggered

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_bytes())

SCHEMAS = _TABLES["schemas"]
"""By name: the schema, the place, what the message has."""
GRAMMARS = _TABLES["grammars"]
TAGS = _TABLES["tags"]
FORMS = _TABLES["forms"]
"""By name: what no spec is, what the message has."""


def in_tool(schema, name="get_weather"):
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


def _tag(content):
    return {"type": "structural_tag", "format": content}
