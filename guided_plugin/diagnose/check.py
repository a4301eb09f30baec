"""The report of `check` on a spec: whether it compiles, what becomes of each keyword of
its schemas, and which texts it accepts. Depends on the compiler."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.compiling.limits import check_limits
from guided_plugin.diagnose.position import Position, bounds_of
from guided_plugin.diagnose.refusals import refusals, refused_keyword
from guided_plugin.errors import GuidedError, SpecError
from guided_plugin.grammar.base import Grammar, why_unprotected
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.references import pointer
from guided_plugin.spec.schema import schemas_in
from guided_plugin.spec.uses import KeywordUse, uses_of

_STRING_OR_BETWEEN = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\r\n]+|[,:]')


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """True if a spec accepts a text as a whole output."""

    name: str
    accepted: bool
    position: int | None
    """The first character that does not fit; its length where only the end is
    missing."""
    reason: str
    """One line for people."""
    text: str
    """The text that was matched: the instance in the layout of the spec."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A spec, its compile, and the texts that were matched."""

    spec: OutputSpec
    grammar: Grammar | None
    """None where the spec is refused."""
    error: GuidedError | None
    warnings: tuple[str, ...]
    instances: tuple[InstanceReport, ...]
    keywords: tuple[KeywordUse, ...] | None
    """The treatment of each keyword; only of JSON schemas, those inside structural tags
    too."""

    @property
    def ok(self) -> bool:
        """True if it compiles and accepts every instance."""
        return self.error is None and all(
            instance.accepted for instance in self.instances
        )

    def to_dict(self) -> dict[str, Any]:
        """With stable keys, for `--json`."""
        made = self.grammar
        return {
            "ok": self.ok,
            "spec": self.spec.to_dict(),
            "backend": made and made.backend,
            "reason": made.reason if made else "",
            "compile_ms": round(made.seconds * 1e3, 3) if made else 0.0,
            "bounds": bounds_of(made),
            "memory_bytes": made.size_bytes if made else 0,
            "warnings": list(self.warnings),
            "error": self.error and self.error.to_dict(),
            "instances": list(map(asdict, self.instances)),
            "keywords": self.keywords and [asdict(use) for use in self.keywords],
        }


def check_spec(
    compiler: GrammarCompiler,
    spec: OutputSpec,
    instances: Iterable[tuple[str, str]] = (),
    *,
    warnings: Iterable[str] = (),
) -> CheckReport:
    """Compile a spec and match texts, given as (name, text). `warnings` are told too.

    For JSON specs, a text that is JSON is matched in the layout of the spec;
    `explain_output` matches to the letter. Texts come from files: a last line end counts only where
    the spec takes it.
    """
    keywords = keyword_uses(spec, compiler)
    try:
        warnings = (*check_limits(spec, compiler.config), *warnings)
        grammar = compiler.compile(spec)
    except GuidedError as error:
        return CheckReport(spec, None, error, tuple(warnings), (), keywords)
    start = Position.start(compiler, spec)
    reports = []
    for name, text in instances:
        written = _as_written(grammar.spec, text)
        report = match_text(start.fork(), name, written)
        if not report.accepted and written.endswith("\n"):
            report = match_text(start.fork(), name, written[:-1])
        if not report.accepted and keywords is not None and grammar.spec.strict:
            report = _hinted(compiler, spec, report)
        reports.append(report)
    warnings = tuple(filter(None, (*warnings, why_unprotected(grammar))))
    return CheckReport(spec, grammar, None, warnings, tuple(reports), keywords)


def match_text(position: Position, name: str, text: str) -> InstanceReport:
    """Match one text, from the beginning of a spec."""
    count = position.move(text)
    if count == len(text) and position.may_stop:
        return InstanceReport(name, True, None, "accepted", text)
    return InstanceReport(
        name, False, count, position.refusal(text, count).reason, text
    )


def _hinted(
    compiler: GrammarCompiler, spec: OutputSpec, report: InstanceReport
) -> InstanceReport:
    """With a hint, where the text fails for what `strict` asks alone."""
    try:
        start = Position.start(compiler, replace(spec, strict=False))
    except GuidedError:
        return report  # what the backend cannot enforce of open objects
    if not match_text(start, report.name, report.text).accepted:
        return report
    hint = "`strict: false` in the spec or GUIDED_PLUGIN accepts it: objects take other names, in any order"
    return replace(report, reason=f"{report.reason}; {hint}")


def _as_written(spec: OutputSpec, text: str) -> str:
    if not spec.is_json:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    space = " " * (spec.whitespace == "spaced")

    def written(piece: re.Match[str]) -> str:
        # Numbers and repeated keys stay as they are: json.dumps would change them.
        if piece[0][0] == '"':
            return json.dumps(json.loads(piece[0]), ensure_ascii=False)
        return "" if piece[0].isspace() else piece[0] + space

    return _STRING_OR_BETWEEN.sub(written, text)


def keyword_uses(
    spec: OutputSpec, compiler: GrammarCompiler
) -> tuple[KeywordUse, ...] | None:
    """Return the treatment of each keyword of a spec's schemas, each compiled by
    itself; None for kinds that have no schema."""
    if spec.kind not in ("json_schema", "structural_tag"):
        return None
    return tuple(
        replace(use, where=place + use.where[1:])
        for place, schema in schemas_in(spec.kind, spec.document())
        if place.endswith(("#", "/json_schema", "/schema"))
        for use in _uses(spec, schema, compiler)
    )


def _uses(
    spec: OutputSpec, schema: Any, compiler: GrammarCompiler
) -> Iterable[KeywordUse]:
    """Return the treatment of each keyword of one schema."""

    def attempt(rest: Any) -> Grammar:
        text = OutputSpec.json_schema(rest).text
        return compiler.compile(replace(spec, kind="json_schema", text=text))

    grammar, errors = refusals(schema, attempt)
    refused = {
        pointer(path): error
        for error in errors
        # of a reference that needs what was taken out
        if not isinstance(error, SpecError) and (path := refused_keyword(schema, error))
    }
    for use in uses_of(schema, compiler.config.unenforced_keywords):
        if error := refused.get(use.where):
            yield replace(use, status="refused", note=error.what, hint=error.hint)
        elif use.status == "enforced" and grammar is None:
            why = "the schema is refused for a reason that names no keyword"
            yield replace(use, status="undecided", note=why)
        elif use.status == "enforced" and grammar:
            yield replace(use, note=f"by {grammar.backend}")
        else:
            yield use
