"""Patterns as regular expressions over JSON literals, against the oracle on texts made
to nearly fit."""

import json
import random
import re
import time

import pytest
from compilers import compiler_of, start, taken_of, takes
from instances import near
from llguidance_specs import END, VOCABULARY, terminal_takes
from oracle import oracle

from guided_plugin import OutputSpec
from guided_plugin.grammar.llguidance.lark import patterns, schema_to_lark
from guided_plugin.spec import ecma, languages

COMPILER = compiler_of(VOCABULARY)
PATTERNS = r"""
    a ^a a$ ^a$ ^$ $ ^ a|b ^a|b$ (^a|b$) (?:^|x)y (a|)b?$ ^(a$|b) a* ^a*$ ^(ab)+$
    ^\+?[0-9\x20()-]{7,}$ ^a{2}$ ^a{2,}$ ^a{1,3}b?$ ^(a{1,2}){2}$ x{ x{} x{a} a] ^a+?b*?$
    . ^.$ ^.*$ ^.+x.*$ ^[^a]*$ [^a-c] ^[a-cx-z]$ ^[-a]$ ^[a-]$ ^[^]$
    \d ^\d+\.\d{2}$ ^\w+$ ^\W$ ^\s*$ ^\S+$ ^\D$ ^[\d_]+$ ^[^\d]$ ^[\W]$ ^[\w.-]+@[\w-]+$
    ^"[^"]*"$ ^\\ ^[\\\"]$ \/ ^\t\n\r$ ^[\t-\r]$ ^\x41B$ ^\u0061\u00e9$ ^\u{1F600}$
    ^\0$ ^é+$ ^[à-ü]$ ^😀?$ ^(?!a) ^(?!ab$)[ab]+$ ^(?=.*b)[ab]+$ ^(?=a)(?!ab)
    ^(?<n>a)(?:b)$ (?P<n>a) ^(?:a|ab)(?:c|bc)$ ^[&~|]$ ^[a&&b]$ ^[[]$ ^[a^]$ ^\$\^$
    ^[$^.]$ ^-?\d+$ ^[A-Z]{3}-\d{4}$ ^(https?):// ^#[0-9a-fA-F]{6}$ (a|b)*c"""
CHARACTERS = [*'abcxA09_- \t\n\r\x00\x1f"\\/é😀\u2028\xa0\x7f^$[]&|~.@\ufeff٣}{']


def texts(pattern, count=250):
    """Texts that a pattern may match, edits of them, and short texts of awkward
    characters."""
    chance = random.Random(pattern)
    values = near({"type": "string", "pattern": pattern}, ["", "ab"], count=count)
    made = [value for value in values if isinstance(value, str)]
    lengths = [chance.randint(1, 5) for _ in range(count)]
    made += ["".join(chance.choices(CHARACTERS, k=length)) for length in lengths]
    # No token holds a lone surrogate.
    made = dict.fromkeys([*made, *CHARACTERS])
    return [text for text in made if not re.search("[\ud800-\udfff]", text)]


def quoted(text):
    return json.dumps(text, ensure_ascii=False)


@pytest.mark.parametrize("pattern", ["", *PATTERNS.split()])
def test_literals_and_texts_agree_with_the_oracle(pattern):
    expected = oracle({"pattern": pattern})
    terminal = patterns.pattern(pattern)
    verdicts = set()
    for text in texts(pattern):
        matches = expected(text)
        verdicts.add(matches)
        assert patterns.matches(pattern, text) == matches, text
        assert terminal_takes(terminal, quoted(text)) == matches, text
    assert True in verdicts
    node = ecma.parse(pattern)
    if not re.search("Anchor|Look", repr(node)):
        assert languages.nullable(node) == expected("")


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\ud83d\ude00$", "😀", "a"),
        ("a(?=b)", "ab", "ac"),
        # nothing is in an empty class
        ("[]|^b$", "b", ""),
        ("x[]+y|^b$", "b", "xy"),
        (r"[^\s\S]|^b$", "b", "a"),
        ("\ud800|^b$", "b", "a"),
        ("(?:a[]|[])b|^b$", "b", "ab"),
    ],
)
def test_what_the_standard_has_and_the_oracle_reads_otherwise(pattern, good, bad):
    for text in (good, bad):
        assert patterns.matches(pattern, text) == (text == good)
        terminal = patterns.pattern(pattern)
        assert terminal_takes(terminal, quoted(text)) == (text == good)


def is_text(text):
    """Whether it is a string of JSON that can be written in UTF-8."""
    try:
        return not re.search("[\ud800-\udfff]", json.loads(text))
    except ValueError:
        return False


def test_free_strings_take_what_json_reads_in_every_spelling():
    chance = random.Random(0)
    codes = [*range(0, 0x10000, 37), *range(0xD7F0, 0xE010)]
    texts = [f"\\u{code:04x}" for code in codes]
    texts += [f"\\u{code:04X}" for code in codes]
    pieces = [r"\ud83d", r"\uDE00", r"\u00e9", *"\\/ud0é\"n\x1f😀'"]
    lengths = [chance.randint(1, 4) for _ in range(5_000)]
    texts += ["".join(chance.choices(pieces, k=length)) for length in lengths]
    spelt = [f'"{text}"' for text in texts]
    legal = list(filter(is_text, spelt))
    assert (
        taken_of(COMPILER, OutputSpec.json_schema({"type": "string"}), spelt) == legal
    )
    assert len(legal) > 1000


def test_an_escape_counts_as_one_character():
    spec = OutputSpec.json_schema({"type": "string", "minLength": 2, "maxLength": 3})
    right = [r"\u0041\/", r"\ud83d\ude00\uD83D\uDE00", r"a\u00e9\n", "é😀/"]
    wrong = [r"\u0041", r"\ud83d\ude00", r"\ud83da", r"\/\/\/\/"]
    wrong += [r"\u00e9\u00e9\u00e9\ud83d\ude00"]
    texts = [f'"{text}"' for text in right + wrong]
    assert taken_of(COMPILER, spec, texts) == texts[: len(right)]


SPECIAL = [*map(chr, range(256)), *"\ud7ff\ue000\ufdd0\ufeff\uffff\u2028\u2029😀"]
SPECIAL += ["\U00010000", "\U000e0001", "\U0010ffff"]
CLASS = "".join(f"\\u{{{ord(char):x}}}" for char in SPECIAL)
CONSTANTS = [{"type": "const_string", "value": char} for char in SPECIAL]


def member(char):
    return f"{{{quoted(char)}:0}}"


NAMES = {"properties": {char: {} for char in SPECIAL}}
TAG = {"type": "or", "elements": CONSTANTS}
ALL = [
    (OutputSpec.json_schema({"enum": SPECIAL}), quoted),
    (OutputSpec.json_schema(NAMES), member),
    (OutputSpec.choice(SPECIAL), str),
    (OutputSpec.regex(f"[{CLASS}]"), str),
    (OutputSpec.regex("|".join(map(re.escape, SPECIAL))), str),
    (OutputSpec.structural_tag({"format": TAG}), str),
]


@pytest.mark.parametrize(("spec", "write"), ALL)
def test_every_character_can_be_written_where_a_spec_names_it(spec, write):
    grammar = COMPILER.compile(spec)
    for char in SPECIAL:
        matcher = start(COMPILER, grammar)
        assert matcher.accept_text(write(char).encode()), ascii(char)
        assert matcher.accept(END), ascii(char)


@pytest.mark.parametrize("char", ["\x0b", "\x0e", "\x1a", "\x1f"])
def test_a_name_that_is_described_has_no_second_spelling(char):
    patterns_of = {f"^{char}a$": {"type": "null"}}
    schema = {"properties": {char: False}, "patternProperties": patterns_of}
    schema |= {"type": "object", "additionalProperties": True}
    spec = OutputSpec.json_schema(schema, strict=False)
    lower = f"\\u{ord(char):04x}"
    upper = f"\\u{ord(char):04X}"
    for wrong in (f'"{lower}":1', f'"{lower}a":1', f'"{upper}":1', f'"{upper}a":1'):
        assert not takes(COMPILER, spec, f"{{{wrong}}}")
    assert takes(COMPILER, spec, f'{{"{lower}a":null}}')


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|aa|a*)*$", "^(?=(a+)+$)", "(.*)*(.*)*(.*)*b"]
)
def test_names_and_values_are_compared_with_patterns_in_linear_time(pattern):
    text = "a" * 20_000 + "!"
    begin = time.process_time()
    assert not patterns.matches(pattern, text)
    assert time.process_time() - begin < 2
    schema = {"properties": {text: True}, "required": [text]}
    schema["patternProperties"] = {pattern: {"type": "null"}}
    schema_to_lark(OutputSpec.json_schema(schema, strict=False))
    assert not patterns.matches_format("hostname", "abcd." * 2_000 + "!")


@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
def test_whitespace_between_parts_is_none_of_a_text(whitespace):
    """Nor where the mask of a text is cheap because it leads to a token that is never
    sampled."""
    schema = {"pattern": ".*(?:[ab]{0,2})?$", "type": "string"}
    spec = OutputSpec.json_schema(schema, whitespace=whitespace)
    matcher = start(COMPILER, spec)
    assert [matcher.accept(byte) for byte in b'":\t'] == [True, True, False]
