"""Patterns as regular expressions over JSON literals, against the oracle on texts made
to nearly fit."""

import json
import random
import re
import time

import numpy as np
import pytest
from instances import near
from llguidance_specs import END, VOCABULARY, takes, terminal_takes
from oracle import oracle

from guided_plugin import OutputSpec
from guided_plugin.errors import UnsatisfiableSpecError
from guided_plugin.grammar.llguidance.lark import patterns, schema_to_lark
from guided_plugin.spec import ecma, languages

PATTERNS = [
    *(
        "",
        r"^\+?[0-9 ()-]{7,}$",
        "a",
        "^a",
        "a$",
        "^a$",
        "^$",
        "$",
        "^",
        "a|b",
        "^a|b$",
        "(^a|b$)",
    ),
    *(
        "(?:^|x)y",
        "(a|)b?$",
        "^(a$|b)",
        "a*",
        "^a*$",
        "^(ab)+$",
        "^a{2}$",
        "^a{2,}$",
        "^a{1,3}b?$",
    ),
    *(
        "^(a{1,2}){2}$",
        "x{",
        "x{}",
        "x{a}",
        "a]",
        "^a+?b*?$",
        ".",
        "^.$",
        "^.*$",
        "^.+x.*$",
        "^[^a]*$",
    ),
    *(
        "[^a-c]",
        "^[a-cx-z]$",
        "^[-a]$",
        "^[a-]$",
        "^[^]$",
        r"\d",
        r"^\d+\.\d{2}$",
        r"^\w+$",
        r"^\W$",
    ),
    *(
        r"^\s*$",
        r"^\S+$",
        r"^\D$",
        r"^[\d_]+$",
        r"^[^\d]$",
        r"^[\W]$",
        r"^[\w.-]+@[\w-]+$",
        '^"[^"]*"$',
    ),
    *(
        r"^\\",
        r"^[\\\"]$",
        r"\/",
        r"^\t\n\r$",
        r"^[\t-\r]$",
        r"^\x41B$",
        r"^\u0061\u00e9$",
        r"^\u{1F600}$",
    ),
    *(
        r"^\cJ$",
        r"^\0$",
        "^é+$",
        "^[à-ü]$",
        "^😀?$",
        "^(?!a)",
        "^(?!ab$)[ab]+$",
        "^(?=.*b)[ab]+$",
    ),
    *(
        "^(?=a)(?!ab)",
        "^(?<n>a)(?:b)$",
        "(?P<n>a)",
        "^(?:a|ab)(?:c|bc)$",
        "^[&~|]$",
        "^[a&&b]$",
        "^[[]$",
    ),
    *(
        "^[a^]$",
        r"^\$\^$",
        "^[$^.]$",
        r"^\p{L}+$",
        r"^\P{L}$",
        r"^[\p{Lu}\d]+$",
        r"^-?\d+$",
    ),
    *(r"^[A-Z]{3}-\d{4}$", "^(https?)://", "^#[0-9a-fA-F]{6}$", "(a|b)*c"),
]
CHARACTERS = [*'abcxA09_- \t\n\r\x00\x1f"\\/é😀\u2028\xa0\x7f^$[]&|~.@\ufeff٣}{']


def texts(pattern, count=250):
    """Texts that a pattern may match, edits of them, and short texts of awkward
    characters."""
    source = random.Random(pattern)
    values = near({"type": "string", "pattern": pattern}, ["", "ab"], count=count)
    made = [value for value in values if isinstance(value, str)]
    made += CHARACTERS
    made += [
        "".join(source.choices(CHARACTERS, k=source.randint(1, 5)))
        for _ in range(count)
    ]
    # No token holds a lone surrogate.
    return [
        text for text in dict.fromkeys(made) if not re.search("[\ud800-\udfff]", text)
    ]


def quoted_takes(pattern, text):
    """Whether the terminal over JSON literals allows a text."""
    return terminal_takes(
        patterns.pattern(pattern), json.dumps(text, ensure_ascii=False)
    )


def _compiled(body):
    """Rust's syntax in Python's: code points in braces."""
    return re.compile(
        re.sub(
            r"\\x\{([0-9A-F]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", body
        ),
        re.DOTALL,
    )


@pytest.mark.parametrize(
    "pattern", [p for p in PATTERNS if "\\p" not in p and "\\P" not in p]
)
def test_literals_and_texts_agree_with_the_oracle(pattern):
    expected = oracle({"pattern": pattern})
    verdicts = set()
    for text in texts(pattern):
        matches = expected(text)
        verdicts.add(matches)
        assert patterns.matches(pattern, text) == matches, text
        assert quoted_takes(pattern, text) == matches, text
    assert True in verdicts


def test_what_the_standard_has_and_re_reads_otherwise():
    assert patterns.matches(r"^\ud83d\ude00$", "😀")
    assert not patterns.matches("[]", "a")
    assert patterns.matches("a(?=b)", "ab")
    assert not patterns.matches("a(?=b)", "ac")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_nullable(pattern):
    node = ecma.parse(pattern)
    assertions = ("Anchor", "Look")
    if any(word in repr(node) for word in assertions) or "\\p" in pattern.lower():
        return
    assert languages.nullable(node) == oracle({"pattern": pattern})("")


@pytest.mark.parametrize(
    "char", [*map(chr, range(0x30)), '"', "\\", "\x7f", "é", "\u2028", "😀"]
)
def test_any_character_has_every_legal_spelling(char):
    body = _compiled(patterns.ANY_CHARACTER)
    assert body.fullmatch(json.dumps(char, ensure_ascii=False)[1:-1])
    raw_is_legal = char >= " " and char not in '"\\'
    assert bool(body.fullmatch(char)) == raw_is_legal


def test_free_strings_take_what_json_reads_in_every_spelling():
    body = _compiled(patterns.ANY_SPELLING + "*")
    source = random.Random(0)
    for code in range(0x10000):
        text = f"\\u{code:04x}" if source.random() < 0.5 else f"\\u{code:04X}"
        assert bool(body.fullmatch(text)) == (not 0xD800 <= code < 0xE000), text
    pieces = [
        r"\ud83d",
        r"\uDE00",
        r"\u00e9",
        "\\",
        "/",
        "u",
        "d",
        "0",
        "é",
        '"',
        "n",
        "\x1f",
        "😀",
        "'",
    ]
    verdicts = set()
    for _ in range(20_000):
        text = "".join(source.choices(pieces, k=source.randint(1, 4)))
        try:
            legal = not re.search("[\ud800-\udfff]", json.loads(f'"{text}"'))
        except ValueError:
            legal = False
        verdicts.add(legal)
        assert bool(body.fullmatch(text)) == legal, text
    assert verdicts == {True, False}


def test_an_escape_counts_as_one_character(backend):
    spec = OutputSpec.json_schema({"type": "string", "minLength": 2, "maxLength": 3})
    for text in (r"\u0041\/", r"\ud83d\ude00\uD83D\uDE00", r"a\u00e9\n", "é😀/"):
        assert takes(backend, spec, f'"{text}"'), text
    for text in (
        r"\u0041",
        r"\ud83d\ude00",
        r"\ud83da",
        r"\/\/\/\/",
        r"\u00e9\u00e9\u00e9\ud83d\ude00",
    ):
        assert not takes(backend, spec, f'"{text}"'), text


SPECIAL = [
    *map(chr, range(256)),
    "\ud7ff",
    "\ue000",
    "\ufdd0",
    "\ufeff",
    "\uffff",
    *"\u2028\u2029😀",
]
SPECIAL += ["\U00010000", "\U000e0001", "\U0010ffff"]


def _quoted(char):
    return json.dumps(char, ensure_ascii=False)


def _tag(chars):
    texts = [{"type": "const_string", "value": char} for char in chars]
    return OutputSpec.structural_tag({"format": {"type": "or", "elements": texts}})


@pytest.mark.parametrize(
    ("make", "write"),
    [
        (lambda chars: OutputSpec.json_schema({"enum": chars}), _quoted),
        (
            lambda chars: OutputSpec.json_schema(
                {"anyOf": [{"const": char} for char in chars]}
            ),
            _quoted,
        ),
        (
            lambda chars: OutputSpec.json_schema(
                {"properties": {char: {"const": 0} for char in chars}}
            ),
            lambda char: f"{{{_quoted(char)}:0}}",
        ),
        (OutputSpec.choice, str),
        (
            lambda chars: OutputSpec.regex(
                "[" + "".join(f"\\u{{{ord(c):x}}}" for c in chars) + "]"
            ),
            str,
        ),
        (lambda chars: OutputSpec.regex("|".join(map(re.escape, chars))), str),
        (_tag, str),
    ],
    ids=["enum", "const", "name", "choice", "class", "regex", "tag"],
)
def test_every_character_can_be_written_where_a_spec_names_it(backend, make, write):
    grammar = backend.compile(make(SPECIAL))
    for char in SPECIAL:
        matcher = backend.start(grammar, (END,))
        assert matcher.accept_text(write(char).encode()), ascii(char)
        assert matcher.accept(END), ascii(char)


@pytest.mark.parametrize(
    "pattern", ["[]", "a[]", "x[]+y", r"[^\s\S]", "\ud800", "(?:a[]|[])b"]
)
def test_a_pattern_with_an_empty_class_allows_nothing(backend, pattern):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": pattern}},
        "required": ["a"],
    }
    with pytest.raises(UnsatisfiableSpecError):
        backend.compile(OutputSpec.json_schema(schema))
    assert takes(backend, OutputSpec.json_schema(schema | {"required": []}), "{}")
    grammar = backend.compile(
        OutputSpec.json_schema({"type": "string", "pattern": f"{pattern}|^b$"})
    )
    matcher = backend.start(grammar, VOCABULARY.stop_token_ids)
    mask = np.zeros((1, VOCABULARY.words), np.int32)
    assert matcher.accept_text(b'"')
    backend.batch([matcher]).fill(mask, [0])
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert {VOCABULARY.tokens[token][:1] for token in np.flatnonzero(bits)} == {b"b"}


@pytest.mark.parametrize("char", ["\x0b", "\x0e", "\x1a", "\x1f"])
def test_a_name_that_is_described_has_no_second_spelling(backend, char):
    schema = {
        "properties": {char: False},
        "patternProperties": {f"^{char}a$": {"type": "null"}},
    }
    spec = OutputSpec.json_schema(
        {"type": "object", "additionalProperties": True, **schema}, strict=False
    )
    for code in (f"\\u{ord(char):04x}", f"\\u{ord(char):04X}"):
        assert not takes(backend, spec, f'{{"{code}":1}}')
        assert not takes(backend, spec, f'{{"{code}a":1}}')
    assert takes(backend, spec, f'{{"\\u{ord(char):04x}a":null}}')


@pytest.mark.parametrize(
    "pattern", ["^(a+)+$", "^(a|aa|a*)*$", "^(?=(a+)+$)", "(.*)*(.*)*(.*)*b"]
)
def test_names_and_values_are_compared_with_patterns_in_linear_time(pattern) -> None:
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
def test_whitespace_between_parts_is_none_of_a_text(backend, whitespace) -> None:
    """Nor where the mask of a text is cheap because it leads to a token that is never
    sampled."""
    spec = OutputSpec.json_schema(
        {"pattern": ".*(?:[ab]{0,2})?$", "type": "string"}, whitespace=whitespace
    )
    matcher = backend.start(backend.compile(spec), (END,))
    assert [matcher.accept(byte) for byte in b'":\t'] == [True, True, False]
