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

__all__ = ["ASKS", "SUBSET", "Ask"]


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


def completion(name, outputs=None, *, tags=(), schema=None, pattern=None, **options):
    body = {
        "model": "demo",
        "prompt": "A record: ",
        "max_tokens": 90,
        "temperature": 0,
        **options,
    }
    asked = {} if outputs is None else {"structured_outputs": outputs}
    return Ask(name, "/v1/completions", {**body, **asked}, schema, pattern, tuple(tags))


def chat(name, *, tags=(), schema=None, pattern=None, **options):
    messages = [{"role": "user", "content": "Write a record"}]
    body = {
        "model": "demo",
        "messages": messages,
        "max_tokens": 90,
        "temperature": 0,
        **options,
    }
    return Ask(name, "/v1/chat/completions", body, schema, pattern, tuple(tags))


def responses(name, form, *, schema=None, **options):
    body = {
        "model": "demo",
        "input": "Write a record",
        "max_output_tokens": 90,
        "temperature": 0,
    }
    return Ask(
        name,
        "/v1/responses",
        {**body, "store": False, "text": {"format": form}, **options},
        schema,
    )


def formatted(name, schema, *, tags=(), strict=None, **options):
    """A chat whose answer has the schema."""
    about = {"name": "record", "schema": schema} | (
        {} if strict is None else {"strict": strict}
    )
    form = {"type": "json_schema", "json_schema": about}
    return chat(name, tags=tags, schema=schema, response_format=form, **options)


def matching(name, pattern, **options):
    return completion(name, {"regex": pattern}, pattern=pattern, **options)


_TABLES = json.loads(Path(__file__).with_suffix(".json").read_bytes())
"""By name: schemas, those that vLLM refuses, grammars with what their outputs match,
structural tags, options of requests, what is wrong, parameters of tools."""
SCHEMAS = _TABLES["schemas"]
RECORD = SCHEMAS["record"]
HARD = _TABLES["hard"]
REGEXES = (
    *(
        "[0-9]{3}",
        "(red|green) (cat|dog)",
        "^ab?c$",
        r"\d{2}-\w{3}",
        "a(b(c)?)?",
        "[ab]+?c{2}",
    ),
    *("x.{2}y", "[äöü]{2}€", "(?:ab|cd){2}"),
)


def _forms():
    for name, schema in SCHEMAS.items():
        yield completion(f"json: {name}", {"json": schema}, schema=schema)
        if name in ("record", "array", "nested", "enum", "anyOf", "$ref", "pattern"):
            yield formatted(f"response_format: {name}", schema)
    for number, (name, schema) in enumerate(HARD.items()):
        yield completion(
            f"json: {name}", {"json": schema}, schema=schema, tags=["hard"]
        )
        if number < 6:
            yield formatted(
                f"response_format: {name}", schema, strict=True, tags=["hard"]
            )
    for pattern in REGEXES:
        yield matching(f"regex: {pattern}", pattern)
    for source, pattern in _TABLES["grammars"].items():
        yield completion(f"grammar: {source}", {"grammar": source}, pattern=pattern)
    for texts in (["yes", "no"], ["a b", " a"], ["ä", "日本"]):
        pattern = "|".join(map(re.escape, texts))
        yield completion(f"choice: {texts}", {"choice": texts}, pattern=pattern)
        yield chat(
            f"choice of a chat: {texts}",
            structured_outputs={"choice": texts},
            pattern=pattern,
        )
    yield completion("json as text", {"json": json.dumps(RECORD)}, schema=RECORD)
    yield completion("json_object", {"json_object": True}, schema={"type": "object"})
    for kind, schema in {"json_object": {"type": "object"}, "text": None}.items():
        yield chat(
            f"response_format: {kind}", schema=schema, response_format={"type": kind}
        )
    yield formatted("response_format: strict", RECORD, strict=True)
    for name, content in _TABLES["tags"].items():
        tag = {"type": "structural_tag", **content}
        yield completion(f"structural_tag: {name}", {"structural_tag": json.dumps(tag)})
        yield chat(f"response_format: structural_tag, {name}", response_format=tag)
    for pattern in ("[ ]?", r"\s*", " "):
        outputs = {"json": RECORD, "whitespace_pattern": pattern}
        yield completion(
            f"whitespace_pattern: {pattern!r}",
            outputs,
            schema=RECORD,
            tags=["whitespace"],
        )
    for option, schema in (
        ("disable_any_whitespace", RECORD),
        ("disable_additional_properties", SCHEMAS["open object"]),
    ):
        yield completion(option, {"json": schema, option: True}, schema=schema)


def _streams():
    for name in ("record", "array", "enum", "nested", "date"):
        schema = SCHEMAS[name]
        yield completion(
            f"stream, json: {name}", {"json": schema}, schema=schema, stream=True
        )
        yield formatted(f"stream, response_format: {name}", schema, stream=True)
    usage = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    digits = {"regex": "[0-9]{3}"}
    yield chat(
        "stream, usage of a chat",
        structured_outputs=digits,
        pattern="[0-9]{3}",
        stream=True,
        **usage,
    )
    for name, options in {
        "regex": {},
        "usage": usage,
        "logprobs": {"logprobs": 3},
        "n": {"n": 2, "temperature": 1, "seed": 1},
    }.items():
        yield matching(f"stream, {name}", "[0-9]{3}", stream=True, **options)
    yield completion(
        "stream, choice", {"choice": ["yes", "no"]}, pattern="yes|no", stream=True
    )
    yield completion(
        "stream, length", {"regex": "[0-9]{30}"}, stream=True, max_tokens=5
    )
    yield completion("stream, malformed", {"regex": "[0-9"}, stream=True)
    yield completion("stream, plain", stream=True, max_tokens=8)


OPTIONS = _TABLES["options"]


def _options():
    for name, options in OPTIONS.items():
        yield completion(
            f"option: {name}", {"regex": "[0-9]{3,5}"}, tags=["option", name], **options
        )
    for name in (
        "n",
        "length",
        "stop",
        "min_tokens",
        "seed",
        "penalties",
        "skip_special_tokens",
    ):
        made = formatted(
            f"option of a chat: {name}", RECORD, tags=["option", name], **OPTIONS[name]
        )
        yield Ask(made.name, made.path, made.body, tags=made.tags)
    yes_no = {"choice": ["yes", "no"]}
    pattern = "yes|no"
    form = {"structured_outputs": yes_no, "pattern": pattern, "logprobs": True}
    yield chat("logprobs of a chat", top_logprobs=4, **form)
    yield chat("logprobs of a chat, none on top", **form)
    yield completion(
        "yes or no, scored", yes_no, pattern=pattern, logprobs=5, max_tokens=1
    )
    yield completion(
        "beam search", {"regex": "[0-9]{3}"}, use_beam_search=True, n=2, tags=["beams"]
    )
    yield completion("beam search, plain", use_beam_search=True, n=2, max_tokens=4)


def _errors():
    for name, outputs in _TABLES["wrong"].items():
        yield completion(f"error: {name}", outputs, tags=[name])
    for name, form in {
        "kind": {"type": "jsn"},
        "no schema": {"type": "json_schema"},
    }.items():
        yield chat(f"error, response_format: {name}", response_format=form)
    for name, schema in {"type": {"type": "strng"}, "empty schema": {}}.items():
        yield formatted(f"error, response_format: {name}", schema)
    for name, options in _TABLES["wrong options"].items():
        yield completion(f"error, option: {name}", {"regex": "[0-9]{3}"}, **options)


NAMED = {"type": "function", "function": {"name": "save"}}
CHOICES = {"auto": "auto", "required": "required", "named": NAMED, "none": "none"}


def tool(parameters, strict=None, name="save"):
    given = {
        "name": name,
        "description": "Save it",
        "parameters": parameters,
        "strict": strict,
    }
    return {
        "type": "function",
        "function": {key: value for key, value in given.items() if value is not None},
    }


def _tools():
    for choice, wanted in CHOICES.items():
        for strict in (None, True, False):
            schema = RECORD if strict and choice != "none" else None
            for stream in (False, True):
                name = f"tools, {choice}, strict {strict}" + ", stream" * stream
                made = {
                    "tools": [tool(RECORD, strict)],
                    "tool_choice": wanted,
                    "stream": stream,
                }
                yield chat(name, schema=schema, **made)
    for name, parameters in _TABLES["parameters"].items():
        for choice in ("required", "named"):
            made = {"tools": [tool(parameters, True)], "tool_choice": CHOICES[choice]}
            tags = ["hard"] if name in HARD else []
            yield chat(f"tools, {choice}, {name}", schema=parameters, tags=tags, **made)
    two = {
        "tools": [tool(RECORD, True), tool(RECORD, True, "load")],
        "tool_choice": "required",
    }
    yield chat("tools, two", schema=RECORD, **two)
    yield chat("tools, one call", schema=RECORD, parallel_tool_calls=False, **two)
    yield formatted("tools and a format", RECORD, **two | {"tool_choice": "auto"})
    unknown = {"type": "function", "function": {"name": "none"}}
    yield chat("tools, unknown name", **two | {"tool_choice": unknown})
    yield chat("tools, required of none", tool_choice="required")
    yield chat(
        "tools, malformed", tools=[tool({"type": "strng"}, True)], tool_choice=NAMED
    )


def _responses():
    form = {"type": "json_schema", "name": "record", "schema": RECORD, "strict": True}
    yield responses("responses", form, schema=RECORD)
    yield responses("responses, stream", form, schema=RECORD, stream=True)
    yield responses("responses, json_object", {"type": "json_object"})
    yield responses("responses, malformed", {**form, "schema": {"type": "strng"}})


ASKS = [*_forms(), *_streams(), *_options(), *_errors(), *_tools(), *_responses()]
SUBSET = ASKS[::4]
