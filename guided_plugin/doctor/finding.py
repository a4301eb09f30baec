"""What a look at one thing found. Depends on nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "note", "unknown", "problem"]
"""`note`: worth knowing, nothing is broken. `unknown`: it cannot be looked at here."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    status: Status
    what: str
    remedy: str = ""
    """What to do about it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What the machine is to serve; the shared memory follows from it."""

    requests: int = 256
    """Requests at the same time: vLLM's `max_num_seqs`."""
    vocabulary: int = 262_144
    """Tokens of the model's vocabulary."""
    drafts: int = 0
    """Draft tokens of a request in a step."""
