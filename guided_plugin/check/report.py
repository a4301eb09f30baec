"""What `check` reports on a spec: whether it compiles, with which backend, and which texts it accepts.

Depends on the compiler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from guided_plugin.check.coverage import Coverage, coverage, tag_coverage
from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.errors import GuidedError
from guided_plugin.grammar.base import Matcher
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.schema import misspelt_keywords

_JSON_KINDS = ("json_schema", "json_object")
_CHUNK = 256
_STRING_OR_SPACE = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\r\n]+')


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """Whether a spec accepts a text."""

    name: str
    accepted: bool
    text: str
    """What was matched: the instance in the layout of the spec."""
    position: int | None = None
    """The first character that doesn't fit; its length when only the end is missing."""

    @property
    def reason(self) -> str:
        """One line for people."""
        if self.accepted or self.position is None:
            return "accepted"
        if self.position >= len(self.text):
            return f"refused at the end (character {self.position}): more is needed"
        before = self.text[max(0, self.position - 30) : self.position]
        return f"refused at character {self.position}: {before!r} can't be followed by " + repr(
            self.text[self.position : self.position + 10]
        )


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
    reports = []
    for name, text in instances:
        written = text if raw else _as_written(spec, text)
        report = match_text(fresh_matcher(compiler, spec), name, written)
        if not report.accepted and written.endswith("\n"):
            report = match_text(fresh_matcher(compiler, spec), name, written[:-1])
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


def fresh_matcher(compiler: GrammarCompiler, spec: OutputSpec) -> Matcher:
    """A matcher at the beginning of a spec, with the stop tokens that end its outputs."""
    grammar = compiler.compile(spec)
    stops = spec.stop_token_ids or compiler.vocabulary.stop_token_ids
    return compiler.backend(grammar.backend).start(grammar, stops)


def match_text(matcher: Matcher, name: str, text: str) -> InstanceReport:
    """Match one text, from a fresh matcher."""
    count = accepted_characters(matcher, text)
    accepted = count == len(text) and matcher.complete
    return InstanceReport(name, accepted, text, None if accepted else count)


def accepted_characters(matcher: Matcher, text: str) -> int:
    """How many characters of a text a matcher accepts; it ends up after the last of them."""
    position = 0
    while position < len(text):
        chunk = text[position : position + _CHUNK]
        if matcher.accept_text(chunk.encode(errors="surrogatepass")):
            position += len(chunk)
            continue
        for character in chunk:
            if not matcher.accept_text(character.encode(errors="surrogatepass")):
                return position
            position += 1
    return position


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
