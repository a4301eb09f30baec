"""The forms in which clients ask for structured output. Depends on errors and whitespace.

One function per form. `read` tells the forms apart by their keys alone, and names the form it took a mapping
for when something in it is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from guided_plugin.errors import SpecError, did_you_mean, shown
from guided_plugin.spec.whitespace import whitespace_of

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
_TGI_TYPES = ("json", "json_schema", "regex")
_RESPONSES_KEYS = ("type", "name", "schema", "strict", "description", *OPTIONS)
_TGI_KEYS = ("type", "value", *OPTIONS)

# What vLLM called its constraints before `structured_outputs`.
_GUIDED: dict[str, Kind] = {
    "guided_json": "json_schema",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_GUIDED_KEYS = (*_GUIDED, "guided_decoding_backend", "guided_whitespace_pattern", *OPTIONS)
_GUIDED_BACKENDS = {"auto": "auto", "xgrammar": "xgrammar", "guidance": "llguidance"}


WHOLE = "spec"
"""The place of what is wrong with a spec as a whole."""


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
            f"a spec is a mapping, JSON text, an OutputSpec or a type, not {type(obj).__name__}",
            where=WHOLE,
            hint='for example {"json_schema": {...}} or {"regex": "[a-z]+"}',
        )
    form = {key: value for key, value in obj.items() if value is not None}
    if not form:
        null = ", ".join(str(key) for key in obj)
        what = f"asks for nothing: {null} is null" if null else "is empty"
        raise SpecError(what, where=WHOLE, hint="give one of " + ", ".join(KINDS))
    if any(key.startswith("guided_") for key in form if isinstance(key, str)):
        return _guided(form)
    if isinstance(form.get("format"), Mapping) and set(form) <= {"format", "verbosity"}:
        # The field `text` of OpenAI's Responses.
        return read(form["format"])
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
            where=WHOLE,
            hint='a regex, for example, is written {"regex": "[a-z]+"}',
        ) from None


def _response_format(kind: str, form: Mapping[str, Any]) -> Form | None:
    """OpenAI's, LMDeploy's and TGI's forms: the key `type` says what it is."""
    if kind in _TGI_TYPES and "value" in form:
        return _tgi(kind, form)
    if kind == "json_schema" and "schema" in form and "json_schema" not in form:
        return _responses(form)
    if kind not in _RESPONSE_TYPES:
        looks_like_schema = set(form) & {"properties", "items", "enum", "$defs", "required"} or kind in (
            "object",
            "array",
            "string",
        )
        raise SpecError(
            f"unknown response format {shown(kind)}",
            where="type",
            hint='a JSON Schema is passed as {"json_schema": {...}}'
            if looks_like_schema
            else f'{{"type": "{kind}", "value": ...}}'
            if kind in _TGI_TYPES
            else did_you_mean(kind, _RESPONSE_TYPES),
        )
    options = {name: form[name] for name in OPTIONS if name in form}
    if kind == "text":
        other = next((name for name in form if name not in ("type", *OPTIONS)), None)
        if other is not None:
            what = f"asks for plain text, and `{other}` is given"
            raise SpecError(what, where="type", hint=f"leave `{other}` out, or write its kind into `type`")
        return None
    known = {"type", kind, *OPTIONS}
    for name in form if kind != "structural_tag" else ():
        if name not in known:
            raise SpecError(
                f"unknown key {shown(name)}", where="response_format", hint=did_you_mean(name, known)
            )
    if kind == "json_object":
        if form.get(kind, True) is not True:
            raise _not_true(form[kind], 'next to "type": "json_object" it says nothing else: leave it out')
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


def _responses(form: Mapping[str, Any]) -> Form:
    """`text.format` of OpenAI's Responses: what others wrap lies next to `type`."""
    _check_keys(form, _RESPONSES_KEYS, "text.format")
    return Form("json_schema", form["schema"], {name: form[name] for name in OPTIONS if name in form})


def _tgi(kind: str, form: Mapping[str, Any]) -> Form:
    """The parameter `grammar` of Text Generation Inference: a type and a value."""
    _check_keys(form, _TGI_KEYS, "grammar of TGI")
    options = {name: form[name] for name in OPTIONS if name in form}
    if kind == "regex":
        return Form("regex", form["value"], options)
    if kind == "json":
        return Form("json_schema", form["value"], options)
    schema, wrapped = _unwrap(form["value"])
    return Form("json_schema", schema, {**wrapped, **options})


def _guided(form: Mapping[str, Any]) -> Form:
    """vLLM's older fields: `guided_json`, `guided_regex` and so on, next to each other in a request."""
    where = "guided decoding of vLLM"
    _check_keys(form, _GUIDED_KEYS, where)
    absent = {"guided_json_object"} if form.get("guided_json_object") is False else set()
    named = [key for key in _GUIDED if key in form and key not in absent]
    if len(named) != 1:
        found = f"more than one constraint: {', '.join(named)}" if named else "no constraint"
        raise SpecError(found, where=where, hint="give exactly one of " + ", ".join(_GUIDED))
    kind, value = _GUIDED[named[0]], form[named[0]]
    options = {name: form[name] for name in OPTIONS if name in form}
    options |= _pattern_option(form, "guided_whitespace_pattern")
    backend = form.get("guided_decoding_backend", "auto")
    # Options of the backend come after a colon.
    known = _GUIDED_BACKENDS.get(str(backend).partition(":")[0])
    if known is None:
        hint = did_you_mean(backend, _GUIDED_BACKENDS)
        raise SpecError(f"unknown backend {shown(backend)}", where="guided_decoding_backend", hint=hint)
    if known != "auto":
        options.setdefault("backend", known)
    if kind == "json_object":
        return Form(kind, None, options)
    if kind == "grammar":
        options["syntax"] = _guess_syntax(value)
    return Form(kind, value, options)


def _check_keys(form: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for name in form:
        if name not in known:
            raise SpecError(f"unknown key {shown(name)}", where=where, hint=did_you_mean(name, known))


def _unwrap(value: Any) -> tuple[Any, dict[str, Any]]:
    """OpenAI wraps a schema as {"name", "schema", "strict", "description"}; others send it bare."""
    if not isinstance(value, Mapping) or "schema" not in value:
        if isinstance(value, Mapping) and "name" in value and set(value) <= {"name", "strict", "description"}:
            hint = 'write {"name": ..., "schema": {...}}'
            raise SpecError("has a `name` and no `schema`", where="json_schema", hint=hint)
        return value, {}
    if "name" not in value and {"type", "properties"} & set(value):
        return value, {}
    known = {"name", "schema", "strict", "description"}
    for name in value:
        if name not in known:
            raise SpecError(f"unknown key {shown(name)}", where="json_schema", hint=did_you_mean(name, known))
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
        if absent and not named:
            raise _not_true(False, "write true for any JSON object, give another constraint, or leave it out")
        if not named:
            name = next((key for key in form if key not in (*OPTIONS, *_VLLM_ONLY)), "")
            hint = did_you_mean(name, (*KINDS, "json")) if name else hint
            if {"properties", "$ref", "items", "enum", "anyOf", "oneOf", "allOf"} & set(form):
                hint = 'a JSON Schema is passed as {"json_schema": {...}}'
        raise SpecError(found, where=", ".join(named) or WHOLE, hint=hint)
    known = {*KINDS, *OPTIONS, "syntax", *_VLLM_ONLY}
    for name in form:
        if name not in known:
            hint = did_you_mean(name, known - set(_VLLM_INTERNAL))
            raise SpecError(f"unknown key {shown(name)}", where=str(name), hint=hint)
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
            raise _not_true(value, 'a schema is passed as {"json_schema": {...}}')
        return Form("json_object", None, options)
    if kind == "grammar":
        options["syntax"] = form.get("syntax") or _guess_syntax(value)
    elif "syntax" in form:
        raise SpecError(f"says how a grammar is written, not a {kind}", where="syntax", hint="leave it out")
    return Form(kind, value, options)


def _not_true(value: Any, hint: str) -> SpecError:
    return SpecError(f"must be true, not {shown(value)}", where="json_object", hint=hint)


def _vllm_options(form: Mapping[str, Any]) -> dict[str, Any]:
    options = _pattern_option(form, "whitespace_pattern")
    # False is vLLM's default, present in every serialised form: it says nothing about what is wanted.
    if form.get("disable_any_whitespace"):
        options["whitespace"] = "compact"
    if form.get("disable_additional_properties"):
        options["strict"] = True
    return options


def _pattern_option(form: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The option that honours a pattern for whitespace, next to the option itself."""
    if name not in form:
        return {}
    whitespace = whitespace_of(form[name], name)
    if whitespace == "compact" and form.get("whitespace", "compact") != "compact":
        raise SpecError("allows less than the option whitespace", where=name, hint="leave one of the two out")
    return {"whitespace": form.get("whitespace", whitespace)}


def _guess_syntax(source: Any) -> Any:
    """vLLM puts EBNF and Lark under one key; only EBNF defines rules with `::=`."""
    return "ebnf" if not isinstance(source, str) or "::=" in source else "lark"
