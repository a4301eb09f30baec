"""Checks one schema in one mode: instances around it, and outputs at random, against the oracle."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from equality import near, respelt, text_of
from equality_oracle import OracleError, oracle, read_exactly
from stopping import Walker, special_vocabulary

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GuidedError, UnsatisfiableSpecError
from guided_plugin.plugins import Plugins
from guided_plugin.spec import OutputSpec

__all__ = [
    "COMPILER",
    "Finding",
    "Mode",
    "Outcome",
    "Subject",
    "check",
    "instance_in",
    "is_whole",
    "says_unsatisfiable",
]

BEGIN, END = "<f>", "</f>"
COMPILER = GrammarCompiler(
    special_vocabulary(padded=True),
    config=GuidedConfig(threads=1, cache_bytes=0, isolate_compiles=False),
    plugins=Plugins(entry_points=False),
)
_WALKER = Walker(COMPILER)
_STEPS, _FINISH = 60, 200
_NONE = object()


class Mode(NamedTuple):
    """How a schema is asked for."""

    strict: bool = False
    whitespace: str = "compact"
    tag: str = ""
    """`tag`, `triggered_tags`, `lark` (the schema inside a grammar), or empty for the schema itself."""
    backend: str = "auto"

    def __str__(self) -> str:
        return f"{'strict' if self.strict else 'standard'}, {self.whitespace}, {self.tag or 'no tag'}"

    def spec(self, schema: Any) -> OutputSpec:
        """What a request would ask for."""
        options: dict[str, Any] = {
            "strict": self.strict,
            "whitespace": self.whitespace,
            "backend": self.backend,
        }
        if not self.tag:
            return OutputSpec.json_schema(schema, **options)
        if self.tag == "lark":
            source = f'start: "{BEGIN}" inner "{END}"\ninner: %json {json.dumps(schema)}\n'
            return OutputSpec.grammar(source, "lark", **options)
        part: dict[str, Any] = {
            "type": "tag",
            "begin": BEGIN,
            "content": {"type": "json_schema", "json_schema": schema},
            "end": END,
        }
        if self.tag == "triggered_tags":
            part = {"type": self.tag, "triggers": [BEGIN], "tags": [part]}
        return OutputSpec.structural_tag({"type": "structural_tag", "format": part}, **options)

    def text(self, instance: str) -> str:
        """The whole output that holds the text of an instance."""
        return f"{BEGIN}{instance}{END}" if self.tag else instance


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Finding:
    """One text that a grammar treats wrongly."""

    kind: str
    """`wrong accept`, `wrong refusal`, `dead end`, `early stop`, `crash`, or `called unsatisfiable`."""
    text: str
    """A whole output; of a dead end or an early stop, what stands before it."""


@dataclass(slots=True)
class Outcome:
    """What became of one schema."""

    status: str = "checked"
    """`checked`, `refused`, `beyond the oracle` or `crash`."""
    reason: str = ""
    valid: int = 0
    invalid: int = 0
    walks: int = 0
    unfinished: int = 0
    findings: list[Finding] = field(default_factory=list)
    satisfiable: bool = False
    """Of a refused schema: whether an instance is valid."""


class Subject:
    """A schema compiled in one mode, and the oracle for it. Raises GuidedError and OracleError."""

    def __init__(self, schema: Any, mode: Mode) -> None:
        self.mode = mode
        self.valid = oracle(schema)
        self.grammar = COMPILER.compile(mode.spec(schema))
        owner = COMPILER.backend(self.grammar.backend)
        self._start = owner.start(self.grammar, COMPILER.vocabulary.stop_token_ids)

    def takes(self, text: str) -> bool:
        """Whether a whole output is accepted."""
        matcher = self._start.fork()
        return matcher.accept_text(text.encode()) and matcher.complete

    def stuck(self, text: bytes) -> bool:
        """Whether nothing is allowed after a text that is accepted."""
        return _WALKER.wander(self.grammar, Random(0), 0, begin=text.decode(errors="ignore")).stuck

    def wander(self, source: Random) -> Any:
        """One output at random."""
        begin = BEGIN if self.mode.tag == "triggered_tags" else ""
        whole = is_whole if self.mode.tag else _is_json
        return _WALKER.wander(self.grammar, source, _STEPS, whole, begin=begin, finish=_FINISH)

    def instance_in(self, output: str) -> str:
        """The text of the instance in a whole output: in its first tag, if it has tags."""
        return instance_in(output) if self.mode.tag else output

    def allows(self, instance: str) -> bool:
        """Whether each reading of a JSON text is valid: of two equal names, one or the other may count."""
        return self.valid(read_exactly(instance)) and self.valid(
            read_exactly(instance, object_pairs_hook=lambda pairs: dict(reversed(pairs)))
        )


def check(schema: Any, mode: Mode, source: Random, *, count: int = 60, walks: int = 3) -> Outcome:
    """Everything about one schema."""
    outcome = Outcome()
    try:
        try:
            subject = Subject(schema, mode)
        except GuidedError as error:
            outcome.status, outcome.reason = "refused", error.what
            valid = oracle(schema)
            found = next(
                (value for value in _near(schema, (), source, count) if _judged(valid, value)), _NONE
            )
            outcome.satisfiable = found is not _NONE
            if outcome.satisfiable and not mode.strict and says_unsatisfiable(error):
                outcome.findings.append(Finding("called unsatisfiable", mode.text(text_of(found))))
            return outcome
        outputs = [text for _ in range(walks) if (text := _walk(subject, source, outcome)) is not None]
        seeds = [json.loads(text) for text in outputs]
        _check_instances(subject, _near(schema, seeds, source, count), source, outcome)
    except OracleError as error:
        outcome.status, outcome.reason = "beyond the oracle", str(error)
    except GuidedError as error:
        outcome.findings.append(Finding("crash", str(error)))
    except Exception as error:
        outcome.status, outcome.reason = "crash", f"{type(error).__name__}: {error}"
        outcome.findings.append(Finding("crash", outcome.reason))
    return outcome


def says_unsatisfiable(error: GuidedError) -> bool:
    """Whether a refusal says that no value is valid, and not that something can't be enforced."""
    return isinstance(error, UnsatisfiableSpecError) or "allows nothing" in error.what


def _judged(valid: Any, value: Any) -> bool:
    try:
        return bool(valid(value))
    except OracleError:
        return False


def _near(schema: Any, seeds: Any, source: Random, count: int) -> Iterator[Any]:
    return near(schema, seeds, count=count + len(list(seeds)), seed=source.randrange(2**32))


def _walk(subject: Subject, source: Random, outcome: Outcome) -> str | None:
    """One output at random: the instance in it, if it ends and can be read."""
    walk = subject.wander(source)
    outcome.walks += 1
    text = walk.text.decode(errors="replace")
    if walk.stuck:
        outcome.findings.append(Finding("dead end", text))
        return None
    if walk.early or walk.leaks:
        outcome.findings.append(Finding("early stop", (walk.early + walk.leaks)[0]))
        return None
    if not walk.accepted:
        outcome.unfinished += 1
        return None
    instance = subject.instance_in(text)
    if subject.mode.whitespace == "compact" and re.search(r"\s", _STRING.sub("", instance)):
        outcome.findings.append(Finding("wrong accept", text))
    try:
        allowed = subject.allows(instance)
    except OracleError:
        return None
    if not allowed:
        outcome.findings.append(Finding("wrong accept", text))
    return instance


def _check_instances(subject: Subject, values: Iterator[Any], source: Random, outcome: Outcome) -> None:
    seen = set()
    for value in values:
        try:
            text = text_of(value)
            text.encode()
            spelt = _spelt(text, value, subject.mode, source)
            if text in seen or not (valid := [subject.allows(other) for other in spelt]):
                continue
        except (OverflowError, UnicodeEncodeError, RecursionError, OracleError):
            continue
        seen.add(text)
        outcome.valid += valid[0]
        outcome.invalid += not valid[0]
        for instance, allowed in zip(spelt, valid, strict=True):
            output = subject.mode.text(instance)
            taken = subject.takes(output)
            if taken and not allowed:
                outcome.findings.append(Finding("wrong accept", output))
            # Strict schemas are closed and ordered; other spellings are the grammar's own choice.
            elif allowed and not taken and instance is spelt[0] and not subject.mode.strict:
                outcome.findings.append(Finding("wrong refusal", output))


def _spelt(text: str, value: Any, mode: Mode, source: Random) -> list[str]:
    """A text and others of the same value: with whitespace, and with escapes and exponents now and then."""
    texts = [text]
    if mode.whitespace == "flexible":
        texts.append(json.dumps(value, indent=source.choice((None, 1)), ensure_ascii=source.random() < 0.5))
    if source.random() < 0.2:
        texts += respelt(value)
    return texts


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def is_whole(text: bytes) -> bool:
    """Whether each tag in a text is closed around JSON."""
    rest = text.decode(errors="replace")
    while BEGIN in rest:
        rest = rest.partition(BEGIN)[2].lstrip()
        try:
            _, end = json.JSONDecoder().raw_decode(rest)
        except (ValueError, RecursionError):
            return False
        rest = rest[end:].lstrip()
        if not rest.startswith(END):
            return False
        rest = rest[len(END) :]
    return True


def instance_in(text: str) -> str:
    """The JSON in the first tag of an output."""
    rest = text.partition(BEGIN)[2].lstrip()
    return rest[: json.JSONDecoder().raw_decode(rest)[1]]
