"""Characters of all planes, in EBNF, regexes, and the names and values of schemas,
judged by `re` and `json`.

Texts reach the matchers in single bytes and in tokens of several bytes that begin and
end anywhere.
"""

from __future__ import annotations

import json
import random
import re

import pytest
from xgrammar_specs import accepts, allowed, stops_of

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GrammarError, UnsupportedSpecError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec

ENDS = (
    0,
    0x1F,
    0x20,
    0x7F,
    0x80,
    0x9F,
    0xA0,
    0xFF,
    0x100,
    0x7FF,
    0x800,
    0xFCBE,
    0xD7FF,
    0xE000,
    0xFFFF,
)
HIGH = (0x10000, 0x1F600, 0xE0001, 0x10FFFF)
CHARACTERS = [*map(chr, (*ENDS, *HIGH)), *"\t\n\r\"\\]-^'/#|.09afxAFzéüßà"]
HEXADECIMAL = "09afAF"

SHUFFLED = random.Random(7)
TEXT = "".join(SHUFFLED.choices(CHARACTERS, k=600)).encode()
PIECES = [TEXT[at : at + SHUFFLED.randint(2, 6)] for at in range(0, len(TEXT), 2)]
TOKENS = [*(bytes([byte]) for byte in range(256)), *sorted(set(PIECES)), b"</s>"]


@pytest.fixture(scope="module")
def backend() -> XGrammarBackend:
    vocabulary = Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])
    return XGrammarBackend(vocabulary, GuidedConfig(threads=1))


def takes(
    backend: XGrammarBackend, spec: OutputSpec, text: str, chance: random.Random
) -> bool:
    """Whether a text is a whole output, in tokens taken at random."""
    rest = text.encode()
    matcher = backend.start(backend.compile(spec), stops_of(backend))
    while rest:
        token = chance.choice(
            [i for i, token in enumerate(TOKENS) if rest.startswith(token)]
        )
        if not matcher.accept(token):
            return False
        rest = rest[len(TOKENS[token]) :]
    return matcher.complete


def spelt(character: str, special: str, chance: random.Random) -> str:
    """One of the ways in which EBNF writes a character."""
    code = ord(character)
    forms = [f"\\U{code:08X}"]
    if code <= 0xFFFF:
        forms.append(f"\\u{code:04x}")
    if code <= 0xFF:
        forms.append(chance.choice([f"\\x{code:02x}", f"\\x{code:02X}"]))
    if character not in special:
        forms += [character] * 3
    return chance.choice(forms)


def random_texts(chance: random.Random) -> tuple[str, str, str, str]:
    """Some texts and classes as EBNF, as a regex of this package, as one of Python, and
    a text of them."""
    ebnf = "root ::="
    regex = ""
    python = ""
    sample = ""
    for _ in range(chance.randint(1, 4)):
        if chance.random() < 0.5:
            text = "".join(
                chance.choices(CHARACTERS, k=chance.randint(1, 3))
            ) + chance.choice(HEXADECIMAL)
            ebnf += (
                ' "' + "".join(spelt(each, '"\\\0\n\r', chance) for each in text) + '"'
            )
            regex += "".join(f"\\u{{{ord(each):x}}}" for each in text)
            python += re.escape(text)
            sample += text
            continue
        ends = [
            sorted(chance.choices(CHARACTERS, k=2)) for _ in range(chance.randint(0, 2))
        ]
        ends += [
            [one, one]
            for one in (chance.choice(CHARACTERS), chance.choice(HEXADECIMAL))
        ]
        # None is left where a negated one has all characters up to the last.
        all_told = any(first != last == HIGH[-1] for first, last in ends)
        negated = "" if all_told else chance.choice(["", "", "^"])
        ebnf += f" [{negated}" + "".join(
            "-".join(spelt(each, "\\]^-\0\n\r", chance) for each in pair)
            for pair in ends
        )
        regex += f"[{negated}" + "".join(
            "-".join(f"\\u{{{ord(each):x}}}" for each in pair) for pair in ends
        )
        python += f"[{negated}" + "".join(
            "-".join(f"\\U{ord(each):08x}" for each in pair) for pair in ends
        )
        ebnf = ebnf + "]"
        regex = regex + "]"
        python = python + "]"
        sample += chance.choice(chance.choice(ends))
    return ebnf, regex, python, sample


def changed(text: str, chance: random.Random) -> str:
    """A text with one character in the place of another."""
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(CHARACTERS) + text[at + 1 :]


@pytest.mark.parametrize("seed", range(60))
def test_ebnf_and_regexes_take_what_python_takes(backend, seed):
    chance = random.Random(seed)
    for _ in range(5):
        ebnf, regex, python, sample = random_texts(chance)
        specs = [OutputSpec.grammar(ebnf), OutputSpec.regex(regex)]
        for text in [
            sample,
            sample[:-1],
            *(changed(sample, chance) for _ in range(12)),
        ]:
            expected = re.fullmatch(python, text) is not None
            for spec in specs:
                assert takes(backend, spec, text, chance) == expected, (spec.text, text)


@pytest.mark.parametrize("character", CHARACTERS, ids=ascii)
def test_names_and_values_are_the_text_that_they_were(backend, character):
    for text in (character + digit for digit in HEXADECIMAL):
        schema = {
            "type": "object",
            "properties": {text: {"enum": [text]}},
            "required": [text],
        }
        matcher = backend.start(
            backend.compile(OutputSpec.json_schema(schema)), stops_of(backend)
        )
        output = b""
        while not matcher.complete:
            token = min(allowed(backend, matcher))
            assert matcher.accept(token)
            output += TOKENS[token]
        assert json.loads(output) == {text: text}


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ('root ::= "über" | "école"', "über école", "\ufcber \u0e9cole"),
        ("root ::= [éa]", "é a", "\u0e9a"),
        ("root ::= [éa-c]", "é a b c", "d"),
        ("root ::= [^éa] [ü-ÿ0-9]", "bü ñ9", "éü añ"),
        (r'root ::= "\xfcb" [\xe9a]', "übé üba", "\u0fcba"),
        ('root ::= "a" # "[é\nb ::= "é"', "a", "é"),
    ],
)
def test_a_character_before_a_hexadecimal_digit(backend, source, good, bad):
    spec = OutputSpec.grammar(source)
    assert [text for text in good.split() if not accepts(backend, spec, text)] == []
    assert [text for text in bad.split() if accepts(backend, spec, text)] == []


@pytest.mark.parametrize(
    "source", [r"[\ud800-\udfff]", r"[\ud83d\ude00a]", r"[\udc00-\U0010ffff]", "[^b]"]
)
def test_no_class_takes_a_surrogate(backend, source):
    spec = OutputSpec.grammar(f'root ::= "a" | {source}')
    assert accepts(backend, spec, "a")
    for code in (0xD800, 0xD83D, 0xDE00, 0xDFFF):
        assert not accepts(backend, spec, chr(code).encode(errors="surrogatepass"))


def test_an_error_has_its_place_in_the_clients_text(backend):
    with pytest.raises(GrammarError) as caught:
        backend.compile(OutputSpec.grammar(r'root ::= "\xfc" [^\xfc] [b-a]'))
    assert caught.value.where == "grammar, line 1, column 26"


@pytest.mark.parametrize(
    ("source", "column"),
    [(r'"a\\\ud83d\ude00"', 10), (r'[a] "\uDFFF"', 14), (r'Regex("[^a]")', 10)],
)
def test_what_would_take_a_surrogate_is_refused(backend, source, column):
    with pytest.raises(
        UnsupportedSpecError, match=r"is not supported: (half of|xgrammar takes)"
    ) as caught:
        backend.compile(OutputSpec.grammar(f"root ::= {source}"))
    assert caught.value.where == f"grammar, line 1, column {column}"
    assert accepts(
        backend,
        OutputSpec.grammar(r'root ::= "\\ud83d" "Regex(" [\u0041]'),
        "\\ud83dRegex(A",
    )
