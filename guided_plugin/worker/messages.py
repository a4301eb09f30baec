"""The messages between an engine and its worker, next to plans, masks and tokens. Plain
data, pickled. What a worker sends is read by `from_worker`."""

from __future__ import annotations

from dataclasses import dataclass

from guided_plugin.errors import ERRORS, GuidedError, rebuild
from guided_plugin.grammar.base import Prepared
from guided_plugin.ipc.channel import plain_decoder
from guided_plugin.spec import OutputSpec, unpacked
from guided_plugin.step import Admission
from guided_plugin.worker.layout import Shape


@dataclass(frozen=True, slots=True)
class Hello:
    """Engine, first to a worker: where a worker begins, or continues where another one
    ended."""

    version: str
    """Of the package that the engine runs."""
    shape: Shape
    filled: int
    """Masks up to this step are done."""
    accepted: int
    """Tokens up to this step are in the journals that are replayed."""
    isolate_until: int
    """Up to this step slots are worked on one by one, because the worker before ended
    at one of them."""


@dataclass(frozen=True, slots=True)
class Add:
    """Engine: a request took a slot. With an `error` it has failed before, and stays
    closed."""

    serial: int
    slot: int
    request_id: str
    spec: OutputSpec
    tokens: tuple[int, ...]
    error: GuidedError | None = None
    prepared: Prepared | None = None
    """What the worker loads the spec from, where it is not known to have it."""


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
    """As in `Add`."""


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
    """What the next worker loads the spec from, if this one had a helper make it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker: a request failed closed after `count` tokens."""

    serial: int
    error: GuidedError
    count: int


@dataclass(frozen=True, slots=True)
class Unprotected:
    """Worker: why the output of a request may be cut at its token limit."""

    serial: int
    reason: str


@dataclass(frozen=True, slots=True)
class Synced:
    """Worker: the answer to `Sync`."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Ends:
    """Worker, last of a session: why it ends itself."""

    reason: str
    blameless: bool = False
    """Whether it asks to be replaced, and no request is to blame for that."""


from_worker = plain_decoder(
    (Ready, Verdict, Failed, Unprotected, Synced, Ends, Admission, Prepared, *ERRORS),
    (rebuild, unpacked),
)
"""Reads a message of a worker, which may be broken."""
