"""Errors of a request as vLLM's own: its server answers with status 400, or 503 where
there was no room. They name the place that the client wrote.

vLLM makes one constraint of `response_format`, `structured_outputs` and tools. What the
client wrote is in it unchanged, so its place is found by comparing values along the
path of an error. Imports vLLM lazily.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from http import HTTPStatus
from typing import Any

from guided_plugin.errors import (
    GrammarError,
    GuidedError,
    PipelineError,
    PluginError,
    RequestError,
    SpecError,
    printable,
)
from guided_plugin.hosts.vllm.common import EXTRA, GUIDED, constraint
from guided_plugin.hosts.vllm.headers import tell_wait
from guided_plugin.hosts.vllm.metrics import metrics
from guided_plugin.hosts.vllm.names import CONSTRAINTS
from guided_plugin.spec.forms import KINDS, WHOLE, read
from guided_plugin.spec.references import pointer_steps

_log = logging.getLogger("guided_plugin.requests")

_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_FIELDS = (
    "max_tokens",
    "stop_token_ids",
    "beam_search",
    "use_beam_search",
    "repetition_penalty",
    "logit_bias",
)
"""Parameters of a request: errors that name one are not about the spec."""

_CONSTRAINING = ("response_format", "text", "structured_outputs", "tools")
"""Fields of a request that vLLM makes its constraint of. What it prefers comes first."""

_SCHEMAS = (".schema", ".parameters")
"""Ends of the places of schemas."""

_LONGEST = 1 << 18
"""Characters of a text that is read on the event loop to find a place: four times as
many take 50 ms."""

_asking: ContextVar[Mapping[str, Any] | None] = ContextVar("asking", default=None)
"""The values of these fields in the HTTP request that is served; tasks that it starts
share them. None without a server."""


def note(request: Any) -> None:
    """Keep what a chat, a completion or a response asks for, before vLLM's parsers
    replace it."""
    fields = {*_CONSTRAINING, "tool_choice", *_LIMITS}
    written: Mapping[str, Any] = {}
    with suppress(ValueError, RecursionError):  # it is too deep
        written = request.model_dump(include=fields, by_alias=True, warnings=False)
    _asking.set(written)


def _parts(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Everything in a field, with its place; of schemas their definitions alone, which
    vLLM takes out of them."""
    yield place, value
    if isinstance(value, list):
        for at, one in enumerate(value):
            yield from _parts(one, f"{place}[{at}]")
    elif isinstance(value, dict):
        for name, one in value.items():
            if not place.endswith(_SCHEMAS):
                yield from _parts(one, f"{place}.{name}")
            elif name == "$defs" and isinstance(one, dict):
                yield from ((f"{place}#/$defs/{key}", one[key]) for key in one)


def refusal(error: GuidedError, params: Any = None) -> Any:
    """The error of a request with these params as vLLM's own, which its server answers
    with status 400, or 503 where there was no room."""
    from vllm.exceptions import GracefulHTTPError

    # nothing is wrong with the request; a place may be free soon
    if isinstance(error, PipelineError):
        tell_wait(0)
        return GracefulHTTPError(str(error), HTTPStatus.SERVICE_UNAVAILABLE)
    form = (getattr(params, "extra_args", None) or {}).get(GUIDED)
    told, field = placed(error, form, constraint(params))
    return _validation_error()(str(told), parameter=field)


@cache
def _validation_error() -> Any:
    """vLLM's class for a message that begins with its place: vLLM's own writes the
    parameter behind it."""
    from vllm.exceptions import VLLMValidationError

    return type(
        "GuidedValidationError",
        (VLLMValidationError,),
        {"__str__": lambda self: self.args[0]},
    )


def refused(error: GuidedError, request_id: Any, params: Any = None) -> Exception:
    """Return the refusal of a frontend's request, noted in its log and its metrics."""
    translated: Exception = refusal(error, params)
    _log.info(
        "request %s: refused: %s",
        printable(request_id or "without an id", 200),
        translated,
    )
    metrics().refused(
        type(error).__name__, "busy" if isinstance(error, PipelineError) else "refused"
    )
    return translated


def placed(
    error: GuidedError, form: Any, theirs: Any
) -> tuple[GuidedError, str | None]:
    """An error of a request that has a `form` of this package, or one of vLLM's own,
    told with its place in what the client wrote, and the field of that, for `param`; no
    field where it is not about what the client wrote."""
    asking = _asking.get()
    extra = EXTRA if asking is None else "vllm_xargs"
    where = error.where
    if where == EXTRA:
        where = extra
    elif where.partition(".")[0] == GUIDED:
        where = f"{extra}.{where}"
    elif isinstance(error, RequestError) and where in _FIELDS:
        if where == "max_tokens" and asking:
            where = next((name for name in _LIMITS if asking.get(name)), where)
    elif not isinstance(error, SpecError | GrammarError | PluginError):
        return error, None
    elif form is not None:
        key, rest = _inside(form, where)
        where = f"{extra}.{GUIDED}.{key}".rstrip(".") + rest
    elif theirs is not None:
        where = _theirs(asking or {}, theirs, *_inside(theirs, where))
    else:
        return error, None
    told = copy.copy(error)
    told.where = where
    return told, re.split(r"\W", where, maxsplit=1)[0]


def _inside(form: Any, where: str) -> tuple[str, str]:
    """The key of a form that an error is in, and where behind it."""
    form = _document(form)
    keys = form if isinstance(form, Mapping) else {}
    kind = key = ""
    with suppress(GuidedError):
        if keys and (found := read(form)):
            kind = found.kind
            key = found.place
    name = re.split(r"[^\w-]", where, maxsplit=1)[0]
    rest = where[len(name) :]
    if name in ("", WHOLE, kind) or (name in KINDS and not keys):
        return key, rest if rest != "#" else ""
    return (name, rest) if name in keys else (key, f": {where}")


def _theirs(
    asking: Mapping[str, Any], form: Mapping[str, Any], key: str, rest: str
) -> str:
    """A place in vLLM's own constraint as the client wrote it."""
    fields = [name for name in _CONSTRAINING if asking.get(name)]
    if key not in CONSTRAINTS or not fields:
        return f"structured_outputs.{key}".rstrip(".") + rest
    if asking.get("tool_choice") not in (None, "auto", "none"):
        fields.sort(key="tools".__ne__)
    document = _document(form[key])
    nodes = [_plain(document)]
    steps = rest.split("/")[1:]
    # the place may be of a schema as rewritten: what is found before that is kept
    with suppress(KeyError):
        if rest.startswith("#"):
            found = pointer_steps(document, rest[1:])
            nodes.extend(_plain(node) for _, node in found)
    with suppress(RecursionError):
        parts = [
            (place, _plain(value))
            for name in fields
            for place, value in _parts(_document(asking[name]), name)
        ]
        for at, node in enumerate(nodes):
            for place, value in parts:
                if value == node and (at == 0 or isinstance(node, dict)):
                    tail = "#" + "".join(f"/{one}" for one in steps[at:])
                    if at == 0:
                        tail = rest
                    inner = "#" in place or tail == "#"
                    return place + (tail.removeprefix("#") if inner else tail)
    return fields[0]


def _plain(schema: Any) -> Any:
    """A schema, or its JSON text, without its definitions."""
    schema = _document(schema) if isinstance(schema, str) else schema
    if isinstance(schema, dict):
        return {key: schema[key] for key in schema if key != "$defs"}
    return schema


def _document(value: Any) -> Any:
    """Return the value of a JSON text, or plain data, with null in place of Infinity
    and NaN, as vLLM writes them; every other value as it is."""
    with suppress(ValueError, RecursionError, TypeError):
        text = value if isinstance(value, str) else json.dumps(value)
        if len(text) <= _LONGEST:
            return json.loads(text, parse_constant=lambda name: None)
    return value
