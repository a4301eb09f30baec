"""xgrammar's errors about a grammar or a tag, as errors of the package: where, what is wrong, what to change.

Depends on spec. xgrammar names no place in a tag: it is looked for by what the error says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from guided_plugin.errors import GrammarError
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.schema import crossed_bounds, pointer

_LOCATION = re.compile(r"^\[[\d:]+\] \S+?:\d+: (?:Check failed: \(.*?\) is false: (?=\S))?")
_EBNF = re.compile(r"^EBNF (?:parser|lexer) error at line (\d+), column (\d+): ")
_TAG = "Invalid structural tag error: "
_FIELD = re.compile(r"^(.+?) format must have an? (\w+) field")
_TYPE = re.compile(r"^Format type not recognized: (.+)$")

_HINTS = (
    ("root rule", 'the rule of the whole output is named `root`, as in root ::= "text"'),
    ("is not defined", "define it on a line of its own: name ::= ..."),
    ("string literal", "close the text with a double quote on the same line"),
    ("character class", "write the smaller character first, and close the class with ]"),
    ("trigger", "each tag begins with exactly one of the triggers"),
    ("at least one", "list at least one"),
    ("must have", "add the field"),
    ("not recognized", "docs/specs.md has the types of formats"),
    ("is greater than", "lower the minimum or raise the maximum"),
)
_OTHERS = {
    "grammar": "docs/specs.md has the syntax that is read",
    "structural_tag": "docs/specs.md has the forms of structural tags",
}

_Path = tuple[str | int, ...]


def complaint(message: str, spec: OutputSpec) -> GrammarError:
    """The error of a spec that xgrammar refuses."""
    lines = message.strip().splitlines()
    text = _LOCATION.sub("", lines[0]) if lines else "no reason given"
    where: str = spec.kind
    ebnf = _EBNF.match(text)
    text = (text[ebnf.end() :] if ebnf else text).removeprefix(_TAG)
    if spec.kind == "structural_tag":
        where = pointer(next(_places(text, ebnf is not None, spec.document()), ()))
    elif ebnf is not None:
        where = f"{spec.kind}, line {ebnf[1]}, column {ebnf[2]}"
    lower = text.lower()
    hint = next((hint for part, hint in _HINTS if part in lower), _OTHERS.get(spec.kind, ""))
    return GrammarError(text, where=where, hint=hint)


def _places(text: str, ebnf: bool, tag: Any) -> Iterator[_Path]:
    """The places in a tag that an error may be about."""
    field, unknown = _FIELD.match(text), _TYPE.match(text)
    for path, node in _objects(tag):
        kind = node.get("type")
        if ebnf:
            if kind == "grammar":
                yield (*path, "grammar")
        elif unknown:
            if kind == unknown[1]:
                yield (*path, "type")
        elif field:
            if _same(kind, field[1]) and field[2] not in node:
                yield path
        elif "trigger" in text.lower():
            if "triggers" in node:
                yield (*path, "triggers")
        elif "is greater than" in text:
            crossed = crossed_bounds(node)
            if crossed:
                yield (*path, crossed[0].split()[0])
        elif "Invalid format" in text and not kind and "format" not in node and "begin" not in node:
            yield path


def _objects(tag: Any) -> Iterator[tuple[_Path, Mapping[str, Any]]]:
    """Every object in a tag, from the outside inwards."""
    pending: list[tuple[_Path, Any]] = [((), tag)]
    for path, node in pending:
        if isinstance(node, list):
            pending.extend(((*path, index), part) for index, part in enumerate(node))
        elif isinstance(node, Mapping):
            yield path, node
            pending.extend(((*path, key), part) for key, part in node.items())


def _same(kind: Any, title: str) -> bool:
    """Whether a format's type is the one that an error names, as in "Triggered tags format"."""
    return isinstance(kind, str) and kind.replace("_", "") == re.sub(r"\W|_", "", title).lower()
