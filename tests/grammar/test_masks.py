"""Masks are exact: a token is allowed if, and only if, some whole output continues that
way.

The reference shares nothing with a grammar engine: each language is written down again
as a regular expression, and `regex` says whether a text is the beginning of a match.
"""

import numpy as np
import pytest
import regex
from compilers import tokens_of

from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec

STATES = 400
LONGEST = 8
"""Bytes of the texts whose masks are compared."""

TEXT = [character.encode() for character in 'abcxyz019-.,:[]{}" ntruels\\é']
TEXT += [
    b"ab",
    b"bc",
    b"abc",
    b"aa",
    b'{"',
    b'":',
    b'","',
    b"true",
    b"ru",
    b"]}",
    b"10",
]
TEXT += [b" a", b"yes", b"\xc3", b"\xa9", b"\xa9b", b'"\xc3']
# Control tokens and an unused id, then the stop tokens; control tokens spell text that
# the specs allow.
TOKENS = [*TEXT, b"a", b"true", b"", b"</s>", b"<end>"]
CONTROL = {len(TEXT), len(TEXT) + 1}
STOPS = (len(TOKENS) - 2, len(TOKENS) - 1)
VOCABULARY = Vocabulary.from_tokens(TOKENS, STOPS, CONTROL)

CHOICES = ["", "a", "ab", "abc", "abcabc", "true", "é", 'say "yes"', "x\\n"]
VALUES = ["ab", "é", 10, -1, True, None]
OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["é", "ab"]}},
    "required": ["a"],
}
ARRAY = {"type": "array", "items": {"enum": ["a", 10]}, "minItems": 1, "maxItems": 3}
EBNF = 'root ::= pair ("," pair)? | ""\npair ::= [a-b] ":" ("0" | "10")'
NEGATED = r'"[^a-zA-Z0-9"\\\s]?"'

LANGUAGES = [
    (OutputSpec.choice(CHOICES), r'(a|ab|abc|abcabc|true|é|say "yes"|x\\n)?'),
    (OutputSpec.regex("[ab]{1,3}c?"), "[ab]{1,3}c?"),
    (OutputSpec.regex("(a|bc)*x|0(1|10){0,2}y?"), "(a|bc)*x|0(1|10){0,2}y?"),
    (OutputSpec.regex(NEGATED), r'"([!#-/:-@[\]^_`{-~]|\xc3[\x80-\xbf])?"'),
    (OutputSpec.json_schema({"enum": VALUES}), '"ab"|"é"|10|-1|true|null'),
    (
        OutputSpec.json_schema(OBJECT, whitespace="compact"),
        r'\{"a":(true|false)(,"b":"(é|ab)")?\}',
    ),
    (
        OutputSpec.json_schema(ARRAY, whitespace="compact"),
        r'\[("a"|10)(,("a"|10)){0,2}\]',
    ),
    (
        OutputSpec.json_schema({"type": "integer", "minimum": -11, "maximum": 109}),
        "-([0-9]|1[01])|[0-9]|[1-9][0-9]|10[0-9]",
    ),
    (OutputSpec.grammar(EBNF), "([ab]:(0|10)(,[ab]:(0|10))?)?"),
    (OutputSpec.grammar('root ::= "a" | "[" root "]"'), r"(?P<r>a|\[(?&r)\])"),
]


@pytest.fixture(scope="module")
def backends():
    config = GuidedConfig(threads=2)
    return XGrammarBackend(VOCABULARY, config), LLGuidanceBackend(VOCABULARY, config)


@pytest.mark.parametrize(("spec", "pattern"), LANGUAGES)
def test_masks_equal_the_language(backends, spec, pattern):
    """Breadth first over token sequences, over every text that tokens can spell."""
    language = regex.compile(pattern.encode())
    backend = backends[spec.kind != "grammar"]
    start = backend.start(backend.compile(spec.settled(GuidedConfig())), STOPS)
    found = [(b"", start)]
    seen = {b""}
    mask = np.zeros((1, VOCABULARY.words), np.int32)
    for text, matcher in found:
        backend.batch([matcher]).fill(mask, [0])
        (allowed,) = tokens_of(mask)
        expected = [
            token
            for token, piece in enumerate(TEXT)
            if language.fullmatch(text + piece, partial=True)
        ]
        if language.fullmatch(text):
            expected += STOPS
        assert allowed == expected, text
        for token in allowed:
            longer = text + TOKENS[token]
            new = longer not in seen and len(longer) <= LONGEST
            if token in STOPS or not new or len(seen) == STATES:
                continue
            seen.add(longer)
            fork = matcher.fork()
            assert fork.accept(token)
            found.append((longer, fork))
    assert len(seen) > 5
