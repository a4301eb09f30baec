"""The requests with which the plugin's `take_over` is compared with vLLM's own
structured output.

Each is what a client sends, with no word of the plugin in it. `judge` says what is
wrong with a finished answer, by `jsonschema` and `re` alone. `ASKS` has all of them,
`SUBSET` those of CI.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema


@dataclass(frozen=True)
class Ask:
    """One request."""

    name: str
    path: str
    body: dict[str, Any]
    schema: Any = None
    """What the text, or the arguments of each call, must satisfy; None: anything."""
    pattern: str | None = None
    """What the whole text must match."""
    tags: tuple[str, ...] = ()
    """What it has that a known difference is about."""

    def judge(self, text, calls):
        """What is wrong with a finished answer; empty if nothing is."""
        if self.pattern is not None and not re.fullmatch(self.pattern, text, re.DOTALL):
            return f"{text[:80]!r} does not match {self.pattern!r}"
        if self.schema is None:
            return ""
        for document in [one["arguments"] for one in calls] or (
            [] if "tools" in self.body else [text]
        ):
            try:
                jsonschema.Draft202012Validator(self.schema).validate(
                    json.loads(document)
                )
            except (ValueError, jsonschema.ValidationError) as error:
                return f"{document[:80]!r}: {str(error)[:120]}"
        return ""


def _filled(value):
    """The value with schemas in place of their names."""
    if isinstance(value, str) and value.startswith("@"):
        return _TABLES["schemas"][value[1:]]
    if isinstance(value, list):
        return [_filled(one) for one in value]
    if isinstance(value, dict):
        return {key: _filled(one) for key, one in value.items()}
    return value


def _ask(name, to, schema=None, pattern=None, tags=(), **body):
    path, usual = _TABLES["defaults"][to]
    return Ask(
        name,
        path,
        usual | _filled(body),
        _filled(schema),
        pattern,
        tuple(tags),
    )


_TABLES = json.loads(Path(__file__).with_suffix(".json").read_bytes())
"""What requests have if they do not say otherwise, schemas by name, and the requests:
`@name` stands for a schema, and what is no field of `Ask` is the request's body."""
ASKS = [_ask(**one) for one in _TABLES["asks"]]
SUBSET = ASKS[::4]
