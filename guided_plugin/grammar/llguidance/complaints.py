"""llguidance's errors about a grammar, as errors of the package: which line, what is wrong, what to change.

Depends on errors. llguidance counts the lines of the text that it was given, in which a client's own grammar
may begin with the second.
"""

from __future__ import annotations

import re

from guided_plugin.errors import CompileLimitError, GrammarError, UnsatisfiableSpecError
from guided_plugin.grammar.llguidance.matcher import first_line

_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_REASON = re.compile(r"^error: (.+)$", re.MULTILINE)
_LIST = re.compile(r"; following (special tokens )?are available: .*")

_NOTHING = "allows no output at all"

_HINTS = (
    ("unknown name", "define it: a rule begins its line with `name:`, a terminal with `NAME:`"),
    ("unknown special token", "name a token that the model's vocabulary has, or write the text in quotes"),
    (
        "unknown common regex",
        "import common.INT, NUMBER, ESCAPED_STRING, WORD or WS, or write /regex/",
    ),
    ("no start rule", "the rule of the whole output is named `start`, as in `start: item+`"),
    ("invalid regex", "write the regex without it: grammars express regular languages only"),
    ("circular reference", "terminals can't refer to themselves: write it as a rule, in lower case"),
    ("duplicate rule", "keep one of the two, or join them with `|`"),
    ("range end", "write the smaller number first"),
    ("lexer error", "look for a quote, bracket or slash that is not closed, and for unknown directives"),
    ("expected token", "look for a bracket that is not closed, or an operator too many"),
    ("%regex", "write an object with substring_chunks, substring_words or substring_chars after %regex"),
    ("too many", "make the grammar smaller"),
    ("too large", "make the grammar smaller"),
    ("fuel", "make the grammar smaller, above all its repetitions and regexes"),
    ("limit", "make the grammar smaller, above all its repetitions and regexes"),
)


def complaint(message: str, kind: str, own_lines: int) -> GrammarError:
    """The error of a spec of some kind. `own_lines`: how many lines come before a client's grammar."""
    text = first_line(message)
    if "NoExtensionBias" in text:
        hint = "look for an endless recursion, an empty class, or parts that contradict each other"
        return UnsatisfiableSpecError(_NOTHING, where=kind, hint=hint)
    if text.startswith("panic"):
        what = "needs more symbols than the 65,525 of a grammar of llguidance" if "symbols" in text else text
        return CompileLimitError(
            what, where=kind, hint="make it smaller: fewer properties, rules or branches"
        )
    found = _PLACE.match(text)
    where = kind
    if found is not None:
        text = text[found.end() :]
        line = int(found[1]) - own_lines
        where = f"{kind}, line {line}, column {found[2]}" if line > 0 else kind
    reason = _REASON.search(message)
    if reason is not None:
        text = f"{text.removesuffix(' regex parse error:').removesuffix(':')}: {reason[1]}"
    text = _LIST.sub("", text)
    if "nsatisfiable" in text:
        hint = "change one of the parts that contradict each other"
        return UnsatisfiableSpecError(f"{_NOTHING}: {text}", where=where, hint=hint)
    lower = text.lower()
    hint = next((hint for part, hint in _HINTS if part in lower), "docs/specs.md has the syntax that is read")
    return GrammarError(text, where=where, hint=hint)
