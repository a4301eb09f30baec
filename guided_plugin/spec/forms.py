"""The forms in which clients ask for structured output. Depends on errors.

One function per form. `read` tells the forms apart by their keys alone, and names the form it took a mapping
for when something in it is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from guided_plugin.errors import SpecError, did_you_mean

__all__ = ["KINDS", "OPTIONS", "Form", "Kind", "read"]

Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
KINDS: tuple[Kind, ...] = ("json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")
OPTIONS = ("whitespace", "strict", "backend", "stop_token_ids", "start_after")

# vLLM's own bookkeeping inside `structured_outputs`; it says nothing about the output.
_VLLM_INTERNAL = ("_backend", "_backend_was_auto", "disable_fallback")
_VLLM_ONLY = (
    "json",
    "whitespace_pattern",
    "disable_any_whitespace",
    "disable_additional_properties",
    *_VLLM_INTERNAL,
)
_RESPONSE_TYPES = ("text", "json_object", "json_schema", "regex_schema", "structural_tag")


class Form(NamedTuple):
    """What a client asked for, in our own terms."""

    kind: Kind
    value: Any
    """The constraint, unchecked. None for `json_object`, which needs none."""
    options: dict[str, Any]
    """Options of `OutputSpec`, and the syntax of a grammar."""


def read(obj: Any) -> Form | None:
    """What a mapping or JSON text asks for; None for plain text."""
    while isinstance(obj, str | bytes):
        obj = _from_text(obj)
    if obj is None:
        return None
    if not isinstance(obj, Mapping):
        raise SpecError(
            f"a spec is a mapping, JSON text, an OutputSpec or a pydantic model, not {type(obj).__name__}"
        )
    form = {key: value for key, value in obj.items() if value is not None}
    if not form:
        raise SpecError("is empty", hint="give one of " + ", ".join(KINDS))
    kind = form.get("type")
    if isinstance(kind, str) and (kind in _RESPONSE_TYPES or not set(form) & {*KINDS, "json"}):
        return _response_format(kind, form)
    return _keyed(form)


def _from_text(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(
            f"a spec given as text must be JSON: {error}",
            hint='a regex, for example, is written {"regex": "[a-z]+"}',
        ) from None


def _response_format(kind: str, form: Mapping[str, Any]) -> Form | None:
    """OpenAI's and LMDeploy's `response_format`: the key `type` says what it is."""
    if kind not in _RESPONSE_TYPES:
        looks_like_schema = set(form) & {"properties", "items", "enum", "$defs", "required"} or kind in (
            "object",
            "array",
            "string",
        )
        raise SpecError(
            f"unknown response format {kind!r}",
            where="type",
            hint='a JSON Schema is passed as {"json_schema": {...}}'
            if looks_like_schema
            else did_you_mean(kind, _RESPONSE_TYPES),
        )
    options = {name: form[name] for name in OPTIONS if name in form}
    if kind == "text":
        return None
    known = {"type", kind, *OPTIONS}
    for name in form if kind != "structural_tag" else ():
        if name not in known:
            raise SpecError(f"unknown key {name!r}", where="response_format", hint=did_you_mean(name, known))
    if kind == "json_object":
        return Form("json_object", None, options)
    if kind == "structural_tag":
        return Form("structural_tag", {k: v for k, v in form.items() if k not in OPTIONS}, options)
    if kind not in form:
        raise SpecError(
            f"has no {kind!r}", where="response_format", hint=f'{{"type": "{kind}", "{kind}": ...}}'
        )
    if kind == "regex_schema":
        return Form("regex", form["regex_schema"], options)
    schema, wrapped = _unwrap(form["json_schema"])
    return Form("json_schema", schema, {**wrapped, **options})


def _unwrap(value: Any) -> tuple[Any, dict[str, Any]]:
    """OpenAI wraps a schema as {"name", "schema", "strict", "description"}; others send it bare."""
    if not isinstance(value, Mapping) or "schema" not in value:
        return value, {}
    if "name" not in value and {"type", "properties"} & set(value):
        return value, {}
    known = {"name", "schema", "strict", "description"}
    for name in value:
        if name not in known:
            raise SpecError(f"unknown key {name!r}", where="json_schema", hint=did_you_mean(name, known))
    strict = value.get("strict")
    return value["schema"], {} if strict is None else {"strict": strict}


def _keyed(form: Mapping[str, Any]) -> Form:
    """Our own form and vLLM's `structured_outputs`: the key that names the kind holds the constraint."""
    # `json_object: false` is vLLM's way to leave it out; false as a schema is a schema.
    absent = {"json_object"} if form.get("json_object") is False else set()
    named = [key for key in (*KINDS, "json") if key in form and key not in absent]
    if len(named) != 1:
        found = f"more than one constraint: {', '.join(named)}" if named else "no constraint"
        hint = "give exactly one of " + ", ".join(KINDS)
        if not named:
            hint = did_you_mean(next(iter(form)), (*KINDS, "json"))
            if {"properties", "$ref", "items", "enum", "anyOf", "oneOf", "allOf"} & set(form):
                hint = 'a JSON Schema is passed as {"json_schema": {...}}'
        raise SpecError(found, hint=hint)
    known = {*KINDS, *OPTIONS, "syntax", *_VLLM_ONLY}
    for name in form:
        if name not in known:
            raise SpecError(f"unknown key {name!r}", hint=did_you_mean(name, known - set(_VLLM_INTERNAL)))
    options = {name: form[name] for name in OPTIONS if name in form} | _vllm_options(form)
    if named == ["json"]:
        return Form("json_schema", form["json"], options)
    kind = next(kind for kind in KINDS if kind in named)
    value = form[kind]
    if kind == "json_schema":
        schema, wrapped = _unwrap(value)
        return Form(kind, schema, {**wrapped, **options})
    if kind == "json_object":
        if value is not True:
            raise SpecError(f"must be true, not {value!r}", where="json_object")
        return Form("json_object", None, options)
    if kind == "grammar":
        options["syntax"] = form.get("syntax") or _guess_syntax(value)
    return Form(kind, value, options)


def _vllm_options(form: Mapping[str, Any]) -> dict[str, Any]:
    if "whitespace_pattern" in form:
        raise SpecError(
            "is not supported", where="whitespace_pattern", hint="use whitespace: compact or flexible"
        )
    options: dict[str, Any] = {}
    # False is vLLM's default, present in every serialised form: it says nothing about what is wanted.
    if form.get("disable_any_whitespace"):
        options["whitespace"] = "compact"
    if form.get("disable_additional_properties"):
        options["strict"] = True
    return options


def _guess_syntax(source: Any) -> Any:
    """vLLM puts EBNF and Lark under one key; only EBNF defines rules with `::=`."""
    return "ebnf" if not isinstance(source, str) or "::=" in source else "lark"
