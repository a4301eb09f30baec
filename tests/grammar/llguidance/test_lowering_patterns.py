"""Patterns as regular expressions over JSON literals, against the oracle on texts made
to nearly fit."""

import json
import random
import re
import time

import pytest
from instances import near
from llguidance_specs import END, takes, terminal_takes
from oracle import oracle

from guided_plugin import OutputSpec
from guided_plugin.grammar.llguidance.lark import patterns, schema_to_lark
from guided_plugin.spec import ecma, languages

PATTERNS = r"""
    a ^a a$ ^a$ ^$ $ ^ a|b ^a|b$ (^a|b$) (?:^|x)y (a|)b?$ ^(a$|b) a* ^a*$ ^(ab)+$
    ^\+?[0-9\x20()-]{7,}$ ^a{2}$ ^a{2,}$ ^a{1,3}b?$ ^(a{1,2}){2}$ x{ x{} x{a} a] ^a+?b*?$
    . ^.$ ^.*$ ^.+x.*$ ^[^a]*$ [^a-c] ^[a-cx-z]$ ^[-a]$ ^[a-]$ ^[^]$
    \d ^\d+\.\d{2}$ ^\w+$ ^\W$ ^\s*$ ^\S+$ ^\D$ ^[\d_]+$ ^[^\d]$ ^[\W]$ ^[\w.-]+@[\w-]+$
    ^"[^"]*"$ ^\\ ^[\\\"]$ \/ ^\t\n\r$ ^[\t-\r]$ ^\x41B$ ^\u0061\u00e9$ ^\u{1F600}$ ^\cJ$
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
        (r"^\p{L}+$", "aé", "1"),
        (r"^\P{L}$", "1", "a"),
        (r"^[\p{Lu}\d]+$", "A1", "a"),
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


def compiled(body):
    """Rust's syntax in Python's: code points in braces."""
    braces = re.compile(r"\\x\{([0-9A-F]+)\}")
    source = braces.sub(lambda found: f"\\U{int(found[1], 16):08x}", body)
    return re.compile(source, re.DOTALL)


def test_free_strings_take_what_json_reads_in_every_spelling():
    body = compiled(patterns.ANY_SPELLING + "*")
    for code in range(0x10000):
        text = f"\\u{code:04x}" if code % 2 else f"\\u{code:04X}"
        assert bool(body.fullmatch(text)) == (not 0xD800 <= code < 0xE000), text
    chance = random.Random(0)
    pieces = [r"\ud83d", r"\uDE00", r"\u00e9", *"\\/ud0é\"n\x1f😀'"]
    verdicts = set()
    for _ in range(20_000):
        text = "".join(chance.choices(pieces, k=chance.randint(1, 4)))
        try:
            legal = not re.search("[\ud800-\udfff]", json.loads(f'"{text}"'))
        except ValueError:
            legal = False
        verdicts.add(legal)
        assert bool(body.fullmatch(text)) == legal, text
    assert verdicts == {True, False}


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (r"\u0041\/", True),
        (r"\ud83d\ude00\uD83D\uDE00", True),
        (r"a\u00e9\n", True),
        ("é😀/", True),
        (r"\u0041", False),
        (r"\ud83d\ude00", False),
        (r"\ud83da", False),
        (r"\/\/\/\/", False),
        (r"\u00e9\u00e9\u00e9\ud83d\ude00", False),
    ],
)
def test_an_escape_counts_as_one_character(backend, text, good):
    spec = OutputSpec.json_schema({"type": "string", "minLength": 2, "maxLength": 3})
    assert takes(backend, spec, f'"{text}"') is good


SPECIAL = [*map(chr, range(256)), *"\ud7ff\ue000\ufdd0\ufeff\uffff\u2028\u2029😀"]
SPECIAL += ["\U00010000", "\U000e0001", "\U0010ffff"]
CLASS = "".join(f"\\u{{{ord(char):x}}}" for char in SPECIAL)
CONSTANTS = [{"type": "const_string", "value": char} for char in SPECIAL]


@pytest.mark.parametrize(
    ("spec", "write"),
    [
        (OutputSpec.json_schema({"enum": SPECIAL}), quoted),
        (
            OutputSpec.json_schema({"properties": {char: {} for char in SPECIAL}}),
            lambda char: f"{{{quoted(char)}:0}}",
        ),
        (OutputSpec.choice(SPECIAL), str),
        (OutputSpec.regex(f"[{CLASS}]"), str),
        (OutputSpec.regex("|".join(map(re.escape, SPECIAL))), str),
        (
            OutputSpec.structural_tag(
                {"format": {"type": "or", "elements": CONSTANTS}}
            ),
            str,
        ),
    ],
    ids=["enum", "name", "choice", "class", "regex", "tag"],
)
def test_every_character_can_be_written_where_a_spec_names_it(backend, spec, write):
    grammar = backend.compile(spec)
    for char in SPECIAL:
        matcher = backend.start(grammar, (END,))
        assert matcher.accept_text(write(char).encode()), ascii(char)
        assert matcher.accept(END), ascii(char)


@pytest.mark.parametrize("char", ["\x0b", "\x0e", "\x1a", "\x1f"])
def test_a_name_that_is_described_has_no_second_spelling(backend, char):
    schema = {
        "type": "object",
        "properties": {char: False},
        "patternProperties": {f"^{char}a$": {"type": "null"}},
        "additionalProperties": True,
    }
    spec = OutputSpec.json_schema(schema, strict=False)
    for code in (f"\\u{ord(char):04x}", f"\\u{ord(char):04X}"):
        assert not takes(backend, spec, f'{{"{code}":1}}')
        assert not takes(backend, spec, f'{{"{code}a":1}}')
    assert takes(backend, spec, f'{{"\\u{ord(char):04x}a":null}}')


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|aa|a*)*$", "^(?=(a+)+$)", "(.*)*(.*)*(.*)*b"]
)
def test_names_and_values_are_compared_with_patterns_in_linear_time(pattern):
    text = "a" * 20_000 + "!"
    start = time.process_time()
    assert not patterns.matches(pattern, text)
    assert time.process_time() - start < 2
    schema = {
        "properties": {text: True},
        "patternProperties": {pattern: {"type": "null"}},
        "required": [text],
    }
    schema_to_lark(schema, strict=False, whitespace="compact")
    assert not patterns.matches_format("hostname", "abcd." * 2_000 + "!")


@pytest.mark.parametrize("whitespace", ["compact", "spaced", "flexible"])
def test_whitespace_between_parts_is_none_of_a_text(backend, whitespace):
    """Nor where the mask of a text is cheap because it leads to a token that is never
    sampled."""
    schema = {"pattern": ".*(?:[ab]{0,2})?$", "type": "string"}
    spec = OutputSpec.json_schema(schema, whitespace=whitespace)
    matcher = backend.start(backend.compile(spec), (END,))
    assert [matcher.accept(byte) for byte in b'":\t'] == [True, True, False]
