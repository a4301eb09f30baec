"""`explain --html`: one page with a spec, an output and what could stand at each place
of it.

The page runs and fetches nothing: it has no script and no link, forbids both by its
policy, and escapes all that a client wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate

from guided_plugin.compiling.compiler import GrammarCompiler
from guided_plugin.diagnose.explain import Explanation, must_follow
from guided_plugin.diagnose.position import Position, ranges
from guided_plugin.spec import OutputSpec

_KINDS = ("free", "forced")
_MOST_CHARACTERS = 20_000
"""Of an output that are looked at, each with a mask or two. Chosen, not measured."""


_Rows = Iterable[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of an output in which each place is alike."""

    text: str
    forced: bool
    """Whether nothing else could stand there."""
    expected: str
    """What could stand at each of its places."""


def stretches(compiler: GrammarCompiler, spec: OutputSpec, text: str) -> list[Stretch]:
    """An output that fits, cut where it is forced, and where what else it could have
    been changes."""
    spec = spec.settled(compiler.config)
    position = Position.start(compiler, spec)
    found = list[Stretch]()
    for piece in position.names.pieces(text):
        token = position.names.by_name.get(piece)
        at = 0
        control = token is not None and position.allows(token)
        while at < len(piece):
            must = must_follow(position)[: len(piece) - at]
            here = piece if control else must or piece[at]
            forced = (
                position.allowed() == [token] and not position.may_stop
                if control
                else bool(must)
            )
            stretch = Stretch(here, forced, here if forced else _expected(position))
            if position.move(here) < len(here):
                return found
            at += len(here)
            if (
                found
                and not forced
                and replace(stretch, text=found[-1].text) == found[-1]
            ):
                stretch = replace(stretch, text=found.pop().text + here)
            found.append(stretch)
    return found


def _expected(position: Position) -> str:
    characters = position.characters()
    controls = filter(position.allows, position.names.controls)
    found = [ranges(characters)] * bool(characters) + [
        *map(position.names.render, controls)
    ]
    return ", ".join(found) + " or the end" * position.may_stop


def page(
    compiler: GrammarCompiler,
    spec: OutputSpec,
    text: str,
    found: Explanation,
    facts: _Rows,
) -> str:
    """The page of an explained text. `facts`: what is told of its end, each with its
    name."""
    read = found.text[:_MOST_CHARACTERS]
    parts = stretches(compiler, spec, read)
    spans = [
        _span(_KINDS[one.forced], one.text, f"expected: {one.expected}")
        for one in parts
    ]
    spans.append(
        _span("rest", found.text[len(read) :], "not checked: the text is long")
    )
    if found.refused is not None:
        at = found.refused.position
        spans.append(_span("refused", text[at], found.refused.reason))
        spans.append(_span("rest", text[at + 1 :], "after the refused character"))
    elif found.forced:
        spans.append(_span("forced next", found.forced, "must come next"))
    starts = accumulate((len(one.text) for one in parts), initial=0)
    places = (
        (str(at), one.text, one.expected)
        for at, one in zip(starts, parts, strict=False)
    )
    sections = [f"<pre>{''.join(spans)}</pre>", f"<p>{_LEGEND}</p>"]
    summary = "Each place: its first character, its text, what could stand there"
    sections.append(f"<details><summary>{summary}</summary>{_table(places)}</details>")
    if found.jump is not None:
        pieces = (_span(_KINDS[own], written) for written, own in found.jump.pieces)
        passes = f"{found.jump.forwards} forward passes for {found.jump.tokens} tokens"
        sections.append(
            f"<h2>With jump_forward: {passes}</h2><pre>{''.join(pieces)}</pre>"
        )
        sections.append(
            "<p>Text marked as forced takes no forward pass of its own.</p>"
        )
    sections.append(f"<h2>At the end of the text</h2>{_table(facts)}")
    sections.append(
        f"<h2>The spec: {_safe(spec.kind)}</h2><pre>{_safe(_pretty(spec.text))}</pre>"
    )
    return f"{_HEAD}<h1>Where an output stands</h1>{''.join(sections)}</main></body></html>\n"


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _safe(text: str) -> str:
    """Text that stays text: escaped, and without characters that can't be seen or turn
    its direction."""
    return escape(
        "".join(
            one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text
        )
    )


def _span(kind: str, text: str, title: str = "") -> str:
    about = f' title="{_safe(title)}" tabindex="0"' if title else ""
    return f'<span class="{kind}"{about}>{_safe(text)}</span>' if text else ""


def _table(rows: _Rows) -> str:
    lines = ("".join(f"<td>{_safe(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


_LEGEND = (
    '<span class="forced">forced</span>: nothing else could stand there. <span class="free">free</span>: it '
    'could have been something else. <span class="refused">refused</span>. Point at a part to see what could '
    "stand there."
)
_HEAD = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Where an output stands</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif;
  --back: #f3f3f1; --forced: #5b6b7d; --refused: #b00020 }
@media (prefers-color-scheme: dark) { :root { --back: #2b2d33; --forced: #93a4b8; --refused: #ff8a80 } }
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
pre { background: var(--back); padding: 1rem; border-radius: .5rem }
pre, td { white-space: pre-wrap; overflow-wrap: anywhere }
span:focus, pre span[title]:hover { outline: 2px solid }
.free { font-weight: bold } .forced { color: var(--forced) } .next { font-style: italic }
.rest { opacity: .7 }
.refused { color: var(--refused); text-decoration: underline wavy; font-weight: bold }
table { border-collapse: collapse }
td { padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top }
td:first-child { white-space: nowrap }
</style></head><body><main>"""
