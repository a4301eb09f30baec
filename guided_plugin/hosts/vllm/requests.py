"""What the runners know of a guided request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class GuidedRequest:
    """A guided request in the batch."""

    request_id: str
    """vLLM's own, where its scheduler says it."""
    slot: int
    """UNGUIDED where it is closed, and after its end."""
    stop: int
    """A token that ends it."""
    limits: str = ""
    """Options by which vLLM itself forbids tokens of it: what is left of a row may then be nothing."""
