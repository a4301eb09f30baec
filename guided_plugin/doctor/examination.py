"""All sections in order. What one of them raises is a finding of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from guided_plugin.doctor.cuda import cuda
from guided_plugin.doctor.entry import entries
from guided_plugin.doctor.finding import Finding, Setup
from guided_plugin.doctor.host import vllm
from guided_plugin.doctor.machine import processor_time, shared_memory
from guided_plugin.doctor.options import options
from guided_plugin.doctor.selftest import self_test, workers_importing
from guided_plugin.doctor.versions import versions
from guided_plugin.errors import printable

SECTIONS: dict[str, Callable[[Setup], Iterator[Finding]]] = {
    "versions": versions,
    "options": options,
    "entry points": entries,
    "vLLM": vllm,
    "processors": processor_time,
    "shared memory": shared_memory,
    "CUDA": cuda,
    "self-test": self_test,
}


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings of each section."""

    sections: dict[str, list[Finding]]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return all(finding.status != "problem" for found in self.sections.values() for finding in found)

    def to_dict(self) -> dict[str, Any]:
        """With stable keys, for `--json`."""
        found = {name: [asdict(finding) for finding in found] for name, found in self.sections.items()}
        return {"ok": self.ok, "sections": found}


def examine(setup: Setup, done: Callable[[str], None] = lambda section: None) -> Examination:
    """Look at everything; `done` is called after each section."""
    sections = {}
    with workers_importing():
        for name, look in SECTIONS.items():
            sections[name] = _look(look, setup)
            done(name)
    return Examination(sections)


def _look(look: Callable[[Setup], Iterator[Finding]], setup: Setup) -> list[Finding]:
    found: list[Finding] = []
    try:
        found += look(setup)
    except Exception as error:  # of a library that is broken: that is what people come here for
        what = f"cannot be looked at: {type(error).__name__}: {printable(error)}"
        found.append(Finding("problem", what, "install again what the message names"))
    return found
