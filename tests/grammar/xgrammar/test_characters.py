"""Characters of all planes in EBNF, judged by `re`.

Texts reach the matchers in single bytes and in tokens of several bytes that begin and
end anywhere.
"""

import random
import re

import pytest
from xgrammar_specs import accepts, stops_of

from guided_plugin.config import GuidedConfig
from guided_plugin.grammar.vocabulary import Vocabulary
from guided_plugin.grammar.xgrammar.backend import XGrammarBackend
from guided_plugin.spec import OutputSpec

ENDS = (0, 0x1F, 0x20, 0x7F, 0x80, 0x9F, 0xA0, 0xFF, 0x100, 0x7FF, 0x800, 0xFCBE)
HIGH = (0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x1F600, 0xE0001, 0x10FFFF)
CHARACTERS = [*"\t\n\r\"\\]-^'/#|.09afxAFzéüßà", *map(chr, (*ENDS, *HIGH))]
HEXADECIMAL = "09afAF"

SHUFFLED = random.Random(7)
TEXT = "".join(SHUFFLED.choices(CHARACTERS, k=600)).encode()
PIECES = {TEXT[at : at + SHUFFLED.randint(2, 6)] for at in range(0, len(TEXT), 2)}
TOKENS = [*(bytes([byte]) for byte in range(256)), *sorted(PIECES), b"</s>"]


@pytest.fixture(scope="module")
def backend():
    vocabulary = Vocabulary.from_tokens(TOKENS, [len(TOKENS) - 1])
    return XGrammarBackend(vocabulary, GuidedConfig(threads=1))


def takes(backend, grammar, text, chance):
    """Whether a text is a whole output, in tokens taken at random."""
    rest = text.encode()
    matcher = backend.start(grammar, stops_of(backend))
    while rest:
        fitting = [i for i, token in enumerate(TOKENS) if rest.startswith(token)]
        token = chance.choice(fitting)
        if not matcher.accept(token):
            return False
        rest = rest[len(TOKENS[token]) :]
    return matcher.complete


def spelt(character, special, chance):
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


def random_class(chance):
    """A class of EBNF, the same one of Python, and a character of it."""
    count = chance.randint(0, 2)
    pairs = [sorted(chance.choices(CHARACTERS, k=2)) for _ in range(count)]
    pairs += [[chance.choice(one)] * 2 for one in (CHARACTERS, HEXADECIMAL)]
    # None is left where a negated one has all characters up to the last.
    all_told = any(first != last == CHARACTERS[-1] for first, last in pairs)
    ebnf = python = "[" if all_told else chance.choice(["[", "[", "[^"])
    for low, high in pairs:
        ends = [spelt(one, "\\]^-\0\n\r", chance) for one in (low, high)]
        ebnf += "-".join(ends)
        python += f"\\U{ord(low):08x}-\\U{ord(high):08x}"
    return f"{ebnf}]", f"{python}]", chance.choice(chance.choice(pairs))


def random_text(chance):
    """A text of EBNF, the same one of Python, and itself."""
    text = "".join(chance.choices(CHARACTERS, k=chance.randint(1, 3)))
    text += chance.choice(HEXADECIMAL)
    written = "".join(spelt(one, '"\\\0\n\r', chance) for one in text)
    return f'"{written}"', re.escape(text), text


@pytest.mark.parametrize("seed", range(60))
def test_ebnf_takes_what_python_takes(backend, seed):
    chance = random.Random(seed)
    for _ in range(5):
        makers = chance.choices([random_class, random_text], k=chance.randint(1, 4))
        ebnf, python, sample = zip(*(make(chance) for make in makers), strict=True)
        spec = OutputSpec.grammar("root ::= " + " ".join(ebnf))
        grammar = backend.compile(spec)
        judge = re.compile("".join(python))
        whole = "".join(sample)
        texts = [whole, whole[:-1]]
        for _ in range(12):
            at = chance.randrange(len(whole))
            texts.append(whole[:at] + chance.choice(CHARACTERS) + whole[at + 1 :])
        for text in texts:
            expected = judge.fullmatch(text) is not None
            assert takes(backend, grammar, text, chance) == expected, (spec.text, text)


@pytest.mark.parametrize(
    "source", ["[^b]", ".", r"[\u0100-\U0010ffff]", r"[\ud7ff-\ue000]"]
)
def test_no_class_takes_bytes_that_are_not_utf_8(backend, source):
    spec = OutputSpec.grammar(f"root ::= {source}")
    assert accepts(backend, spec, "\ud7ff")
    assert accepts(backend, spec, "\ue000")
    for data in (
        "eda080",
        "edafbf",
        "edbfbf",
        "e084b5",
        "f0898cbe",
        "c080",
        "f4908080",
    ):
        assert not accepts(backend, spec, bytes.fromhex(data)), data
