"""The forms in which clients ask for structured output. Depends on config and
errors.

`read` tells the forms apart by their keys alone, and names the form that it took a
mapping for when something in it is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from guided_plugin.config import BOUNDS
from guided_plugin.errors import SpecError, did_you_mean, place_in, shown

Kind = Literal[
    "json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
SETTLED = ("whitespace", "strict", "close_before_length", *BOUNDS)
"""Options that the configuration decides where a request does not say."""
OPTIONS = (*SETTLED, "backend", "stop_token_ids", "start_after")

NAMED: dict[str, Kind] = {**{kind: kind for kind in KINDS}, "json": "json_schema"}
"""The keys that hold a constraint; `json` is vLLM's."""
_VLLM_KEYS = (
    "whitespace_pattern",
    "disable_any_whitespace",
    "disable_additional_properties",
    # its own bookkeeping, which says nothing about the output
    "_backend",
    "_backend_was_auto",
    "disable_fallback",
)
_OF_SCHEMAS = {"properties", "$ref", "items", "enum", "anyOf", "oneOf", "allOf"}
RESPONSE_TYPES = (
    "text",
    "json_object",
    "json_schema",
    "regex_schema",
    "structural_tag",
)

WHOLE = "spec"
"""The place of what is wrong with a spec as a whole."""
_PASSED = 'a JSON Schema is passed as {"json_schema": {...}}'


class Form(NamedTuple):
    """The form that a client asked for, in our own terms."""

    kind: Kind
    value: Any
    """The constraint, unchecked. None for `json_object`, which needs none."""
    options: dict[str, Any]
    """Options of `OutputSpec`, and the syntax of a grammar."""
    place: str = ""
    """The place of the constraint in the form: its keys, joined with dots. Empty: it is
    the form itself."""


def read(obj: Any) -> Form | None:
    """Return what a mapping or JSON text asks for; None for plain text."""
    while isinstance(obj, str | bytes):
        obj = from_text(obj)
    if obj is None:
        return None
    if not isinstance(obj, Mapping):
        raise SpecError(
            f"must be a mapping, JSON text, an OutputSpec or a type, not {type(obj).__name__}",
            where=WHOLE,
            hint='for example {"json_schema": {...}} or {"regex": "[a-z]+"}',
        )
    for key in obj:
        if not isinstance(key, str):
            raise SpecError(
                f"has the key {shown(key)}", where=WHOLE, hint="keys are strings"
            )
    form = {key: value for key, value in obj.items() if value is not None}
    if not form:
        null = ", ".join(obj)
        what = f"sets no constraint: {null} is null" if null else "is empty"
        raise SpecError(what, where=WHOLE, hint="give one of " + ", ".join(KINDS))
    if isinstance(form.get("format"), Mapping) and set(form) <= {"format", "verbosity"}:
        # The field `text` of OpenAI's Responses.
        inner = read(form["format"])
        return inner and inner._replace(place=f"format.{inner.place}".rstrip("."))
    options = {name: form.pop(name) for name in OPTIONS if name in form}
    kind = form.get("type")
    if isinstance(kind, str) and (
        kind in RESPONSE_TYPES or form.keys().isdisjoint(NAMED)
    ):
        return _typed(kind, form, options)
    return _keyed(form, options)


def from_text(text: str | bytes, where: str = WHOLE) -> Any:
    """Return the value of a JSON text. Raises SpecError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError):
            where = place_in(where, error.doc, error.pos).lstrip(", ")
        raise SpecError(
            f"is not JSON: {getattr(error, 'msg', error)}",
            where=where,
            hint='give the JSON itself, not the name of a file; a regex is {"regex": "[a-z]+"}',
        ) from None


def _typed(kind: str, form: Mapping[str, Any], options: dict[str, Any]) -> Form | None:
    """OpenAI's and LMDeploy's forms: the key `type` says what it is."""
    if kind == "json_schema" and "schema" in form and kind not in form:
        # `text.format` of OpenAI's Responses: what others wrap lies next to `type`.
        _check_keys(
            form, ("type", "name", "schema", "description", *OPTIONS), "text.format"
        )
        return Form("json_schema", form["schema"], options, "schema")
    if kind not in RESPONSE_TYPES:
        hint = did_you_mean(kind, RESPONSE_TYPES)
        if form.keys() & _OF_SCHEMAS or kind in ("object", "array", "string"):
            hint = _PASSED
        raise SpecError(
            f"unknown response format {shown(kind)}", where="type", hint=hint
        )
    if kind == "text":
        other = next((name for name in form if name != "type"), None)
        if other is not None:
            what = f"asks for plain text, but `{other}` is given"
            raise SpecError(
                what,
                where="type",
                hint=f"leave `{other}` out, or write its kind into `type`",
            )
        return None
    if kind == "structural_tag":
        return Form("structural_tag", form, options)
    _check_keys(form, ("type", kind, *OPTIONS), "response_format")
    if kind == "json_object":
        if form.get(kind, True) is not True:
            raise _not_true(
                form[kind], 'leave it out: "type": "json_object" says the same'
            )
        return Form("json_object", None, options)
    if kind not in form:
        hint = f'{{"type": "{kind}", "{kind}": ...}}'
        raise SpecError(f"has no {kind!r}", where="response_format", hint=hint)
    if kind == "regex_schema":
        return Form("regex", form[kind], options, kind)
    return _schema(form[kind], options, kind)


def _schema(value: Any, options: dict[str, Any], place: str) -> Form:
    """OpenAI wraps a schema as {"name", "schema", "strict", "description"}; others send
    it bare."""
    wrapper = {"name", "strict", "description"}
    if not isinstance(value, Mapping) or "schema" not in value:
        if isinstance(value, Mapping) and "name" in value and set(value) <= wrapper:
            hint = 'write {"name": ..., "schema": {...}}'
            raise SpecError(
                "has a `name` and no `schema`", where="json_schema", hint=hint
            )
        return Form("json_schema", value, options, place)
    if "name" not in value and {"type", "properties"} & set(value):
        return Form("json_schema", value, options, place)
    _check_keys(value, ("schema", *wrapper), "json_schema")
    strict = {} if value.get("strict") is None else {"strict": value["strict"]}
    return Form(
        "json_schema", value["schema"], {**strict, **options}, f"{place}.schema"
    )


def _keyed(form: Mapping[str, Any], options: dict[str, Any]) -> Form:
    """Our own form and vLLM's `structured_outputs`: the key that names the kind holds
    the constraint."""
    # `json_object: false` is vLLM's way to leave it out; false as a schema is a schema.
    absent = {"json_object"} if form.get("json_object") is False else set()
    named = [key for key in NAMED if key in form and key not in absent]
    if len(named) != 1:
        what = f"more than one constraint: {', '.join(named)}"
        hint = "give exactly one of " + ", ".join(KINDS)
        if not named:
            what = "no constraint"
            name = next((key for key in form if key not in _VLLM_KEYS), "")
            if form.keys() & _OF_SCHEMAS:
                hint = _PASSED
            elif absent:
                raise _not_true(
                    False, "write true for any JSON object, or leave it out"
                )
            elif name:
                # as vLLM's requests had it before 0.12
                hint = did_you_mean(name.removeprefix("guided_"), NAMED)
        raise SpecError(what, where=WHOLE, hint=hint)
    # the options are taken out by now: they are named for the hint
    _check_keys(form, (*NAMED, "syntax", *_VLLM_KEYS, *OPTIONS), WHOLE)
    value = form[named[0]]
    place = named[0]
    kind = NAMED[place]
    if "whitespace_pattern" in form:
        where = "whitespace_pattern"
        allowed = whitespace_of(form["whitespace_pattern"], where)
        if options.setdefault("whitespace", allowed) != allowed == "compact":
            hint = "leave one of the two out"
            raise SpecError(
                "allows less than the option whitespace", where=where, hint=hint
            )
    # False is vLLM's default, present in every serialised form: it says nothing about
    # what is wanted.
    if form.get("disable_any_whitespace"):
        options["whitespace"] = "compact"
    if form.get("disable_additional_properties"):
        options["strict"] = True
    if kind == "grammar":
        # vLLM puts EBNF and Lark under one key; only EBNF defines rules with `::=`.
        guess = "ebnf" if not isinstance(value, str) or "::=" in value else "lark"
        return Form(
            kind, value, {**options, "syntax": form.get("syntax") or guess}, place
        )
    if "syntax" in form:
        raise SpecError(
            f"applies to a grammar, not to a {place}",
            where="syntax",
            hint="leave it out",
        )
    if kind == "json_schema":
        return _schema(value, options, place)
    if kind == "json_object" and value is not True:
        raise _not_true(value, 'a schema is passed as {"json_schema": {...}}')
    return Form(kind, value, options, place)


def _not_true(value: Any, hint: str) -> SpecError:
    return SpecError(
        f"must be true, not {shown(value)}", where="json_object", hint=hint
    )


def _check_keys(form: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for name in form:
        if name not in known:
            raise SpecError(
                f"unknown key {shown(name)}",
                where=where,
                hint=did_you_mean(name, [one for one in known if one[0] != "_"]),
            )


_OPTIONAL = re.compile(r"(?:(\\s|\[[^][^]+\]| )(?:[*?]|\{0,[0-9]+\}))?")
_ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\s": " \n\r\t"}


def whitespace_of(pattern: Any, where: str) -> Literal["compact", "flexible"]:
    """The option `whitespace` that honours a pattern for the whitespace in JSON, which
    clients of vLLM send: characters that may be left out. Where any whitespace may
    follow, it is flexible, else compact. Others are refused with a SpecError."""
    found = _OPTIONAL.fullmatch(pattern) if isinstance(pattern, str) else None
    if found is None:
        raise SpecError(
            f"is not whitespace that may be left out: {shown(pattern)}",
            where=where,
            hint="write [ ]? for compact JSON or \\s*, or the option whitespace",
        )
    characters = found[1] or ""
    for escape, meant in _ESCAPES.items():
        characters = characters.replace(escape, meant)
    every = pattern.endswith("*") and {*" \n\r\t"} <= {*characters}
    return "flexible" if every else "compact"
