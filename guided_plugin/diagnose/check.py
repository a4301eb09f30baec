"""What `check` reports on a spec: whether it compiles, with which backend, and which texts it accepts.

Depends on the compiler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.diagnose.coverage import Coverage, coverage, tag_coverage
from guided_plugin.diagnose.position import Position, Refusal
from guided_plugin.errors import GuidedError
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.schema import misspelt_keywords

_JSON_KINDS = ("json_schema", "json_object")
_STRING_OR_SPACE = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\r\n]+')


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """Whether a spec accepts a text."""

    name: str
    text: str
    """What was matched: the instance in the layout of the spec."""
    refusal: Refusal | None = None

    @property
    def accepted(self) -> bool:
        """Whether the text is a whole output."""
        return self.refusal is None

    @property
    def position(self) -> int | None:
        """The first character that does not fit; its length where only the end is missing."""
        return None if self.refusal is None else self.refusal.position

    @property
    def reason(self) -> str:
        """One line for people."""
        return "accepted" if self.refusal is None else self.refusal.reason


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A spec, its compile, and the texts that were matched."""

    spec: OutputSpec
    backend: str | None
    compile_seconds: float
    memory_bytes: int
    warnings: tuple[str, ...]
    instances: tuple[InstanceReport, ...]
    error: GuidedError | None = None
    reason: str = ""
    """Why this backend."""
    coverage: Coverage | None = None
    """What becomes of each keyword; only of JSON schemas, those inside structural tags too."""

    @property
    def ok(self) -> bool:
        """Whether it compiles and accepts every instance."""
        return self.error is None and all(instance.accepted for instance in self.instances)

    def to_dict(self) -> dict[str, Any]:
        """With stable keys, for `--json`."""
        names = ("name", "accepted", "position", "reason", "text")
        error = self.error and {
            "type": type(self.error).__name__,
            "what": self.error.what,
            "where": self.error.where,
            "hint": self.error.hint,
        }
        return {
            "ok": self.ok,
            "spec": self.spec.to_dict(),
            "backend": self.backend,
            "reason": self.reason,
            "compile_ms": round(self.compile_seconds * 1e3, 3),
            "memory_bytes": self.memory_bytes,
            "warnings": list(self.warnings),
            "error": error,
            "instances": [{name: getattr(one, name) for name in names} for one in self.instances],
            "keywords": self.coverage and [asdict(use) for use in self.coverage.keywords],
        }


def check_spec(
    compiler: GrammarCompiler,
    spec: OutputSpec,
    instances: Iterable[tuple[str, str]] = (),
    *,
    raw: bool = False,
) -> CheckReport:
    """Compile a spec and match texts, given as (name, text).

    For JSON specs, a text that is JSON is matched in the layout of the spec. `raw` matches it to the letter.
    Texts come from files: a last line end counts only where the spec takes it.
    """
    of_schema = spec.kind == "json_schema"
    warnings = misspelt_keywords(spec.document()) if of_schema else []
    covered = coverage(spec, compiler) if of_schema else None
    if spec.kind == "structural_tag":
        covered = tag_coverage(spec, compiler)
    try:
        grammar = compiler.compile(spec)
    except GuidedError as error:
        return CheckReport(spec, None, 0.0, 0, tuple(warnings), (), error, coverage=covered)
    start = Position.start(compiler, spec)
    reports = []
    for name, text in instances:
        written = text if raw else _as_written(spec, text)
        report = match_text(start.fork(), name, written)
        if not report.accepted and written.endswith("\n"):
            report = match_text(start.fork(), name, written[:-1])
        reports.append(report)
    return CheckReport(
        spec,
        grammar.backend,
        grammar.seconds,
        grammar.size_bytes,
        (*warnings, *grammar.warnings),
        tuple(reports),
        reason=grammar.reason,
        coverage=covered,
    )


def match_text(position: Position, name: str, text: str) -> InstanceReport:
    """Match one text, from the beginning of a spec."""
    count = position.move(text)
    whole = count == len(text) and position.may_stop
    return InstanceReport(name, text, None if whole else position.refusal("", text, count))


def _as_written(spec: OutputSpec, text: str) -> str:
    if spec.kind not in _JSON_KINDS:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return _STRING_OR_SPACE.sub(_piece_as_written, text)


def _piece_as_written(piece: re.Match[str]) -> str:
    # Numbers and repeated keys stay as they are: json.dumps would change them.
    return "" if piece[0].isspace() else json.dumps(json.loads(piece[0]), ensure_ascii=False)
