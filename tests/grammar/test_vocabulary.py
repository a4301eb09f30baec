"""Tokenizers of every kind become plain bytes by id."""

import copy
import dataclasses
import pickle
from types import SimpleNamespace

import pytest

from guided_plugin.errors import VocabularyError
from guided_plugin.grammar.vocabulary import Vocabulary

TEXTS = ['{"name":"Ada Lovelace","age":36}', "Grüße, 世界! \N{WAVING HAND SIGN}"]
TEXTS += [
    "  two spaces,\ttab,\nnewline and trailing space ",
    "\x00\x1f\x7f",
    "ab a cab",
]
SYMBOLS = "don't [stop] <me> ▁ Ġ"


def spelled(vocabulary, ids):
    return b"".join(vocabulary.tokens[token] for token in ids)


def tokenizer(*texts, eos=None, special=()):
    """The part of a Hugging Face tokenizer that is read."""
    ids = {text: token for token, text in enumerate(texts) if text}
    return SimpleNamespace(
        eos_token_id=eos, all_special_ids=special, get_vocab=lambda: ids
    )


@pytest.fixture(scope="module")
def byte_fallback(quiet_transformers):
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "é"]
    ids = {piece: token for token, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    model = tokenizers.models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    return quiet_transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture(scope="module")
def encoding():
    """256 bytes, a token, a gap, two control tokens."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    special = {"<|endoftext|>": 300, "<|call|>": 301}
    return tiktoken.Encoding(
        "test", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens=special
    )


@pytest.mark.parametrize(
    ("name", "kind", "texts"),
    [
        ("demo_tokenizer", "byte_level", [*TEXTS, SYMBOLS]),
        ("byte_fallback", "byte_fallback", TEXTS),
        ("encoding", "raw", [*TEXTS, SYMBOLS, "x<|call|>"]),
    ],
)
def test_tokens_concatenate_to_the_text(request, name, kind, texts):
    given = request.getfixturevalue(name)
    vocabulary = Vocabulary.from_tokenizer(given)
    assert vocabulary.kind == kind
    for text in texts:
        ids = vocabulary.encode(text)
        assert spelled(vocabulary, ids) == text.encode()
        assert not vocabulary.special_ids.intersection(ids)
    for token, text in enumerate(vocabulary.text_tokens):
        special = token in vocabulary.special_ids
        assert text == (b"" if special else vocabulary.tokens[token])
    if kind != "raw":
        assert vocabulary.size == len(given)
        assert vocabulary.special_ids == set(given.all_special_ids)
        assert vocabulary.stop_token_ids == (given.eos_token_id,)
        eos = vocabulary.tokens[given.eos_token_id]
        assert eos == given.eos_token.encode()


def test_byte_pieces_and_those_of_tiktoken_have_their_ids(byte_fallback, encoding):
    pieces = Vocabulary.from_tokenizer(byte_fallback)
    assert pieces.tokens[3:259] == tuple(bytes([byte]) for byte in range(256))
    vocabulary = Vocabulary.from_tokenizer(encoding)
    assert vocabulary.tokens[256:258] == (b"ab", b"")
    assert vocabulary.tokens[299:] == (b"", b"<|endoftext|>", b"<|call|>")
    assert vocabulary.special_ids == {300, 301}
    assert vocabulary.stop_token_ids == (300,)
    wrapper = SimpleNamespace(tokenizer=encoding, eos_token_id=301)
    assert Vocabulary.from_tokenizer(wrapper).stop_token_ids == (301,)


def test_added_tokens_are_taken_literally(demo_tokenizer, quiet_transformers):
    # "Ġ" is a space in the alphabet of byte-level vocabularies, but not in an added
    # token.
    changed = copy.deepcopy(demo_tokenizer)
    changed.add_tokens(["Ġplain"])
    changed.add_special_tokens({"additional_special_tokens": ["<call>"]})
    vocabulary = Vocabulary.from_tokenizer(changed)
    plain, call = changed.convert_tokens_to_ids(["Ġplain", "<call>"])
    assert vocabulary.tokens[plain] == "Ġplain".encode()
    assert vocabulary.tokens[call] == b"<call>"
    assert vocabulary.special_ids & {plain, call} == {call}


@pytest.mark.parametrize(
    ("given", "stops", "expected"),
    [
        (tokenizer("", "▁a", "", "b", "</s>", eos=4), None, ((4,), {4})),
        # vLLM adds one for prompt embeds, which the vocabulary does not list.
        (
            tokenizer("", "▁a", "", "b", "</s>", eos=4, special=[4, 5]),
            None,
            ((4,), {4}),
        ),
        (tokenizer("", "▁a", "", "b", "</s>"), 4, ((4,), {4})),
        (tokenizer("", "▁a", "", "b", "</s>", eos=4), 0, ((0,), {0})),
        (tokenizer("", "▁a", "", "b", "</s>", eos=4), [1, 3], ((1, 3), {1, 3})),
    ],
)
def test_gaps_are_empty_and_stop_tokens_given_replace_the_own(given, stops, expected):
    vocabulary = Vocabulary.from_tokenizer(given, stop_token_ids=stops)
    assert vocabulary.tokens == (b"", b" a", b"", b"b", b"</s>")
    assert (vocabulary.stop_token_ids, vocabulary.special_ids) == expected


@pytest.mark.parametrize(
    ("given", "stops", "says"),
    [
        ({}, None, r"^dict is not a tokenizer .*from_tokens\)$"),
        (
            tokenizer("[SEP]", "hello", "##ing", eos=0),
            None,
            "can't tell how its tokens",
        ),
        (tokenizer(eos=0), None, "the tokenizer has no tokens"),
        (tokenizer("▁a"), None, r"has no stop token \(pass stop_token_ids"),
        (tokenizer("▁a", "b"), 2, "stop token 2 is outside the vocabulary of 2 tokens"),
        (tokenizer("▁a", "b"), -1, "stop token -1 is outside the vocabulary"),
    ],
)
def test_what_can_not_be_read_is_refused_not_guessed(given, stops, says):
    with pytest.raises(VocabularyError, match=says):
        Vocabulary.from_tokenizer(given, stop_token_ids=stops)


def test_a_vocabulary_has_tokens():
    with pytest.raises(VocabularyError, match="the vocabulary is empty"):
        Vocabulary.from_tokens([], [0])


BASE = Vocabulary.from_tokens([b"a", b"bc", b"</s>", b"x", b"", b"<x>"], [2], [5])


@pytest.mark.parametrize(
    ("width", "fits"),
    # Control tokens and gaps may stick out, and more is padding.
    [(0, False), (2, False), (3, False), (4, True), (5, True), (6, True), (1024, True)],
)
def test_logits_are_wide_enough_for_texts_and_stop_tokens(width, fits):
    if fits:
        BASE.check_width(width)
        return
    says = f"logits have {width} columns, its tokenizer has 6 tokens"
    with pytest.raises(VocabularyError, match=says):
        BASE.check_width(width)


def test_a_sequence_is_a_control_token_or_encoded_text(demo_tokenizer, demo_vocabulary):
    eos = demo_tokenizer.eos_token_id
    assert demo_vocabulary.sequence(demo_tokenizer.eos_token) == (eos,)
    ids = demo_vocabulary.sequence("answer: ")
    assert spelled(demo_vocabulary, ids) == b"answer: "
    assert BASE.sequence([7, 7, 3]) == (7, 7, 3)
    assert BASE.sequence("</s>") == (2,)
    with pytest.raises(VocabularyError, match=r"no encoder .* \(give token ids"):
        BASE.sequence("text")


def test_equal_vocabularies_have_equal_fingerprints(demo_vocabulary):
    again = Vocabulary.from_tokens(BASE.tokens, (2,), (5,))
    assert again == BASE
    assert again.fingerprint == BASE.fingerprint
    sent = pickle.loads(pickle.dumps(demo_vocabulary))
    assert sent.encode is None
    assert sent.fingerprint == demo_vocabulary.fingerprint


@pytest.mark.parametrize(
    "changed",
    [
        # The same bytes in a row, cut elsewhere.
        {"tokens": (b"ab", b"c", *BASE.tokens[2:])},
        {"tokens": (b"bc", b"a", *BASE.tokens[2:])},
        {"tokens": (*BASE.tokens, b"")},
        {"stop_token_ids": (5,)},
        {"stop_token_ids": (2, 5)},
        {"special_ids": frozenset({2, 3, 5})},
    ],
)
def test_fingerprints_differ_when_anything_a_grammar_sees_differs(changed):
    other = dataclasses.replace(BASE, **changed)
    assert other.fingerprint != BASE.fingerprint
