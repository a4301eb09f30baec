"""`explain_output`: where an output stands. Depends on the compiler."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.diagnose.position import Position, Refusal, bounds_of
from guided_plugin.grammar.base import Grammar
from guided_plugin.spec import OutputSpec, check_is_spec


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of an output."""

    text: str
    """The part of the text that fits."""
    refused: Refusal | None
    """The place where the text stops fitting, if it does; all else is told of the place
    before."""
    may_stop: bool
    """True if the output may end here."""
    characters: tuple[str, ...]
    """The characters that may come next; bytes beyond ASCII as `\\xc3`."""
    forced: str
    """The text that must come next, whatever a model prefers; empty where the backend
    can't tell."""
    ending: Ending
    """A short completion."""
    bounds: dict[str, int]
    """The bounds of JSON where its schema has none, by option."""

    @property
    def ok(self) -> bool:
        """True if nothing was refused."""
        return self.refused is None

    def to_dict(self) -> dict[str, Any]:
        """With stable keys, for `--json`."""
        return {"ok": self.ok, **asdict(self)}


def explain_output(
    compiler: GrammarCompiler, spec: OutputSpec, text: str
) -> Explanation:
    """Return what may follow `text` in an output, or why it does not fit, and how the
    output could end.

    The text is matched exactly. It is the constrained part: a spec's `start_after` is
    ignored. Raises a GrammarError for a spec that does not compile.
    """
    check_is_spec(spec)
    spec = spec.settled(compiler.config)
    position = Position.start(compiler, spec)
    count = position.move(text)
    grammar = compiler.compile(spec)
    return Explanation(
        text=text[:count],
        refused=position.refusal(text, count) if count < len(text) else None,
        may_stop=position.may_stop,
        characters=tuple(position.characters()),
        forced=_forced(position),
        ending=_ending(position, grammar, text[:count]),
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
    """Return the text that must come next, where the matcher can tell."""
    matcher: Any = position.matcher
    if not getattr(matcher, "forces", False):
        return ""
    written: bytes = matcher.forced()
    return written.decode(errors="ignore")
