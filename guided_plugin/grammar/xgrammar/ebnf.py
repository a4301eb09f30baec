"""EBNF grammars as xgrammar reads them. Depends on nothing.

llama.cpp's dialect has empty alternatives, and a dot for any character.
"""

from __future__ import annotations

import re

_PIECE = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*) | (?P<head>[\w.-]+\s*::=) | (?P<word>[\w.-]+) | (?P<branch>\|) | (?P<open>\()
    | (?P<close>\)) | (?P<other>"(?:\\.|[^"\\\n])*" | \[(?:\\.|[^\]\\\n])*\] | \{[^}]*\} | .)""",
    re.VERBOSE | re.DOTALL,
)
_ANY_CHARACTER = r"[\0-\U0010ffff]"


def readable_ebnf(source: str) -> str:
    """The grammar with `""` for an empty alternative, and a class for a dot."""
    parts: list[str] = []
    before, last = "", 0
    for found in [*_PIECE.finditer(source), None]:
        kind, text = (str(found.lastgroup), found[0]) if found is not None else ("head", "")
        if kind != "skip":
            # An alternative begins after these, and ends before those.
            if before in ("head", "branch", "open") and kind in ("head", "branch", "close"):
                parts[last] += ' ""'
            before, last = kind, len(parts)
        parts.append(_ANY_CHARACTER if kind == "word" and text == "." else text)
    return "".join(parts)
