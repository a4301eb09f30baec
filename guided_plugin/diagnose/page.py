"""A whole output as a page: each token by how many were allowed in its place. Self-contained HTML."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.diagnose.position import Names, Position
from guided_plugin.errors import VocabularyError
from guided_plugin.spec import OutputSpec

_SHADES = 6
"""Of tokens on the page: as many as eyes tell apart. Chosen, not measured."""


@dataclass(frozen=True, slots=True)
class Step:
    """One token of an output, and what was allowed in its place."""

    token: int
    text: str
    allowed: int
    """How many tokens, with those that end the output."""
    fits: bool
    """Whether the grammar takes it. What follows one that does not is not looked at: `allowed` is 0."""
    forced: bool
    """Whether no other text could have come, in whatever tokens."""


def steps_of(compiler: GrammarCompiler, spec: OutputSpec, tokens: Iterable[int]) -> list[Step]:
    """Each token of an output. Raises a GrammarError for a spec that does not compile."""
    position: Position | None = Position.start(compiler, spec)
    names = Names(compiler.vocabulary, spec.stop_token_ids or compiler.vocabulary.stop_token_ids)
    steps = []
    for token in tokens:
        count, ahead, forced = 0, None, False
        if position is not None:
            count = len(position.allowed()) + sum(map(position.allows, names.stops))
            ahead = position.moved(token) if position.allows(token) else None
            forced = ahead is not None and (position.forces(token) or count == 1)
        steps.append(Step(token, _text(names, token), count, ahead is not None, forced))
        position = ahead
    return steps


def tokens_of(compiler: GrammarCompiler, text: str) -> list[int]:
    """The tokens of a text; the name of a control token stands for it."""
    vocabulary = compiler.vocabulary
    if vocabulary.encode is None:
        raise VocabularyError("has no encoder for text", hint="give the tokens")
    names = Names(vocabulary, vocabulary.stop_token_ids)
    tokens: list[int] = []
    for piece in names.pieces(text):
        control = names.by_name.get(piece)
        tokens += [control] if control is not None else vocabulary.encode(piece)
    return tokens


def picture(steps: list[Step], spec: OutputSpec, vocabulary_size: int) -> str:
    """The page. Everything that a client or a model wrote is escaped."""
    forced = sum(step.forced for step in steps)
    fit = sum(step.fits for step in steps)
    legend = "".join(
        f'<span class="shade" style="--shade: {shade}">{"&le;" if shade else ""}{most}</span> '
        for shade in range(_SHADES)
        for most in [math.ceil(math.pow(vocabulary_size, shade / (_SHADES - 1)))]
    )
    body = "".join(_span(step, vocabulary_size) for step in steps)
    counts = f"{len(steps)} tokens, {forced} forced"
    if fit < len(steps):
        counts += f"; the grammar refuses token {fit}, the rest was not looked at"
    return _PAGE.format(style=_STYLE, spec=escape(spec.summary()), counts=counts, legend=legend, body=body)


def _span(step: Step, size: int) -> str:
    shade = 0
    if not step.fits:
        kind, told = "refused", f"refused, {step.allowed} allowed" if step.allowed else "not looked at"
    elif step.forced:
        kind, told = "shade forced", f"forced, {step.allowed} allowed"
    else:
        kind, told = "shade", f"{step.allowed} allowed"
        if step.allowed > 1:  # by the logarithm, up to all of them
            share = math.log(step.allowed) / math.log(max(size, 3))
            shade = min(_SHADES - 1, 1 + int(share * (_SHADES - 1)))
    title = f"token {step.token}: {told}"
    return f'<span class="{kind}" title="{title}" style="--shade: {shade}">{_shown(step.text)}</span>'


def _shown(text: str) -> str:
    """Escaped, with marks for line ends, and no character that changes the page's direction."""
    safe = "".join(each if each.isprintable() else _mark(each) for each in text)
    return escape(safe).replace("\n", "&#8629;\n")


def _mark(character: str) -> str:
    return character if character in "\n\t" else repr(character)[1:-1]


def _text(names: Names, token: int) -> str:
    if not 0 <= token < len(names.tokens):
        return f"<token {token}>"
    return names.tokens[token].decode(errors="backslashreplace") or f"<token {token}>"


_STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --page: #ffffff; --bad: #c62828;
  --hue: 210 80%; --from: 97%; --by: -6.5%; }
body { color: var(--ink); background: var(--page); font: 15px/1.6 system-ui, sans-serif; margin: 2rem; }
pre { font: 14px/1.9 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
code { overflow-wrap: anywhere; }
pre span, p span { border-radius: 3px; padding: 1px 1px; margin-right: 1px; }
.shade { background: hsl(var(--hue) calc(var(--from) + var(--by) * var(--shade))); }
.forced { border-bottom: 2px dotted currentColor; }
.refused { color: #ffffff; background: var(--bad); }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --page: #161616; --bad: #b71c1c;
    --hue: 210 60%; --from: 12%; --by: 6%; }
}
"""

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>guided output</title><style>{style}</style></head>
<body><h1>Guided output</h1>
<p><code>{spec}</code></p>
<p>{counts}. Shade: how many tokens were allowed in the place of each. {legend}
<span class="forced">forced</span> <span class="refused">refused</span></p>
<pre>{body}</pre></body></html>
"""
