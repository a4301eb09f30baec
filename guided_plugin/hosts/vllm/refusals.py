"""Errors of a request as vLLM's own: its server answers with status 400, or 503 where
there was no room. They name the place that the client wrote.

vLLM makes one constraint of `response_format`, `structured_outputs` and tools. What the
client wrote is in it unchanged, so its place is found by comparing values along the
path of an error. Imports vLLM lazily.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

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
from guided_plugin.hosts.vllm.headers import LEAST, unavailable
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
    "allowed_token_ids",
    "repetition_penalty",
    "logit_bias",
)
"""Of a request: errors that name one are not about the spec."""

_LONGEST = 1 << 18
"""Characters of a text that is read on the event loop to find a place: four times as
many take 50 ms."""


class _Asking(NamedTuple):
    """What a client sent; without a server, what `SamplingParams` has."""

    extra: str = EXTRA
    limit: str = "max_tokens"
    parts: tuple[tuple[str, Any], ...] = ()
    """What vLLM may make its constraint of, with its place. What vLLM prefers comes
    first."""


_NO_SERVER = _Asking()
_asking: ContextVar[_Asking] = ContextVar("asking", default=_NO_SERVER)
"""Of the HTTP request that is served; tasks that it starts share it."""


def note(request: Any) -> None:
    """Keep what a chat, a completion or a response asks for, before vLLM's parsers
    replace it. Copies no schema."""
    fields = vars(request)
    limits = [name for name in _LIMITS if name in fields] or ["max_tokens"]
    limit = next((name for name in limits if fields[name] is not None), limits[-1])
    form = fields.get("response_format")
    outputs = fields.get("structured_outputs")
    wrapped = getattr(form, "json_schema", None)
    text = getattr(fields.get("text"), "format", None)
    parts = [
        ("response_format.json_schema.schema", getattr(wrapped, "json_schema", None)),
        ("response_format", form),
        ("text.format.schema", getattr(text, "schema_", None)),
        *(
            (f"structured_outputs.{name}", getattr(outputs, name, None))
            for name in CONSTRAINTS
        ),
    ]
    choice = fields.get("tool_choice")
    only = getattr(getattr(choice, "function", choice), "name", None)
    tools = list(_tools(fields.get("tools"), "tools", only))
    parts = [*parts, *tools] if choice in (None, "auto", "none") else tools or parts
    _asking.set(
        _Asking(
            "vllm_xargs", limit, tuple(part for part in parts if part[1] is not None)
        )
    )


def _tools(tools: Any, field: str, only: str | None) -> Iterator[tuple[str, Any]]:
    """The parameters of all tools or of one, and their definitions, which vLLM takes
    out of them: of chats, of Responses and of namespaces."""
    for at, tool in enumerate(tools or ()):
        function = getattr(tool, "function", tool)
        place = f"{field}[{at}]"
        yield from _tools(getattr(tool, "tools", None), f"{place}.tools", only)
        parameters = getattr(function, "parameters", None)
        if isinstance(parameters, dict) and only in (None, function.name):
            place += ".parameters" if function is tool else ".function.parameters"
            yield place, _plain(parameters)
            definitions = parameters.get("$defs")
            for name, value in (
                definitions.items() if isinstance(definitions, dict) else ()
            ):
                yield f"{place}#/$defs/{name}", value


def refusal(error: GuidedError, params: Any = None) -> Exception:
    """The error of a request with these params as vLLM's own, which its server answers
    with status 400, or 503 where there was no room."""
    # nothing is wrong with the request; a place may be free soon
    if isinstance(error, PipelineError):
        return unavailable(str(error), LEAST)
    form = (getattr(params, "extra_args", None) or {}).get(GUIDED)
    told, field = placed(error, form, constraint(params))
    translated: Exception = _validation_error()(str(told), parameter=field)
    return translated


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
    """The same for a frontend's request, noted in its log and its metrics."""
    translated = refusal(error, params)
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
    where = error.where
    if where == EXTRA:
        where = asking.extra
    elif where.partition(".")[0] == GUIDED:
        where = f"{asking.extra}.{where}"
    elif isinstance(error, RequestError) and where in _FIELDS:
        where = asking.limit if where == "max_tokens" else where
    elif not isinstance(error, SpecError | GrammarError | PluginError):
        return error, None
    elif form is not None:
        key, rest = _inside(form, where)
        where = f"{asking.extra}.{GUIDED}.{key}".rstrip(".") + rest
    elif theirs is not None:
        where = _theirs(asking, theirs, *_inside(theirs, where))
    else:
        return error, None
    told = type(error)(
        error.what, where=where, hint=error.hint, request_id=error.request_id
    )
    return told, re.split(r"\W", where, maxsplit=1)[0]


def _inside(form: Any, where: str) -> tuple[str, str]:
    """The key of a form that an error is in, and where behind it."""
    found = None
    form = _document(form) if isinstance(form, str) else form
    keys = tuple(form) if isinstance(form, Mapping) else ()
    with suppress(GuidedError):
        found = read(form) if keys else None
    kind, key = ("", "") if found is None else (found.kind, found.place)
    name = re.split(r"[^\w-]", where, maxsplit=1)[0]
    rest = where[len(name) :]
    if name in ("", WHOLE, kind) or (name in KINDS and not keys):
        return key, rest if rest != "#" else ""
    return (name, rest) if name in keys else (key, f": {where}")


def _theirs(asking: _Asking, form: Mapping[str, Any], key: str, rest: str) -> str:
    """A place in vLLM's own constraint as the client wrote it."""
    if key not in CONSTRAINTS or not asking.parts:
        return f"structured_outputs.{key}".rstrip(".") + rest
    first, *steps = rest.split("/")
    nodes = [_document(form[key])]
    parts = [(place, _plain(_document(value))) for place, value in asking.parts]
    # the place may be of a schema as rewritten: what is found before that is kept
    with suppress(KeyError):
        if first == "#":
            nodes.extend(node for _, node in pointer_steps(nodes[0], rest[1:]))
    with suppress(RecursionError):
        for at, node in enumerate(map(_plain, nodes)):
            for place, value in parts:
                if value == node:
                    tail = (
                        "".join(f"/{step}" for step in steps[at:])
                        if first == "#"
                        else rest
                    )
                    return (
                        place
                        + ("#" if tail.startswith("/") and "#" not in place else "")
                        + tail
                    )
    return "tools" if parts[0][0].startswith("tools") else parts[0][0]


def _plain(schema: Any) -> Any:
    """A schema without its definitions."""
    return (
        {key: schema[key] for key in schema if key != "$defs"}
        if isinstance(schema, dict)
        else schema
    )


def _document(value: Any) -> Any:
    """What a JSON text, or one of vLLM's models, says, with null in place of Infinity
    and NaN, as vLLM writes them; every other value as it is."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(by_alias=True)
    with suppress(ValueError, RecursionError, TypeError):
        text = value if isinstance(value, str) else json.dumps(value)
        return (
            json.loads(text, parse_constant=lambda name: None)
            if len(text) <= _LONGEST
            else value
        )
    return value
