"""What names of vLLM's are: what relies on them, and what is expected of each. Depends on shapes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from guided_plugin.hosts.vllm.shapes import Missing, Reader, Unavailable

__all__ = ["Name", "Part"]


class Part(Enum):
    """What relies on a name. A broken part stops what its text says, and nothing else."""

    FRONTEND = "every guided request"
    REASONING = "guided requests under a reasoning parser"
    SCHEDULER = "every guided request, by its engine"
    WORKER = "every guided request, by its worker"
    V1 = "guided requests of the V1 model runner"
    V2 = "guided requests of the V2 model runner"
    DRAFTS = "guided requests under speculative decoding"
    ANSWERS = "statuses of refused streams, and reasons of failed requests, on servers"
    RETRY = "the header Retry-After of answers with status 503"
    TOGETHER = "compiling the specs of several prompts of one `LLM` at the same time"
    READY = "waiting at a server's start until guided requests can be served"
    HOOKS = "the step hooks of plugins on the V2 model runner"
    SAMPLER = (
        "logprobs of the masked distribution, and masks without a copy of the logits, on the V2 model runner"
    )
    TOOLS = "the option tools_strict"
    RANKS = "guided requests under tensor parallelism"
    STAGES = "guided requests under pipeline parallelism"
    SHARDS = "guided requests with batch-sharded sampling"
    ENGINES = "guided requests behind a data-parallel front"


@dataclass(frozen=True, slots=True)
class Name:
    """One name of vLLM's that is relied on."""

    path: str
    """`module:Class.method`."""
    part: Part
    begins: tuple[str, ...] = ()
    """Parameters that stand first, in this order: they are passed, or read, by their place."""
    takes: tuple[str, ...] = ()
    """Parameters that are there, at any place: they are passed, or read, by their name."""
    has: tuple[str, ...] = ()
    """Attributes of the class, or of what is made of it."""
    endpoint: bool = False
    """Whether the module may lack a package that it imports: nothing calls its endpoint then."""

    def differs(self, reader: Reader) -> str | None:
        """What of it is not as expected, if anything is not."""
        try:
            shape = reader.find(self.path)
        except Unavailable as error:
            return None if self.endpoint else str(error)
        except Missing as error:
            return str(error)
        if shape.parameters[: len(self.begins)] != self.begins:
            return f"{self.path} begins with other parameters than {', '.join(self.begins)}"
        for name in self.takes:
            if name not in shape.parameters:
                return f"no parameter {name} of {self.path}"
        for name in self.has:
            if not shape.has(name):
                return f"no {self.path}.{name}"
        return None
