"""Masks are exact: a token is allowed if, and only if, some whole output continues that
way.

The reference shares nothing with a grammar engine: it holds the whole language as a set
of texts, or decides with Python's `re` over every text up to a length, and looks for
members with the right prefix.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import deque

import numpy as np
import pytest

from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.base import Backend, Matcher
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec

STATES = 400
LONGEST = 8
"""Bytes of the texts whose masks are compared."""
FAR = 13
"""How many repetitions stand for an infinite language: what LONGEST bytes and one token
can't outrun."""

CHARACTERS = [character.encode() for character in 'abcxyz019-.,:[]{}" ntruels\\']
SEVERAL = [
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
    b" a",
    b"yes",
]
PARTS_OF_CHARACTERS = [b"\xc3", b"\xa9", "é".encode(), b"\xa9b", b'"\xc3']
TEXT = [*CHARACTERS, *SEVERAL, *PARTS_OF_CHARACTERS]
# Control tokens and an unused id, then the stop tokens; control tokens spell text that
# the specs allow.
TOKENS = [*TEXT, b"a", b"true", b"", b"</s>", b"<end>"]
CONTROL = {len(TEXT), len(TEXT) + 1}
STOPS = (len(TOKENS) - 2, len(TOKENS) - 1)
VOCABULARY = Vocabulary.from_tokens(TOKENS, STOPS, CONTROL)


@pytest.fixture(scope="module")
def backends() -> dict[str, Backend]:
    """By kinds of specs."""
    config = GuidedConfig(threads=2)
    others = LLGuidanceBackend(VOCABULARY, config)
    made: dict[str, Backend] = dict.fromkeys(("choice", "regex", "json_schema"), others)
    return made | {"grammar": XGrammarBackend(VOCABULARY, config)}


def compact(*values: object) -> set[str]:
    return {
        json.dumps(value, separators=(",", ":"), ensure_ascii=False) for value in values
    }


def matching(pattern: str, alphabet: str, longest: int) -> set[str]:
    """Every text over an alphabet, up to a length, that Python's `re` matches from end
    to end."""
    texts = (
        "".join(letters)
        for length in range(longest + 1)
        for letters in itertools.product(alphabet, repeat=length)
    )
    return {text for text in texts if re.fullmatch(pattern, text)}


def objects() -> set[str]:
    found = set()
    for required in (True, False):
        for optional in (None, "é", "ab"):
            members = (
                {"a": required} if optional is None else {"a": required, "b": optional}
            )
            found |= compact(members)
    return found


def balanced(depth: int) -> set[str]:
    """`a` in up to so many brackets."""
    return {"[" * level + "a" + "]" * level for level in range(depth + 1)}


LANGUAGES: dict[str, tuple[OutputSpec, set[str]]] = {
    "choice": (
        OutputSpec.choice(["", "a", "ab", "abc", "abcabc", "true", "é", 'say "yes"', "x\\n"]),
        {"", "a", "ab", "abc", "abcabc", "true", "é", 'say "yes"', "x\\n"},
    ),
    "regex": (OutputSpec.regex("[ab]{1,3}c?"), matching("[ab]{1,3}c?", "abc", 5)),
    "regex with alternatives": (
        OutputSpec.regex("(a|bc)*x|0(1|10){0,2}y?"),
        {"".join(parts) + "x" for n in range(FAR) for parts in itertools.product(["a", "bc"], repeat=n)}
        | matching("0(1|10){0,2}y?", "01y", 6),
    ),
    "regex with a negated class": (
        OutputSpec.regex('"[^a-zA-Z0-9"\\\\\\s]?"'),
        {'""'} | {f'"{character}"' for character in map(chr, range(0x21, 0x250))
                  if re.fullmatch(r'[^a-zA-Z0-9"\\\s]', character)},
    ),
    "enum": (
        OutputSpec.json_schema({"enum": ["ab", "é", 10, -1, True, None]}),
        compact("ab", "é", 10, -1, True, None),
    ),
    "object": (
        OutputSpec.json_schema(
            {
                "type": "object",
                "properties": {"a": {"type": "boolean"}, "b": {"enum": ["é", "ab"]}},
                "required": ["a"],
            },
            whitespace="compact",
        ),
        objects(),
    ),
    "array": (
        OutputSpec.json_schema(
            {"type": "array", "items": {"enum": ["a", 10]}, "minItems": 1, "maxItems": 3},
            whitespace="compact",
        ),
        compact(*(list(items) for n in (1, 2, 3) for items in itertools.product(["a", 10], repeat=n))),
    ),
    "integer range": (
        OutputSpec.json_schema({"type": "integer", "minimum": -11, "maximum": 109}),
        compact(*range(-11, 110)) | {"-0"},
    ),
    "ebnf": (
        OutputSpec.grammar('root ::= pair ("," pair)? | ""\npair ::= [a-b] ":" ("0" | "10")'),
        {""}
        | {
            ",".join(pairs)
            for n in (1, 2)
            for pairs in itertools.product([f"{k}:{v}" for k in "ab" for v in ("0", "10")], repeat=n)
        },
    ),
    "recursive ebnf": (OutputSpec.grammar('root ::= "a" | "[" root "]"'), balanced(FAR)),
}  # fmt: skip


class Reference:
    """What is allowed after some text, by looking at every member of the language."""

    def __init__(self, texts: set[str]) -> None:
        self._members = {text.encode() for text in texts}
        self._prefixes = {
            member[:end] for member in self._members for end in range(len(member) + 1)
        }

    def allowed(self, text: bytes) -> set[int]:
        found = {
            token for token, piece in enumerate(TEXT) if text + piece in self._prefixes
        }
        return found | set(STOPS) if text in self._members else found


def bits(backend: Backend, matchers: list[Matcher]) -> list[set[int]]:
    """The set bits of each row, those beyond the vocabulary too, from one batch
    call."""
    mask = np.full((len(matchers), VOCABULARY.words), -1, np.int32)
    backend.batch(matchers).fill(mask, list(range(len(matchers))))
    rows = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in rows]


def test_the_vocabulary_has_room_for_mistakes():
    assert VOCABULARY.size % 32
    assert len(set(TEXT)) == len(TEXT)


@pytest.mark.parametrize(("spec", "texts"), LANGUAGES.values(), ids=LANGUAGES)
def test_masks_equal_the_language(backends, spec, texts):
    """Breadth first over token sequences, over every text that tokens can spell."""
    reference = Reference(texts)
    backend = backends[spec.kind]
    start = backend.start(backend.compile(spec), STOPS)
    level: list[tuple[bytes, Matcher]] = [(b"", start)]
    seen = {b""}
    while level and len(seen) < STATES:
        following: deque[tuple[bytes, Matcher]] = deque()
        for (text, matcher), found in zip(
            level, bits(backend, [m for _, m in level]), strict=True
        ):
            assert found == reference.allowed(text), text
            for token in sorted(found - set(STOPS)):
                longer = text + TOKENS[token]
                if longer in seen or len(longer) > LONGEST:
                    continue
                seen.add(longer)
                fork = matcher.fork()
                assert fork.accept(token)
                following.append((longer, fork))
        level = list(following)
    assert len(seen) > 5
