"""Regular expressions as xgrammar reads them, against Python's `re` on random patterns."""

import json
import random
import re

import pytest
from random_patterns import TEXTS, random_pattern
from xgrammar_specs import accepts

from guided_plugin.errors import UnsupportedSpecError
from guided_plugin.spec import OutputSpec

SEEDS = 120


def takes(backend, spec):
    """A function that tells whether a text is a whole output."""
    grammar = backend.compile(spec)

    def take(text):
        matcher = backend.start(grammar, backend._vocabulary.stop_token_ids)
        return matcher.accept_text(text.encode()) and matcher.complete

    return take


def overlapping(chance):
    """Alternatives that begin alike, anchored on both sides: what merges states in one of the readers."""
    options = [random_pattern(chance, 2, False) for _ in range(chance.randint(2, 3))]
    return tuple(
        f"{start}(?:{'|'.join(side)}){end}"
        for side, start, end in zip(zip(*options, strict=True), ("^", r"\A"), ("$", r"\Z"), strict=True)
    )


@pytest.mark.parametrize("make", [lambda chance: random_pattern(chance, 3, False), overlapping])
def test_random_patterns_agree_with_re(byte_backend, make):
    compiled = 0
    for seed in range(SEEDS):
        chance = random.Random(seed)
        pattern, python = make(chance)
        try:
            quoted = takes(byte_backend, OutputSpec.json_schema({"type": "string", "pattern": pattern}))
            alone = takes(byte_backend, OutputSpec.regex(pattern))
        except UnsupportedSpecError:
            continue
        compiled += 1
        search, full = re.compile(python), re.compile(rf"\A(?:{python})\Z")
        for text in chance.sample(TEXTS, 20):
            found = search.search(text) is not None
            # A pattern that is costly to search for may be taken for the whole string.
            assert quoted(json.dumps(text)) <= found, (pattern, text)
            assert alone(text) == (full.search(text) is not None), (pattern, text)
    assert compiled > SEEDS // 2


@pytest.mark.parametrize("pattern", [".", "[^a]", r"\W", r"[\x80-\u{10ffff}]", r"\P{L}", "^(?:.|a)$"])
@pytest.mark.parametrize(
    "data", [b"\xe0\x84\xb5", b"\xf0\x89\x8c\xbe", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]
)
def test_bytes_that_are_no_utf_8(byte_backend, pattern, data):
    assert not accepts(
        byte_backend, OutputSpec.json_schema({"type": "string", "pattern": pattern}), b'"%b"' % data
    )
    assert not accepts(byte_backend, OutputSpec.regex(pattern), data)


@pytest.mark.parametrize(
    "text", ["\x80", "\u07ff", "\u0800", "\u0fff", "\ud7ff", "\ue000", "\uffff", "😀", "\U0010ffff"]
)
def test_the_ends_of_each_length_of_utf_8(byte_backend, text):
    assert accepts(byte_backend, OutputSpec.json_schema({"type": "string", "pattern": "^[^]$"}), f'"{text}"')
    assert accepts(byte_backend, OutputSpec.regex("[^]"), text)
