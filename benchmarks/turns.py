"""What benchmarks share: the schemas that engines are asked for, the check of their
outputs, and what is said of the machine."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.demo import closed_object
from guided_plugin.grammar.renewal import rebuilds_shared
from guided_plugin.spec import OutputSpec

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
