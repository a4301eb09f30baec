"""Tokenizers of every kind become plain bytes by id."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from guided_plugin.errors import VocabularyError
from guided_plugin.grammar.vocabulary import Vocabulary

TEXTS = (
    '{"name":"Ada Lovelace","age":36}',
    "  two spaces,\ttab,\nnewline and trailing space ",
    "Grüße, 世界! \N{WAVING HAND SIGN}",
    "\x00\x1f\x7f",
    "don't [stop] <me> ▁ Ġ",
)


def spelled(vocabulary: Vocabulary, ids: list[int]) -> bytes:
    return b"".join(vocabulary.tokens[token] for token in ids)


def tokenizer(ids: dict[str, int], eos: int | None) -> Any:
    """The part of a Hugging Face tokenizer that is read."""
    special = () if eos is None else (eos,)
    members = {
        "eos_token_id": eos,
        "all_special_ids": special,
        "get_vocab": lambda self: ids,
    }
    return type("Tokenizer", (), members)()


class TestByteLevel:
    @pytest.mark.parametrize("text", TEXTS)
    def test_tokens_concatenate_to_the_text(
        self, demo_tokenizer, demo_vocabulary, text
    ):
        ids = demo_tokenizer.encode(text, add_special_tokens=False)
        assert spelled(demo_vocabulary, ids) == text.encode()
        assert demo_vocabulary.kind == "byte_level"

    def test_covers_the_ids_and_control_tokens_of_the_tokenizer(
        self, demo_tokenizer, demo_vocabulary
    ):
        assert demo_vocabulary.size == len(demo_tokenizer)
        assert demo_vocabulary.special_ids == set(demo_tokenizer.all_special_ids)
        eos = demo_tokenizer.eos_token_id
        assert demo_vocabulary.stop_token_ids == (eos,)
        assert demo_vocabulary.tokens[eos] == demo_tokenizer.eos_token.encode()
        for token, text in enumerate(demo_vocabulary.text_tokens):
            special = token in demo_vocabulary.special_ids
            assert text == (b"" if special else demo_vocabulary.tokens[token])

    def test_a_control_token_that_the_vocabulary_does_not_list_is_left_out(
        self, demo_tokenizer
    ):
        """vLLM adds one for prompt embeds."""
        eos = demo_tokenizer.eos_token_id
        more = tokenizer(demo_tokenizer.get_vocab(), eos)
        more.all_special_ids = [eos, len(demo_tokenizer)]
        assert Vocabulary.from_tokenizer(more).special_ids == {eos}

    @pytest.mark.parametrize(
        ("given", "stops"), [(65, (65,)), (0, (0,)), ([65, 66], (65, 66))]
    )
    def test_stop_tokens_given_replace_the_tokenizers_own(
        self, demo_tokenizer, given, stops
    ):
        vocabulary = Vocabulary.from_tokenizer(demo_tokenizer, stop_token_ids=given)
        assert vocabulary.stop_token_ids == stops
        assert set(stops) <= vocabulary.special_ids

    def test_added_tokens_are_taken_literally(self, demo_tokenizer, quiet_transformers):
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


@pytest.fixture(scope="module")
def byte_fallback_tokenizer(quiet_transformers: Any) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "é"]
    ids = {piece: token for token, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    model = tokenizers.models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    decoders = tokenizers.decoders
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return quiet_transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


@pytest.mark.parametrize(
    "text", ["ab a cab", " ab", "x\ny", "é世\N{WAVING HAND SIGN}", '{"a": [1, 2]}']
)
def test_byte_fallback(byte_fallback_tokenizer, text):
    vocabulary = Vocabulary.from_tokenizer(byte_fallback_tokenizer)
    ids = byte_fallback_tokenizer.encode(text, add_special_tokens=False)
    assert byte_fallback_tokenizer.unk_token_id not in ids
    assert spelled(vocabulary, ids) == text.encode()
    assert vocabulary.kind == "byte_fallback"
    assert vocabulary.special_ids == {0, 1, 2}
    assert vocabulary.stop_token_ids == (2,)
    assert vocabulary.tokens[3:259] == tuple(bytes([byte]) for byte in range(256))


@pytest.fixture(scope="module")
def encoding() -> Any:
    """256 bytes, a token, a gap, two control tokens."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    special = {"<|endoftext|>": 300, "<|call|>": 301}
    return tiktoken.Encoding(
        "test", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens=special
    )


class TestTiktoken:
    def test_reads_bytes_gaps_and_control_tokens(self, encoding):
        vocabulary = Vocabulary.from_tokenizer(encoding)
        assert vocabulary.kind == "raw"
        assert spelled(vocabulary, encoding.encode("cab é")) == "cab é".encode()
        assert vocabulary.tokens[256:258] == (b"ab", b"")
        assert vocabulary.tokens[299:] == (b"", b"<|endoftext|>", b"<|call|>")
        assert vocabulary.special_ids == {300, 301}
        assert vocabulary.stop_token_ids == (300,)

    def test_text_that_names_a_control_token_is_encoded_as_text(self, encoding):
        vocabulary = Vocabulary.from_tokenizer(encoding)
        assert vocabulary.sequence("x<|call|>") == tuple(b"x<|call|>")

    def test_inside_a_wrapper_with_its_own_end_of_sequence(self, encoding):
        members = {"tokenizer": encoding, "eos_token_id": 301}
        wrapper = type("Wrapper", (), members)()
        assert Vocabulary.from_tokenizer(wrapper).stop_token_ids == (301,)


def test_gaps_in_the_ids_are_empty():
    vocabulary = Vocabulary.from_tokenizer(tokenizer({"▁a": 1, "b": 3, "</s>": 5}, 5))
    assert vocabulary.tokens == (b"", b" a", b"", b"b", b"", b"</s>")
    assert (vocabulary.size, vocabulary.words) == (6, 1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, r"^dict is not a tokenizer .*from_tokens\)$"),
        (
            tokenizer({"[SEP]": 0, "hello": 1, "##ing": 2}, 0),
            "Tokenizer: can't tell how its tokens map to bytes",
        ),
        (tokenizer({}, 0), "Tokenizer: the tokenizer has no tokens"),
        (tokenizer({"▁a": 0}, None), r"has no stop token \(pass stop_token_ids"),
    ],
)
def test_what_can_not_be_read_is_refused_not_guessed(given, says):
    with pytest.raises(VocabularyError, match=says):
        Vocabulary.from_tokenizer(given)


def test_a_stop_token_may_be_given_where_the_tokenizer_has_none():
    given = tokenizer({"▁a": 0}, None)
    vocabulary = Vocabulary.from_tokenizer(given, stop_token_ids=0)
    assert vocabulary.stop_token_ids == (0,)


@pytest.mark.parametrize("stop", [-1, 2, 10**9])
def test_stop_tokens_outside_the_vocabulary(stop):
    says = f"stop token {stop} is outside the vocabulary of 2 tokens"
    with pytest.raises(VocabularyError, match=says):
        Vocabulary.from_tokens([b"a", b"b"], [stop])
    with pytest.raises(VocabularyError, match="the vocabulary is empty"):
        Vocabulary.from_tokens([], [0])


class TestWidth:
    vocabulary = Vocabulary.from_tokens(
        [b"a", b"b", b"</s>", b"c", b"", b"<x>"], [2], [5]
    )

    @pytest.mark.parametrize("width", [4, 5, 6, 7, 1024])
    def test_control_tokens_and_gaps_may_stick_out_and_more_is_padding(self, width):
        self.vocabulary.check_width(width)

    @pytest.mark.parametrize("width", [0, 2, 3])
    def test_a_text_token_that_sticks_out_is_an_error(self, width):
        says = f"logits have {width} columns, its tokenizer has 6 tokens"
        with pytest.raises(VocabularyError, match=says):
            self.vocabulary.check_width(width)

    def test_a_stop_token_that_sticks_out_is_an_error(self):
        with pytest.raises(VocabularyError, match="1 columns"):
            Vocabulary.from_tokens([b"a", b"</s>"], [1]).check_width(1)


class TestSequence:
    def test_text_is_a_control_token_or_encoded_without_control_tokens(
        self, demo_tokenizer, demo_vocabulary
    ):
        eos = demo_tokenizer.eos_token_id
        assert demo_vocabulary.sequence(demo_tokenizer.eos_token) == (eos,)
        ids = demo_vocabulary.sequence("answer: ")
        assert spelled(demo_vocabulary, list(ids)) == b"answer: "
        assert not demo_vocabulary.special_ids & set(ids)

    def test_without_an_encoder(self, byte_vocabulary, byte_stop):
        assert byte_vocabulary.sequence([7, 7, 3]) == (7, 7, 3)
        assert byte_vocabulary.sequence("</s>") == (byte_stop,)
        with pytest.raises(VocabularyError, match=r"no encoder .* \(give token ids"):
            byte_vocabulary.sequence("text")


class TestFingerprint:
    base = Vocabulary.from_tokens([b"a", b"bc", b"</s>", b"<x>"], [2])

    def test_equal_for_equal_vocabularies(self, demo_vocabulary):
        again = Vocabulary.from_tokens(list(self.base.tokens), (2,))
        assert again == self.base
        assert again.fingerprint == self.base.fingerprint
        sent = pickle.loads(pickle.dumps(demo_vocabulary))
        assert sent.encode is None
        assert sent.fingerprint == demo_vocabulary.fingerprint

    @pytest.mark.parametrize(
        "changed",
        [
            # the same bytes in a row, cut elsewhere
            {"tokens": (b"ab", b"c", b"</s>", b"<x>")},
            {"tokens": (b"bc", b"a", b"</s>", b"<x>")},
            {"tokens": (b"a", b"bc", b"</s>", b"<x>", b"")},
            {"stop_token_ids": (3,)},
            {"stop_token_ids": (2, 3)},
            {"special_ids": frozenset({2, 3})},
        ],
    )
    def test_differs_when_anything_a_grammar_sees_differs(self, changed):
        other = dataclasses.replace(self.base, **changed)
        assert other.fingerprint != self.base.fingerprint
