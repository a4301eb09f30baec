"""The messages between an engine and its worker, next to plans, masks and tokens. Plain
data, pickled. What a worker sends is read by `from_worker`."""

from __future__ import annotations

from dataclasses import dataclass, field

from guided_plugin.errors import ERRORS, GuidedError, rebuild
from guided_plugin.grammar.base import Prepared
from guided_plugin.grammar.request_state import RequestState
from guided_plugin.ipc.channel import plain_decoder
from guided_plugin.spec import OutputSpec, unpacked
from guided_plugin.step import Admission
from guided_plugin.worker.layout import Shape


@dataclass(frozen=True, slots=True)
class Hello:
    """Engine, first to a worker: where a worker begins, or continues where another one
    ended."""

    version: str
    """The version of the package that the engine runs."""
    shape: Shape
    filled: int
    """Masks up to this step are done."""
    accepted: int
    """Tokens up to this step are in the journals that are replayed."""
    isolate_until: int
    """Up to this step slots are worked on one by one, because the worker before ended
    at one of them."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """Engine: a request took a slot. The engine's own lives as long as it has that:
    it is what starts the request again in another worker. Its spec's triggers are given
    as tokens.

    Its state has the tokens that were sampled for it, as the token ring showed them. A
    worker therefore never has to send its journals, and losing a worker loses none.
    """

    serial: int
    slot: int
    request_id: str
    spec: OutputSpec
    stop_token_ids: tuple[int, ...]
    error: GuidedError | None = None
    """With one it has failed, and stays closed."""
    prepared: Prepared | None = None
    """The bytes that the worker loads the spec from, where it is not known to have
    it."""
    deaths: int = 0
    """Workers that died while they worked on it alone."""
    closed: bool = False
    """True if the host is told of a closed step, or will be."""
    led_in: int = 0
    """The step in which its output was last led; 0: none was."""
    last: int = 0
    """The newest step when it left."""
    state: RequestState = field(init=False)

    def __post_init__(self) -> None:
        self.state = RequestState(self.spec.start_after or (), self.stop_token_ids)


@dataclass(frozen=True, slots=True)
class Remove:
    """Engine: a slot is free."""

    slot: int


@dataclass(frozen=True, slots=True)
class Compile:
    """Engine: answer whether a spec compiles."""

    key: bytes
    spec: OutputSpec
    prepared: Prepared | None = None
    """As in `LiveRequest`."""


@dataclass(frozen=True, slots=True)
class Sync:
    """Engine: answer when the messages before this one have taken effect, the tokens of
    step `after` are accepted and the masks of step `filled` are filled."""

    ticket: int
    after: int
    filled: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker, first: it runs, and its backends have read the vocabulary."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Worker: the answer to `Compile`."""

    key: bytes
    answer: Admission | GuidedError
    prepared: Prepared | None = None
    """The bytes that the next worker loads the spec from, if this one had a helper make
    it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Worker: a request failed closed after `count` tokens; or, in a text, why its
    output may be cut at its token limit."""

    serial: int
    error: GuidedError | str
    count: int = 0


@dataclass(frozen=True, slots=True)
class Synced:
    """Worker: the answer to `Sync`."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Ends:
    """Worker, last of a session: why it ends itself."""

    reason: str
    blameless: bool = False
    """True if it asks to be replaced, and no request is to blame for that."""


from_worker = plain_decoder(
    (Ready, Verdict, Outcome, Synced, Ends, Admission, Prepared, *ERRORS),
    (rebuild, unpacked),
)
"""Reads a message of a worker, which may be broken."""
