"""What a request asks for, on its way from where it arrives to the engine. Imports vLLM lazily.

    Asked      what a client wrote and until when it is answered; then its digest and its spec
    Admitted   the spec once it has compiled, in place of what the client wrote
    LEFT       in place of that where the request is left to vLLM's own manager (`refused: "vllm"`)

One object is handed from place to place, and what was found out stays with it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import marshal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from guided_plugin.errors import CompileLimitError, GrammarError, GuidedError, PipelineError, SpecError
from guided_plugin.hosts.vllm import telling
from guided_plugin.hosts.vllm.names import CONSTRAINT_FORM, CONSTRAINTS
from guided_plugin.spec import OutputSpec, identity_of

REASONING = "guided_reasoning"
"""The key of `extra_args` for what the caller of AsyncLLM says about the reasoning, until `Gate.complete`."""

MARK = "guided_left"
"""Set by the gate in `extra_args` of each request that is left to vLLM, so that its engine counts it."""


@dataclass(slots=True, eq=False)
class Asked:
    """What a request asks for, and what is known of it so far."""

    form: Any
    own: bool
    """Whether it is asked with `guided`; else with vLLM's own fields."""
    deadline: float
    """Of `time.monotonic`: until when the request is answered, whatever it waits for."""
    key: bytes | None = None
    """What the form is remembered by: a digest, as the client's object may change. None where it is not plain
    data."""
    spec: OutputSpec | None = None
    """Once the form was read; its triggers are token ids."""


@dataclass(slots=True, eq=False)
class Admitted:
    """A spec that has compiled. It replaces the client's form in `extra_args` until `Gate.complete`. It is an
    object, so no client can send one."""

    spec: OutputSpec
    """Its triggers are token ids: the scheduler has no tokenizer, and no request with it needs one again."""
    prepared: bool
    """Whether its requests may go to the engine at once; else the engine gets it ready first."""
    told: bool = field(default=False, init=False)
    """Whether the engine was sent the spec for that."""
    backend: str = ""
    """What it compiled with, for metrics."""
    unenforced: tuple[str, ...] = ()
    """The keywords in it that nothing enforces (`unenforced_keywords`)."""
    named: frozenset[int] = frozenset()
    """Control tokens that it names: none may be a stop token of its request."""
    fields: Mapping[str, Any] = field(init=False)
    """The spec as plain data. Shared by all requests: never written to."""
    key: str = field(init=False)
    """What frontend and engine call it meanwhile."""

    def __post_init__(self) -> None:
        self.fields, self.key = dataclasses.asdict(self.spec), identity_of(self.spec).hex()

    def __deepcopy__(self, memo: Any) -> Admitted:
        return self  # vLLM clones the params of each request


LEFT = Admitted(OutputSpec.json_object(), True)
"""In place of an admitted spec: its requests are left to vLLM's own manager."""


def may_leave(error: GuidedError) -> bool:
    """Whether `refused: "vllm"` leaves a spec that was refused to vLLM: one that is malformed, or that no
    backend of the plugin enforces. One over a limit is not left: the limits protect the server."""
    return isinstance(error, GrammarError | SpecError) and not isinstance(error, CompileLimitError)


def refusal(error: GuidedError) -> Exception:
    """The error as vLLM's own, which its server answers with status 400, or 503 where there was no room."""
    from vllm.exceptions import VLLMValidationError

    if isinstance(error, PipelineError):  # nothing is wrong with the request; a place may be free soon
        return telling.unavailable(str(error), telling.LEAST)
    translated: Exception = VLLMValidationError(str(error))
    return translated


def refused(error: GuidedError, request_id: Any) -> Exception:
    """The same for a frontend's request, noted in its log and its metrics."""
    telling.refused(error, str(request_id or ""))
    return refusal(error)


def constraint(params: Any) -> dict[str, Any] | None:
    """vLLM's own constraint of a request, as a form that `OutputSpec.parse` reads."""
    outputs = getattr(params, "structured_outputs", None)
    if outputs is None or all(getattr(outputs, name) is None for name in CONSTRAINTS):
        return None
    return {name: value for name in CONSTRAINT_FORM if (value := getattr(outputs, name)) is not None}


def digest_of(form: Any) -> bytes | None:
    """What a form is remembered by: a digest; None where it is not plain data."""
    # No form that can be read begins with NUL.
    plain = f"\0{dataclasses.astuple(form)}" if isinstance(form, OutputSpec) else form
    try:
        written = marshal.dumps(plain, _NO_REFERENCES)
    except ValueError:
        return None
    return hashlib.blake2b(written, digest_size=24).digest()


_NO_REFERENCES = 2
"""A version of marshal's format whose bytes follow from the value alone, at a tenth of what JSON costs."""
