"""`explain_output`: where an output stands. Depends on the compiler."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.diagnose.position import Position, Refusal, bounds_of
from guided_plugin.grammar.base import Grammar
from guided_plugin.spec import OutputSpec, check_is_spec

_MANY_DIGITS = 12
"""Digits that are noted; few numbers that people write have as many. Chosen, not
measured."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where an output stands."""

    text: str
    """The part of the text that fits."""
    refused: Refusal | None
    """Where the text stops fitting, if it does; all else is told of the place
    before."""
    may_stop: bool
    """Whether the output may end here."""
    characters: tuple[str, ...]
    """What may come next; bytes beyond ASCII as `\\xc3`."""
    forced: str
    """What must come next, whatever a model prefers; empty where the backend can't
    tell."""
    ending: Ending
    """A short completion."""
    notes: tuple[str, ...]
    """What may explain an output that does not end."""
    bounds: dict[str, int]
    """What bounds JSON where its schema does not, by option."""

    @property
    def ok(self) -> bool:
        """Whether nothing was refused."""
        return self.refused is None

    def to_dict(self) -> dict[str, Any]:
        """With stable keys, for `--json`."""
        return {"ok": self.ok, **asdict(self)}


def explain_output(
    compiler: GrammarCompiler, spec: OutputSpec, text: str
) -> Explanation:
    """What may follow `text` in an output, or why it does not fit, and how the output
    could end.

    The text is matched exactly. It is the constrained part: a spec's `start_after` is
    ignored. Raises a GrammarError for a spec that does not compile.
    """
    check_is_spec(spec)
    spec = spec.settled(compiler.config)
    position = Position.start(compiler, spec)
    count = position.move(text)
    characters = position.characters()
    grammar = compiler.compile(spec)
    return Explanation(
        text=text[:count],
        refused=position.refusal(text, count) if count < len(text) else None,
        may_stop=position.may_stop,
        characters=tuple(characters),
        forced=_forced(position),
        ending=_ending(position, grammar, text[:count]),
        notes=tuple(_notes(spec, text[:count], characters)),
        bounds=bounds_of(grammar),
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """A short completion."""

    text: str | None
    """None: nothing was found."""
    why: str = ""
    """Why nothing was found."""


def _ending(position: Position, grammar: Grammar, text: str) -> Ending:
    find = getattr(position.backend, "ending", None)
    if find is None:
        return Ending(None, f"{grammar.backend} can't complete outputs")
    tokens = find(grammar, position.matcher, text.encode(errors="surrogatepass"))
    if tokens is None:
        return Ending(None, "nothing was found")
    written = b"".join(position.names.tokens[token] for token in tokens)
    return Ending(written.decode(errors="replace"))


def _forced(position: Position) -> str:
    """What must come next, where the matcher can tell."""
    matcher: Any = position.matcher
    if not getattr(matcher, "forces", False):
        return ""
    written: bytes = matcher.forced()
    return written.decode(errors="ignore")


def _notes(spec: OutputSpec, text: str, characters: list[str]) -> list[str]:
    notes = []
    digits = len(text) - len(text.rstrip("0123456789"))
    # a string may end with a quote, or takes other letters than an exponent's
    in_number = spec.is_json and not any(
        each == '"' or (each.isalpha() and each not in "eE") for each in characters
    )
    if (
        in_number
        and digits >= _MANY_DIGITS
        and not set("0123456789").isdisjoint(characters)
    ):
        notes.append(
            f"{digits} digits, and more are allowed: 'minimum' and 'maximum' bound those of an integer, "
            "'multipleOf' those of a fraction"
        )
    return notes
