"""What engine and worker tell each other, besides plans, masks and tokens. Plain data, pickled."""

from __future__ import annotations

from dataclasses import dataclass

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec
from guided_plugin.step import Admission
from guided_plugin.worker.layout import Shape

__all__ = [
    "Add",
    "Compile",
    "Crashed",
    "Failed",
    "Hello",
    "Ready",
    "Remove",
    "Retires",
    "Sync",
    "Synced",
    "Verdict",
    "Warm",
]


@dataclass(frozen=True, slots=True)
class Hello:
    """Engine, first of a session: everything a worker needs to begin, or to go on where another died."""

    vocabulary: Vocabulary
    config: GuidedConfig
    entry_points: bool
    sys_path: tuple[str, ...]
    shape: Shape
    identity: bytes
    filled: int
    """Masks up to this step are done."""
    accepted: int
    """Tokens up to this step are in the journals that are replayed."""
    isolate_until: int
    """Up to this step slots are worked on one by one: the worker before died on one of them."""


@dataclass(frozen=True, slots=True)
class Add:
    """Engine: a request took a slot. With an `error` it has failed before, and stays closed. A precompiled
    spec has compiled within the limits."""

    serial: int
    slot: int
    request_id: str
    spec: OutputSpec
    tokens: tuple[int, ...]
    error: GuidedError | None = None
    precompiled: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Engine: a slot is free."""

    slot: int


@dataclass(frozen=True, slots=True)
class Compile:
    """Engine: say whether a spec compiles. A precompiled one has compiled within the limits elsewhere."""

    ticket: int
    spec: OutputSpec
    precompiled: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """Engine: answer when the messages before this one, the tokens of step `after` and the masks of step
    `filled` are dealt with."""

    ticket: int
    after: int
    filled: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker: it runs, and this is what its plugins offer."""

    backends: frozenset[str]
    lowerings: frozenset[str]


@dataclass(frozen=True, slots=True)
class Warm:
    """Worker: its backends have taken in the vocabulary, which may hold it up for longer than a step may
    take."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Worker: the answer to `Compile`."""

    ticket: int
    answer: Admission | GuidedError


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker: a request failed closed after `count` tokens."""

    serial: int
    error: GuidedError
    count: int


@dataclass(frozen=True, slots=True)
class Synced:
    """Worker: the answer to `Sync`."""

    ticket: int
    starting: frozenset[int]
    """Slots whose grammars are still being compiled."""


@dataclass(frozen=True, slots=True)
class Retires:
    """Worker, last of a session: it wants to be replaced, and no request is to blame for it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """Worker, last of a session: why it ends itself."""

    reason: str
