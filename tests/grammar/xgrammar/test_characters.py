"""Characters of all planes in EBNF, judged by `re`.

Texts reach the matchers in single bytes and in tokens of several bytes that begin and
end anywhere.
"""

from __future__ import annotations

import random
import re

import pytest
from xgrammar_specs import accepts, stops_of

from guided_plugin.config import GuidedConfig
from guided_plugin.errors import GrammarError, UnsupportedSpecError
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec

ENDS = (0, 0x1F, 0x20, 0x7F, 0x80, 0x9F, 0xA0, 0xFF, 0x100, 0x7FF, 0x800, 0xFCBE)
HIGH = (0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1F600, 0xE0001, 0x10FFFF)
CHARACTERS = [*"\t\n\r\"\\]-^'/#|.09afxAFzéüßà", *map(chr, (*ENDS, *HIGH))]
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


def random_class(chance: random.Random) -> tuple[str, str, str]:
    """A class of EBNF, the same one of Python, and a character of it."""
    pairs = [
        sorted(chance.choices(CHARACTERS, k=2)) for _ in range(chance.randint(0, 2))
    ]
    pairs += [[one, one] for one in chance.choices(CHARACTERS, k=1)]
    pairs += [[one, one] for one in chance.choices(HEXADECIMAL, k=1)]
    # None is left where a negated one has all characters up to the last.
    all_told = any(first != last == CHARACTERS[-1] for first, last in pairs)
    negated = "" if all_told else chance.choice(["", "", "^"])
    ebnf = f"[{negated}"
    python = f"[{negated}"
    for low, high in pairs:
        ends = [spelt(one, "\\]^-\0\n\r", chance) for one in (low, high)]
        ebnf += "-".join(ends)
        python += f"\\U{ord(low):08x}-\\U{ord(high):08x}"
    return f"{ebnf}]", f"{python}]", chance.choice(chance.choice(pairs))


def random_text(chance: random.Random) -> tuple[str, str, str]:
    """A text of EBNF, the same one of Python, and itself."""
    text = "".join(chance.choices(CHARACTERS, k=chance.randint(1, 3)))
    text += chance.choice(HEXADECIMAL)
    written = "".join(spelt(one, '"\\\0\n\r', chance) for one in text)
    return f'"{written}"', re.escape(text), text


def changed(text: str, chance: random.Random) -> str:
    """A text with one character in the place of another."""
    at = chance.randrange(len(text))
    return text[:at] + chance.choice(CHARACTERS) + text[at + 1 :]


@pytest.mark.parametrize("seed", range(60))
def test_ebnf_takes_what_python_takes(backend, seed):
    chance = random.Random(seed)
    for _ in range(5):
        makers = chance.choices([random_class, random_text], k=chance.randint(1, 4))
        made = [make(chance) for make in makers]
        ebnf, python, sample = zip(*made, strict=True)
        spec = OutputSpec.grammar("root ::= " + " ".join(ebnf))
        judge = re.compile("".join(python))
        whole = "".join(sample)
        others = [changed(whole, chance) for _ in range(12)]
        for text in [whole, whole[:-1], *others]:
            expected = judge.fullmatch(text) is not None
            assert takes(backend, spec, text, chance) == expected, (spec.text, text)


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
    "source", ["[^b]", ".", r"[\u0100-\U0010ffff]", r"[\ud7ff-\ue000]"]
)
@pytest.mark.parametrize(
    "data",
    [
        *(
            chr(code).encode(errors="surrogatepass")
            for code in (0xD800, 0xDBFF, 0xDFFF)
        ),
        b"\xe0\x84\xb5",
        b"\xf0\x89\x8c\xbe",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
    ],
    ids=bytes.hex,
)
def test_no_class_takes_bytes_that_are_not_utf_8(backend, source, data):
    spec = OutputSpec.grammar(f"root ::= {source}")
    assert accepts(backend, spec, "\ud7ff")
    assert accepts(backend, spec, "\ue000")
    assert not accepts(backend, spec, data)


def test_an_error_has_its_place_in_the_clients_text(backend):
    with pytest.raises(GrammarError) as caught:
        backend.compile(OutputSpec.grammar(r'root ::= "\xfc" [^\xfc] [b-a]'))
    assert caught.value.where == "grammar, line 1, column 26"


@pytest.mark.parametrize(
    ("source", "column"),
    [
        (r'"a\\\ud83d\ude00"', 10),
        (r'[a] "\uDFFF"', 14),
        (r'"\U0000dfff"', 10),
        (r"[a] [\\b-\udfff]", 14),
        (r"[^\ud800-\udfff]", 10),
        (r'Regex("[^a]")', 10),
    ],
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
