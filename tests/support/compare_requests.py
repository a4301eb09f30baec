"""The requests with which the plugin's `take_over` is compared with vLLM's own
structured output.

Each is what a client sends, with no word of the plugin in it. `judge` says what is
wrong with a finished answer, by `jsonschema` and `re` alone. `ASKS` has all of them,
`SUBSET` those of CI.
"""

import json
import re
from dataclasses import dataclass
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


def obj(closed=True, **properties):
    made = {"type": "object", "properties": properties, "required": list(properties)}
    return {**made, "additionalProperties": False} if closed else made


BOOLEAN = {"type": "boolean"}
ONE_OR_TWO = {"type": "array", "items": {"enum": [1, 2]}}
RECORD = obj(
    name={"type": "string", "maxLength": 6},
    age={"type": "integer", "minimum": 0, "maximum": 120},
)
SCHEMAS = {
    "record": RECORD,
    "open object": obj(False, a=BOOLEAN),
    "optional": {
        "type": "object",
        "properties": {"a": {"const": 1}, "b": {"const": 2}},
    },
    "nested": obj(a=obj(b=obj(c=BOOLEAN))),
    "array": {**ONE_OR_TWO, "minItems": 2, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [{"const": "a"}, BOOLEAN],
        "items": False,
    },
    "enum": {"enum": ["a", "b c", 3, None, True]},
    "integer bounds": obj(n={"type": "integer", "minimum": -5, "maximum": 300}),
    "number bounds": obj(n={"type": "number", "minimum": 0, "exclusiveMaximum": 2}),
    "lengths": obj(s={"type": "string", "minLength": 2, "maxLength": 4}),
    "pattern": obj(s={"type": "string", "pattern": "^[a-f]{2,5}$"}),
    **{
        name: obj(d={"type": "string", "format": name})
        for name in ("date", "uuid", "ipv4")
    },
    "anyOf": obj(a={"anyOf": [BOOLEAN, {"const": "x"}]}),
    "$ref": {**obj(a={"$ref": "#/$defs/b"}), "$defs": {"b": BOOLEAN}},
    "annotations": {
        **obj(a={**BOOLEAN, "description": "d", "default": True}),
        "title": "t",
    },
    "map": {"type": "object", "additionalProperties": BOOLEAN, "maxProperties": 1},
    "true": True,
}
HARD = {
    "multipleOf": obj(
        n={"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 7}
    ),
    "uniqueItems": {**ONE_OR_TWO, "minItems": 2, "uniqueItems": True},
    "if": {
        **RECORD,
        "if": {"properties": {"name": {"const": "x"}}},
        "then": {"properties": {"age": {"const": 1}}},
    },
    "not": obj(n={"type": "integer", "minimum": 0, "maximum": 9, "not": {"const": 0}}),
    "contains": {**ONE_OR_TWO, "contains": {"const": 2}, "maxItems": 3},
    "oneOf": obj(a={"oneOf": [BOOLEAN, {"const": True}]}),
    "pattern and length": obj(
        s={"type": "string", "pattern": "^[a-f]+$", "maxLength": 5}
    ),
    "minProperties": {
        **obj(False, a=BOOLEAN),
        "minProperties": 2,
        "additionalProperties": {"const": 1},
    },
    "propertyNames": {
        **SCHEMAS["map"],
        "maxProperties": 3,
        "propertyNames": {"pattern": "^[ab]$"},
    },
    "dependentRequired": {**SCHEMAS["optional"], "dependentRequired": {"a": ["b"]}},
    "email": obj(d={"type": "string", "format": "email"}),
    "allOf": obj(n={"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]}),
}
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
GRAMMARS = {
    'root ::= "a" root "b" | "ab"': "a+b+",
    'root ::= [a-c]+ "." digit\ndigit ::= [0-9]': r"[a-c]+\.[0-9]",
    'start: "x" item ("," item)?\nitem: /[0-9]{2}/': "x[0-9]{2}(,[0-9]{2})?",
}
CALL = obj(ok=BOOLEAN)
TAG = {
    "type": "tag",
    "begin": "<c>",
    "content": {"type": "json_schema", "json_schema": CALL},
    "end": "</c>",
}
ONE_TAG = {
    "triggers": ["<c>"],
    "tags": [TAG],
    "at_least_one": True,
    "stop_after_first": True,
}
TAGS = {
    "tag": {"format": TAG},
    "triggered": {"format": {"type": "triggered_tags", **ONE_TAG}},
    "sequence": {
        "format": {
            "type": "sequence",
            "elements": [{"type": "const_string", "value": "so "}, TAG],
        }
    },
    "older": {
        "structures": [{"begin": "<c>", "schema": CALL, "end": "</c>"}],
        "triggers": ["<c>"],
    },
}


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
    for source, pattern in GRAMMARS.items():
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
    for name, content in TAGS.items():
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
    "penalties": {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
    },
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


WRONG = {
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
    "tag of a kind": {
        "structural_tag": '{"type": "structural_tag", "format": {"type": "odd"}}'
    },
    "nothing allowed": {"json": False},
}
WRONG_OPTIONS = {
    "max_tokens": {"max_tokens": -1},
    "temperature": {"temperature": -1},
    "too long": {"max_tokens": 100_000},
    "logprobs": {"logprobs": 5000},
    "model": {"model": "none"},
}


def _errors():
    for name, outputs in WRONG.items():
        yield completion(f"error: {name}", outputs, tags=[name])
    for name, form in {
        "kind": {"type": "jsn"},
        "no schema": {"type": "json_schema"},
    }.items():
        yield chat(f"error, response_format: {name}", response_format=form)
    for name, schema in {"type": {"type": "strng"}, "empty schema": {}}.items():
        yield formatted(f"error, response_format: {name}", schema)
    for name, options in WRONG_OPTIONS.items():
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
    for name, parameters in PARAMETERS.items():
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
