"""What benchmarks share: ways that take turns in one process or engine, because engines
differ by some percent from start to start; their schemas, and the checks of their
outputs.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.demo import closed_object
from guided_plugin.errors import RequestError
from guided_plugin.grammar.renewal import rebuilds_shared
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.spec import OutputSpec

Ways = Mapping[str, Callable[[], float]]
"""What is compared, by name: each runs once, and returns its milliseconds a step."""
_PACKAGES = ("torch", "xgrammar", "llguidance", "transformers", "triton", "vllm")


def endless(properties: dict[str, Any]) -> dict[str, Any]:
    """An array of objects with these properties, longer than any benchmark decodes."""
    return repeated(closed_object(properties))


def repeated(item: Any) -> dict[str, Any]:
    """An array of what a schema describes, as long."""
    return {"type": "array", "items": item, "minItems": 500}


SCHEMAS: dict[str, dict[str, Any]] = {
    "plain": endless(
        {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "city": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "active": {"type": "boolean"},
        }
    ),
    "maxlength": endless(
        {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer"},
            "city": {"type": "string", "maxLength": 60},
            "note": {"type": "string", "minLength": 1, "maxLength": 200},
            "active": {"type": "boolean"},
        }
    ),
}
"""`plain`: nothing a backend finds hard. `maxlength`: strings with length bounds, which
many find hard."""


def environment(device: str = "cpu") -> dict[str, Any]:
    """Everything a reader needs to judge a figure measured on a device."""
    import torch

    from guided_plugin import __version__

    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "guided_plugin": __version__,
        "python": platform.python_version(),
        "versions": versions,
        "cpus": os.cpu_count(),
        "device": torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else device,
    }


def median(values: Iterable[float], digits: int = 4) -> float:
    """Rounded, for JSON."""
    return round(statistics.median(values), digits)


def in_turns(ways: Ways, repetitions: int) -> dict[str, list[float]]:
    """The milliseconds of each way. The order is reversed every other time: it
    matters."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for repetition in range(repetitions):
        for way in list(ways) if repetition % 2 == 0 else reversed(list(ways)):
            times[way].append(round(ways[way](), 4))
    return times


def compared(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """A figure: medians, and the ratio of each way to `unguided`, `guided` first."""
    found: dict[str, Any] = {
        f"{way}_ms": median(values) for way, values in times.items()
    }
    for way in times:
        if way != "unguided":
            ratios = [t / u for t, u in zip(times[way], times["unguided"], strict=True)]
            orders = [order for order in (ratios[0::2], ratios[1::2]) if order]
            name = "ratio" if way == "guided" else f"{way}_ratio"
            # The mean of the median in one order and of that in reverse.
            found[name] = round(statistics.mean(map(statistics.median, orders)), 4)
    return {**found, "runs_ms": dict(times)}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how often."""

    rows: Sequence[int]
    schemas: Sequence[str]
    steps: int = 64
    repetitions: int = 3

    def figures(
        self,
        case: Callable[[int, str], tuple[Ways, Callable[[], dict[str, Any]]]],
        warm_ups: int = 1,
    ) -> list[dict[str, Any]]:
        """A figure for each batch size and schema. `case` makes the ways to run it, and
        what tells more of it after the last run."""
        found = []
        for count in self.rows:
            for name in self.schemas:
                ways, more = case(count, name)
                in_turns(ways, warm_ups)
                figure = compared(in_turns(ways, self.repetitions))
                found.append({"rows": count, "schema": name, **more(), **figure})
        return found


def refused_at(
    compiler: GrammarCompiler, spec: OutputSpec, tokens: Iterable[int]
) -> int | None:
    """The index of the first token that a fresh matcher refuses; None if it accepts
    all."""
    grammar = compiler.compile(spec)
    backend = compiler.backend(grammar.backend)
    stops = compiler.vocabulary.stop_token_ids
    tokens = list(tokens)
    for _ in range(2):
        matcher = backend.start(grammar, stops)
        refused = next(
            (place for place, token in enumerate(tokens) if not matcher.accept(token)),
            None,
        )
        # A lexer that it shares with earlier matchers may be exhausted: then the next
        # one has another.
        if refused is None or not rebuilds_shared(matcher):
            break
    return refused


def check_outputs(
    vocabulary: Vocabulary, spec: OutputSpec, rows: Iterable[Sequence[int]]
) -> str:
    """The backend of the spec. Raises RequestError if a fresh matcher refuses a token
    of an output."""
    compiler = GrammarCompiler(vocabulary, config=GuidedConfig(isolate_compiles=False))
    for row, tokens in enumerate(rows):
        place = refused_at(compiler, spec, tokens)
        if place is not None:
            raise RequestError(
                f"a fresh matcher refuses token {tokens[place]}",
                where=f"row {row}, token {place}",
            )
    return compiler.compile(spec).backend
