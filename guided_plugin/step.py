"""Values that hooks and hosts exchange: steps, plans, requests. Depends on errors and
specs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from guided_plugin.errors import GuidedError

if TYPE_CHECKING:
    from torch import Tensor

    from guided_plugin.spec import OutputSpec

UNGUIDED = -1
"""The slot number of a row that no grammar guides."""


NO_TOKEN = -2
"""In place of a sampled token: the row had none that counts, as in the middle of a
prompt. Not -1, which some engines show where a token is not known yet: that one must
never pass."""

BROKEN = -3
"""In place of a token: a host's history grew by more than a step can bring. No grammar
accepts it."""

OfferedDrafts: TypeAlias = "Tensor | int"
"""The drafts to verify, where a worker chooses them: [drafts, requests, 2] int32 on the
CPU, a token and the bits of its confidence each; on CUDA the device's address of that,
in memory of the host."""

NEVER = 1 << 30
"""The length of a history that no kernel reads."""


@dataclass(slots=True)
class DecodeStep:
    """One decode step of a host. The same object goes to every hook of the step."""

    index: int
    slots: Sequence[int]
    """The slot of each logits row that generates in this step; UNGUIDED where there is
    none."""
    tokens: Tensor | None = None
    """[rows] integers on the logits' device; set once they are sampled. NO_TOKEN where
    a row got none."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The guided rows of a step, and their slots; the same object as long as they don't
    change."""

    rows: tuple[int, ...]
    """Ascending. With drafts there is no logits row of a slot's own, and they are 0, 1,
    2, ..."""
    slots: tuple[int, ...]


class TokenSink(NamedTuple):
    """The place where a kernel may write the tokens of a step itself. Addresses on the
    device, of host memory."""

    tokens: int
    """[guided rows] int64, in the order of the plan."""
    word: int
    """32 bits, to be set to `step` once all tokens are there for the whole system to
    see."""
    step: int


class Closure(NamedTuple):
    """The news of a request in a step: it failed, and its masks allow stop tokens only
    from then on, or its output is led to an end."""

    request_id: str
    step: int
    """The first such step, numbered as `GrammarRuntime.newest` is."""
    reason: str = ""
    """Why it failed; empty where its output is led."""
    led: int = 0
    """The parts of it that are led, so far, as `grammar/waiting.py` numbers them."""
    place: int = 0
    """It is led behind so many drafts of that step: if they are all taken. What it is
    led to may end it in the same step."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A spec compiles: with which backend, and what its hosts must know."""

    backend: str
    unenforced: tuple[str, ...] = ()
    """Keywords that the spec asks for and nothing enforces, because an operator allows
    that."""
    least: int = 0
    """Tokens of its shortest output, the stop token among them, where the spec is
    closed before its limit."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A guided request, as hooks see it."""

    request_id: str
    slot: int
    spec: OutputSpec
    backend: str
    error: GuidedError | None = None
    unenforced: tuple[str, ...] = ()
    """As in its `Admission`."""
    closed: str = ""
    """With `close_before_length`: `led`, if its output was led to an end before its
    token limit; `led: reasoning`, if what comes before was, so that the output has room;
    `led: reasoning and output`; `unprotected: ...`, why it may be cut there. Else empty.
    As of the call of `StepPipeline.request`."""


LogitsProcessor = Callable[["Tensor", DecodeStep], "Tensor"]
"""Takes and returns logits [rows, vocabulary]; may change them in place."""

ProcessorFactory = Callable[[Any], LogitsProcessor]
"""Makes a processor for a host, from the host's `StepPipeline`."""
