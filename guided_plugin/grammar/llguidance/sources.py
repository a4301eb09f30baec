"""A spec as text for llguidance: always Lark; and llguidance's errors about such a
text.

JSON Schemas are lowered: llguidance's own reading of them means something else in too
many places (patterns, formats, numbers, the order of properties). Structural tags
become one grammar with their schemas. Depends on spec, lark, client and tags. Nothing
here compiles.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from guided_plugin.errors import (
    CompileLimitError,
    GrammarError,
    UnsatisfiableSpecError,
    UnsupportedSpecError,
)
from guided_plugin.grammar.llguidance.client import client_lark
from guided_plugin.grammar.llguidance.lark import HEADER, schema_to_lark
from guided_plugin.grammar.llguidance.lark.ends import nesting
from guided_plugin.grammar.llguidance.lark.expressions import (
    Expression,
    Known,
    Texts,
)
from guided_plugin.grammar.llguidance.lark.patterns import whole_text
from guided_plugin.grammar.llguidance.lark.rules import Grammar, LarkGrammar
from guided_plugin.grammar.llguidance.lark.strings import known_of
from guided_plugin.grammar.llguidance.lark.writer import written
from guided_plugin.grammar.llguidance.matcher import first_line
from guided_plugin.grammar.llguidance.tags import tag_to_lark
from guided_plugin.grammar.llguidance.tokenizer import Tokenizers
from guided_plugin.spec import OutputSpec
from guided_plugin.spec.languages import whole

MAX_DEPTH = 2_000
"""Rules and brackets that a grammar may nest. llguidance reads them recursively: with a
stack of 8 MiB, versions 1.7.6 and 1.9.1 end the process at 2,700 (measured with chains
of rules and of brackets)."""

_WHERE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_REASON = re.compile(r"^error: (.+)$", re.MULTILINE)
_LIST = re.compile(r"; following (special tokens )?are available: .*")

_HINTS = (
    (
        "unknown name",
        "define it: a rule begins its line with `name:`, a terminal with `NAME:`",
    ),
    (
        "unknown special token",
        "name a token that the model's vocabulary has, or write the text in quotes",
    ),
    (
        "unknown common regex",
        "import common.INT, NUMBER, ESCAPED_STRING, WORD or WS, or write /regex/",
    ),
    (
        "no start rule",
        "the rule of the whole output is named `start`, as in `start: item+`",
    ),
    (
        "invalid regex",
        "write the regex without it: grammars express regular languages only",
    ),
    (
        "circular reference",
        "terminals can't refer to themselves: write it as a rule, in lower case",
    ),
    ("duplicate rule", "keep one of the two, or join them with `|`"),
    ("range end", "write the smaller number first"),
    (
        "lexer error",
        "look for a quote, bracket or slash that is not closed, and for unknown directives",
    ),
    (
        "found '='",
        'rules are written `name: ...`; for an EBNF grammar (`name ::= ...`) say syntax="ebnf"',
    ),
    ("expected token", "look for a bracket that is not closed, or an extra operator"),
    (
        "%regex",
        "write an object with substring_chunks, substring_words or substring_chars after %regex",
    ),
    ("too many", "make the grammar smaller"),
    ("too large", "make the grammar smaller"),
    ("fuel", "make the grammar smaller, above all its repetitions and regexes"),
    ("limit", "make the grammar smaller, above all its repetitions and regexes"),
)


def lark_of(
    spec: OutputSpec,
    tokens: Tokenizers,
    unenforced: Collection[str] = (),
    *,
    marked: bool = False,
) -> LarkGrammar:
    """The grammar of a spec; raises a GrammarError where Lark doesn't express it.

    `tokens`: of the vocabulary, for the control tokens that tags and grammars name.
    `marked`: as the check that items are distinct needs it.
    """
    grammar = _written(spec, tokens, unenforced, marked)
    text = grammar.text
    # Each line and each bracket nests at most one deeper.
    depth = text.count("\n") + text.count("(") + text.count("[")
    if depth > MAX_DEPTH and grammar.rules is not None:
        depth = nesting(grammar.rules)
    if depth > MAX_DEPTH:
        raise CompileLimitError(
            f"nests {depth} rules in its grammar; llguidance supports at most {MAX_DEPTH}",
            where=spec.kind,
            hint="each optional property of an object is a rule in the one before: use fewer, or nest them"
            if spec.kind != "grammar"
            else "write fewer rules and brackets, each on its line",
        )
    return grammar


def _written(
    spec: OutputSpec, tokens: Tokenizers, unenforced: Collection[str], marked: bool
) -> LarkGrammar:
    match spec.kind:
        case "json_schema" | "json_object":
            return schema_to_lark(spec, unenforced, marked=marked)
        case "regex":
            expression = _regex(spec.text)
            return _terminal(spec, expression, known_of(whole(spec.text)))
        case "choice":
            texts = spec.document()
            most = max(len(each.encode()) for each in texts)
            known = Known(tuple(sorted(texts, key=len)), most)
            return _terminal(spec, Texts(tuple(texts)), known)
        case "structural_tag":
            return tag_to_lark(spec, tokens.controls, unenforced, marked=marked)
        case "grammar" if spec.syntax == "lark":
            return client_lark(spec, tokens)
    raise UnsupportedSpecError(
        "EBNF grammars are not supported by llguidance",
        where=spec.kind,
        hint="use the backend xgrammar, or write it as Lark",
    )


def _terminal(spec: OutputSpec, expression: Expression, known: Known) -> LarkGrammar:
    """A grammar of one terminal."""
    grammar = Grammar()
    return written(grammar, grammar.terminal(expression, known), HEADER, spec)


def _regex(source: str) -> Expression:
    try:
        return whole_text(source)
    except UnsupportedSpecError as error:
        raise UnsupportedSpecError(error.what, where="regex", hint=error.hint) from None


def too_entangled(spec: OutputSpec, reason: str) -> UnsupportedSpecError:
    """The refusal of a spec whose first mask takes more work than a mask may take."""
    return UnsupportedSpecError(
        f"patterns, formats and lengths of one text need too much work for a mask ({reason})",
        where=spec.kind,
        hint="use fewer of them for one text, shorter counted repetitions, or no lookahead",
    )


def complaint(message: str, kind: str, own_lines: int) -> GrammarError:
    """llguidance's error about a text, as one of the package: which line, what is
    wrong, what to change.

    `own_lines`: how many lines come before a client's grammar.
    """
    text = first_line(message)
    if "NoExtensionBias" in text:
        hint = "look for an endless recursion, an empty class, or parts that contradict each other"
        return UnsatisfiableSpecError("allows no output at all", where=kind, hint=hint)
    if text.startswith("panic"):
        what = (
            "needs more symbols than the 65,525 of a grammar of llguidance"
            if "symbols" in text
            else text
        )
        return CompileLimitError(
            what,
            where=kind,
            hint="make it smaller: fewer properties, rules or branches",
        )
    found = _WHERE.match(text)
    where = kind
    if found is not None:
        text = text[found.end() :]
        line = int(found[1]) - own_lines
        where = f"{kind}, line {line}, column {found[2]}" if line > 0 else kind
    reason = _REASON.search(message)
    if reason is not None:
        text = (
            f"{text.removesuffix(' regex parse error:').removesuffix(':')}: {reason[1]}"
        )
    text = _LIST.sub("", text)
    if "nsatisfiable" in text:
        hint = "change one of the parts that contradict each other"
        return UnsatisfiableSpecError(
            f"allows no output at all: {text}", where=where, hint=hint
        )
    lower = text.lower()
    hint = next(
        (hint for part, hint in _HINTS if part in lower),
        "docs/specs.md describes the syntax",
    )
    return GrammarError(text, where=where, hint=hint)
