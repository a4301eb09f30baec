"""The requests with which the plugin's `take_over` is compared with vLLM's own structured output.

Each is what a client sends, with no word of the plugin in it. `judge` says what is wrong with a finished
answer, by `jsonschema` and `re` alone. `ASKS` has all of them, `SUBSET` those of CI.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import jsonschema
from compare_specs import GRAMMARS, HARD, RECORD, REGEXES, SCHEMAS, TAGS, obj

__all__ = ["ASKS", "SUBSET", "Ask"]

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"


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
    tags: frozenset[str] = field(default_factory=frozenset)
    """What it has that a known difference is about."""

    def judge(self, text, calls):
        """What is wrong with a finished answer; empty if nothing is."""
        if self.pattern is not None and not re.fullmatch(self.pattern, text, re.DOTALL):
            return f"{text[:80]!r} does not match {self.pattern!r}"
        if self.schema is None:
            return ""
        for document in [one["arguments"] for one in calls] or ([text] if not self.called else []):
            try:
                value = json.loads(document)
                jsonschema.Draft202012Validator(self.schema).validate(value)
            except (ValueError, jsonschema.ValidationError) as error:
                return f"{document[:80]!r}: {str(error)[:120]}"
        return ""

    @property
    def called(self):
        """Whether the schema is that of a tool."""
        return "tools" in self.body


def completion(name, outputs=None, *, tags=(), schema=None, pattern=None, **options):
    body = {"model": "demo", "prompt": "A record: ", "max_tokens": 90, "temperature": 0, **options}
    if outputs is not None:
        body["structured_outputs"] = outputs
    return Ask(name, COMPLETIONS, body, schema, pattern, frozenset(tags))


def chat(name, *, tags=(), schema=None, pattern=None, **options):
    messages = [{"role": "user", "content": "Write a record"}]
    body = {"model": "demo", "messages": messages, "max_tokens": 90, "temperature": 0, **options}
    return Ask(name, CHAT, body, schema, pattern, frozenset(tags))


def responses(name, *, tags=(), schema=None, **options):
    body = {
        "model": "demo",
        "input": "Write a record",
        "max_output_tokens": 90,
        "temperature": 0,
        "store": False,
    }
    return Ask(name, RESPONSES, {**body, **options}, schema, None, frozenset(tags))


def response_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "record", "schema": schema, **more}}


def _forms():
    for name, schema in SCHEMAS.items():
        yield completion(f"json: {name}", {"json": schema}, schema=schema)
        if name in ("record", "array", "nested", "enum", "anyOf", "$ref", "pattern"):
            yield chat(f"response_format: {name}", schema=schema, response_format=response_format(schema))
    for name, schema in HARD.items():
        yield completion(f"json: {name}", {"json": schema}, schema=schema, tags=["hard"])
    for name, schema in list(HARD.items())[:6]:
        form = response_format(schema, strict=True)
        yield chat(f"response_format: {name}", schema=schema, response_format=form, tags=["hard"])
    for name, pattern in REGEXES.items():
        yield completion(f"regex: {name}", {"regex": pattern}, pattern=pattern)
    for name, (source, pattern) in GRAMMARS.items():
        yield completion(f"grammar: {name}", {"grammar": source}, pattern=pattern)
    for name, texts in {"two": ["yes", "no"], "spaces": ["a b", " a"], "unicode": ["ä", "日本"]}.items():
        pattern = "|".join(map(re.escape, texts))
        yield completion(f"choice: {name}", {"choice": texts}, pattern=pattern)
        yield chat(f"choice of a chat: {name}", structured_outputs={"choice": texts}, pattern=pattern)
    yield completion("json as text", {"json": json.dumps(RECORD)}, schema=RECORD)
    yield completion("json_object", {"json_object": True}, schema={"type": "object"})
    yield chat(
        "response_format: json_object", schema={"type": "object"}, response_format={"type": "json_object"}
    )
    yield chat("response_format: text", response_format={"type": "text"})
    yield chat("response_format: strict", schema=RECORD, response_format=response_format(RECORD, strict=True))
    for name, tag in TAGS.items():
        yield completion(f"structural_tag: {name}", {"structural_tag": json.dumps(tag)})
        yield chat(f"response_format: structural_tag, {name}", response_format=tag)
    for pattern in ("[ ]?", r"\s*", " "):
        outputs = {"json": RECORD, "whitespace_pattern": pattern}
        yield completion(f"whitespace_pattern: {pattern!r}", outputs, schema=RECORD, tags=["whitespace"])
    yield completion(
        "disable_any_whitespace", {"json": RECORD, "disable_any_whitespace": True}, schema=RECORD
    )
    outputs = {"json": SCHEMAS["open object"], "disable_additional_properties": True}
    yield completion("disable_additional_properties", outputs, schema=outputs["json"])


def _streams():
    for name in ("record", "array", "enum", "nested", "date"):
        yield completion(f"stream, json: {name}", {"json": SCHEMAS[name]}, schema=SCHEMAS[name], stream=True)
        form = response_format(SCHEMAS[name])
        yield chat(
            f"stream, response_format: {name}", schema=SCHEMAS[name], response_format=form, stream=True
        )
    regex, pattern = {"regex": "[0-9]{3}"}, "[0-9]{3}"
    yield completion("stream, regex", regex, pattern=pattern, stream=True)
    yield completion("stream, choice", {"choice": ["yes", "no"]}, pattern="yes|no", stream=True)
    usage = {"include_usage": True, "continuous_usage_stats": True}
    yield completion("stream, usage", regex, pattern=pattern, stream=True, stream_options=usage)
    yield chat(
        "stream, usage of a chat",
        structured_outputs=regex,
        pattern=pattern,
        stream=True,
        stream_options=usage,
    )
    yield completion("stream, logprobs", regex, pattern=pattern, stream=True, logprobs=3)
    yield completion("stream, n", regex, pattern=pattern, stream=True, n=2, temperature=1, seed=1)
    yield completion("stream, length", {"regex": "[0-9]{30}"}, stream=True, max_tokens=5)
    yield completion("stream, malformed", {"regex": "[0-9"}, stream=True)
    yield completion("stream, plain", stream=True, max_tokens=8)


OPTIONS = {
    "n": {"n": 3, "temperature": 1, "seed": 1},
    "length": {"max_tokens": 2},
    "one token": {"max_tokens": 1},
    "stop": {"stop": ["5"]},
    "stop, included": {"stop": ["5"], "include_stop_str_in_output": True},
    "stop_token_ids": {"stop_token_ids": [5]},
    "ignore_eos": {"ignore_eos": True, "max_tokens": 12},
    "min_tokens": {"min_tokens": 2},
    "logprobs": {"logprobs": 5},
    "logprobs of none": {"logprobs": 0},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "echo": {"echo": True},
    "seed": {"seed": 3, "temperature": 1},
    "top_k": {"top_k": 1, "temperature": 1},
    "top_p": {"top_p": 0.01, "temperature": 1},
    "min_p": {"min_p": 1.0, "temperature": 1},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "bad_words": {"bad_words": ["7"]},
    "logit_bias": {"logit_bias": {"20": 1}},
    "two prompts": {"prompt": ["A: ", "B: "]},
    "token ids": {"prompt": [5, 6, 7]},
    "return_token_ids": {"return_token_ids": True},
    "skip_special_tokens": {"skip_special_tokens": False},
    "user": {"user": "me"},
}


def _options():
    for name, options in OPTIONS.items():
        yield completion(f"option: {name}", {"regex": "[0-9]{3,5}"}, tags=["option", name], **options)
    for name in ("n", "length", "stop", "min_tokens", "seed", "penalties", "skip_special_tokens"):
        form = response_format(RECORD)
        yield chat(f"option of a chat: {name}", response_format=form, tags=["option", name], **OPTIONS[name])
    form = {"structured_outputs": {"choice": ["yes", "no"]}, "pattern": "yes|no"}
    yield chat("logprobs of a chat", logprobs=True, top_logprobs=4, **form)
    yield chat("logprobs of a chat, none on top", logprobs=True, **form)
    yield completion(
        "yes or no, scored",
        {"choice": ["yes", "no"]},
        pattern="yes|no",
        logprobs=5,
        max_tokens=1,
        tags=["cut"],
    )
    yield completion("beam search", {"regex": "[0-9]{3}"}, use_beam_search=True, n=2, tags=["beams"])
    yield completion("beam search, plain", use_beam_search=True, n=2, max_tokens=4)


def _errors():
    wrong = {
        "regex": {"regex": "[0-9"},
        "empty regex": {"regex": ""},
        "backreference": {"regex": r"(a)\1"},
        "lookbehind": {"regex": "(?<=a)b"},
        "grammar": {"grammar": "root ::= ("},
        "grammar without root": {"grammar": 'rot ::= "a"'},
        "empty grammar": {"grammar": " "},
        "no choice": {"choice": []},
        "two at once": {"regex": "a", "choice": ["b"]},
        "unknown key": {"regexp": "a"},
        "nothing": {},
        "no JSON": {"json": "{"},
        "type": {"json": {"type": "strng"}},
        "reference": {"json": {"$ref": "#/$defs/x"}},
        "bounds": {"json": {"type": "string", "minLength": 3, "maxLength": 2}},
        "enum of none": {"json": {"enum": []}},
        "pattern": {"json": {"type": "string", "pattern": "["}},
        "json_object false": {"json_object": False},
        "tag": {"structural_tag": "{"},
        "tag without format": {"structural_tag": '{"type": "structural_tag"}'},
        "tag of a kind": {"structural_tag": '{"type": "structural_tag", "format": {"type": "odd"}}'},
        "nothing allowed": {"json": False},
    }
    for name, outputs in wrong.items():
        yield completion(f"error: {name}", outputs, tags=["error", name])
    forms = {
        "kind": {"type": "jsn"},
        "no schema": {"type": "json_schema"},
        "type": response_format({"type": "strng"}),
        "empty schema": response_format({}),
    }
    for name, form in forms.items():
        yield chat(f"error, response_format: {name}", response_format=form, tags=["error", name])
    for name, options in {
        "max_tokens": {"max_tokens": -1},
        "temperature": {"temperature": -1},
        "too long": {"max_tokens": 100_000},
        "logprobs": {"logprobs": 5000},
        "model": {"model": "none"},
    }.items():
        yield completion(f"error, option: {name}", {"regex": "[0-9]{3}"}, **options)


PARAMETERS = {
    "record": RECORD,
    "empty": {"type": "object", "properties": {}},
    "none": None,
    "pattern and length": HARD["pattern and length"],
    "if": HARD["if"],
    "uniqueItems": obj(a=HARD["uniqueItems"]),
}
NAMED = {"type": "function", "function": {"name": "save"}}


def tool(parameters, strict=None):
    function = {"name": "save", "description": "Save it"}
    if parameters is not None:
        function["parameters"] = parameters
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def _tools():
    for choice in ("auto", "required", "named", "none"):
        wanted = NAMED if choice == "named" else choice
        for strict in (None, True, False):
            schema = RECORD if strict and choice != "none" else None
            for stream in (False, True):
                yield chat(
                    f"tools, {choice}, strict {strict}" + (", stream" if stream else ""),
                    tools=[tool(RECORD, strict)],
                    tool_choice=wanted,
                    schema=schema,
                    stream=stream,
                    tags=["tools", choice, f"strict {strict}"],
                )
    for name, parameters in PARAMETERS.items():
        for choice, wanted in (("required", "required"), ("named", NAMED)):
            yield chat(
                f"tools, {choice}, {name}",
                tools=[tool(parameters, True)],
                tool_choice=wanted,
                schema=parameters,
                tags=["tools", choice, name, "hard" if name in HARD or name == "uniqueItems" else ""],
            )
    two = [
        tool(RECORD, True),
        {"type": "function", "function": {"name": "load", "parameters": RECORD, "strict": True}},
    ]
    yield chat("tools, two", tools=two, tool_choice="required", schema=RECORD)
    yield chat("tools, one call", tools=two, tool_choice="required", parallel_tool_calls=False, schema=RECORD)
    yield chat("tools and a format", tools=two, tool_choice="auto", response_format=response_format(RECORD))
    unknown = {"type": "function", "function": {"name": "none"}}
    yield chat("tools, unknown name", tools=two, tool_choice=unknown, tags=["error"])
    yield chat("tools, required of none", tool_choice="required", tags=["error"])
    yield chat(
        "tools, malformed", tools=[tool({"type": "strng"}, True)], tool_choice=NAMED, tags=["error", "type"]
    )


def _responses():
    form = {"type": "json_schema", "name": "record", "schema": RECORD, "strict": True}
    yield responses("responses", schema=RECORD, text={"format": form})
    yield responses("responses, stream", schema=RECORD, text={"format": form}, stream=True)
    yield responses("responses, json_object", text={"format": {"type": "json_object"}})
    wrong = {**form, "schema": {"type": "strng"}}
    yield responses("responses, malformed", text={"format": wrong}, tags=["error", "type"])


ASKS = [*_forms(), *_streams(), *_options(), *_errors(), *_tools(), *_responses()]
SUBSET = ASKS[::4]
