"""Tokenizers of every kind become plain bytes by id."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

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

    def test_every_byte_has_a_token(self, demo_vocabulary):
        assert demo_vocabulary.kind == "byte_level"
        assert {bytes([byte]) for byte in range(256)} <= set(demo_vocabulary.tokens)

    def test_covers_the_ids_and_control_tokens_of_the_tokenizer(
        self, demo_tokenizer, demo_vocabulary
    ):
        assert demo_vocabulary.size == len(demo_tokenizer)
        assert demo_vocabulary.special_ids == set(demo_tokenizer.all_special_ids)
        assert demo_vocabulary.stop_token_ids == (demo_tokenizer.eos_token_id,)

    def test_a_control_token_that_the_vocabulary_does_not_list_is_left_out(
        self, demo_tokenizer
    ):
        """vLLM adds one for prompt embeds."""
        more = tokenizer(demo_tokenizer.get_vocab(), demo_tokenizer.eos_token_id)
        more.all_special_ids = [demo_tokenizer.eos_token_id, len(demo_tokenizer)]
        assert Vocabulary.from_tokenizer(more).special_ids == {
            demo_tokenizer.eos_token_id
        }

    def test_control_tokens_keep_their_name_and_are_no_text(
        self, demo_tokenizer, demo_vocabulary
    ):
        eos = demo_tokenizer.eos_token_id
        assert demo_vocabulary.tokens[eos] == demo_tokenizer.eos_token.encode()
        assert demo_vocabulary.text_tokens[eos] == b""
        ordinary = [
            i
            for i in range(demo_vocabulary.size)
            if i not in demo_vocabulary.special_ids
        ]
        assert all(
            demo_vocabulary.text_tokens[i] == demo_vocabulary.tokens[i]
            for i in ordinary
        )

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
        import copy

        tokenizer = copy.deepcopy(demo_tokenizer)
        tokenizer.add_tokens(["Ġplain"])
        tokenizer.add_special_tokens({"additional_special_tokens": ["<call>"]})
        vocabulary = Vocabulary.from_tokenizer(tokenizer)
        plain, call = tokenizer.convert_tokens_to_ids(["Ġplain", "<call>"])
        assert vocabulary.tokens[plain] == "Ġplain".encode()
        assert plain not in vocabulary.special_ids
        assert vocabulary.tokens[call] == b"<call>"
        assert call in vocabulary.special_ids


@pytest.fixture(scope="module")
def byte_fallback_tokenizer(quiet_transformers: Any) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "é"]
    model = tokenizers.models.BPE(
        {piece: i for i, piece in enumerate(pieces)},
        [("▁", "a"), ("a", "b"), ("▁a", "b")],
        unk_token="<unk>",
        byte_fallback=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        prepend_scheme="never"
    )
    tokenizer.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
        ]
    )
    return quiet_transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


class TestByteFallback:
    @pytest.mark.parametrize(
        "text", ["ab a cab", " ab", "x\ny", "é世\N{WAVING HAND SIGN}", '{"a": [1, 2]}']
    )
    def test_tokens_concatenate_to_the_text(self, byte_fallback_tokenizer, text):
        vocabulary = Vocabulary.from_tokenizer(byte_fallback_tokenizer)
        ids = byte_fallback_tokenizer.encode(text, add_special_tokens=False)
        assert byte_fallback_tokenizer.unk_token_id not in ids
        assert spelled(vocabulary, ids) == text.encode()

    def test_byte_pieces_are_single_bytes_and_metaspace_is_a_space(
        self, byte_fallback_tokenizer
    ):
        vocabulary = Vocabulary.from_tokenizer(byte_fallback_tokenizer)
        ids = byte_fallback_tokenizer.get_vocab()
        assert vocabulary.kind == "byte_fallback"
        assert [vocabulary.tokens[ids[f"<0x{byte:02X}>"]] for byte in range(256)] == [
            bytes([byte]) for byte in range(256)
        ]
        assert vocabulary.tokens[ids["▁ab"]] == b" ab"
        assert vocabulary.special_ids == {0, 1, 2}
        assert vocabulary.stop_token_ids == (2,)


class FakeEncoding:
    """The part of tiktoken's Encoding that is read: 256 bytes, a gap, two tokens, two
    control tokens."""

    n_vocab = 262
    special_tokens_set = frozenset({"<|endoftext|>", "<|call|>"})
    _special: ClassVar = {"<|endoftext|>": 260, "<|call|>": 261}

    def encode_single_token(self, name: str) -> int:
        return self._special[name]

    def decode_single_token_bytes(self, token: int) -> bytes:
        names = {number: name.encode() for name, number in self._special.items()}
        texts = {256: b" the", 259: "é".encode()}
        if token < 256:
            return bytes([token])
        return {**texts, **names}[token]  # KeyError for 257 and 258, as tiktoken has it

    def encode(
        self, text: str, disallowed_special: tuple[str, ...] = ("all",)
    ) -> list[int]:
        if disallowed_special:
            raise ValueError("a control token in the text")
        return list(text.encode())


class TestTiktoken:
    def test_reads_bytes_gaps_and_control_tokens(self):
        vocabulary = Vocabulary.from_tokenizer(FakeEncoding())
        assert vocabulary.kind == "raw"
        assert vocabulary.tokens[:256] == tuple(bytes([byte]) for byte in range(256))
        assert vocabulary.tokens[256:] == (
            b" the",
            b"",
            b"",
            "é".encode(),
            b"<|endoftext|>",
            b"<|call|>",
        )
        assert vocabulary.special_ids == {260, 261}
        assert vocabulary.stop_token_ids == (260,)

    def test_text_that_names_a_control_token_is_encoded_as_text(self):
        vocabulary = Vocabulary.from_tokenizer(FakeEncoding())
        assert vocabulary.sequence("x<|call|>") == tuple(b"x<|call|>")

    def test_inside_a_wrapper_with_its_own_end_of_sequence(self):
        class Wrapper:
            tokenizer = FakeEncoding()
            eos_token_id = 261

        assert Vocabulary.from_tokenizer(Wrapper()).stop_token_ids == (261,)

    def test_real_encoding(self):
        tiktoken = pytest.importorskip("tiktoken")
        ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
        encoding = tiktoken.Encoding(
            "test",
            pat_str=r"\S+|\s+",
            mergeable_ranks=ranks,
            special_tokens={"<|endoftext|>": 300},
        )
        vocabulary = Vocabulary.from_tokenizer(encoding)
        assert spelled(vocabulary, encoding.encode("cab é")) == "cab é".encode()
        assert vocabulary.tokens[257:] == (b"",) * 43 + (b"<|endoftext|>",)


class TestOthers:
    def test_gaps_in_the_ids_are_empty(self):
        vocabulary = Vocabulary.from_tokenizer(
            tokenizer({"▁a": 1, "b": 3, "</s>": 5}, 5)
        )
        assert vocabulary.tokens == (b"", b" a", b"", b"b", b"", b"</s>")
        assert (vocabulary.size, vocabulary.words) == (6, 1)

    def test_unknown_type_is_named(self):
        with pytest.raises(
            VocabularyError, match=r"^dict is not a tokenizer .*from_tokens\)$"
        ):
            Vocabulary.from_tokenizer({})

    def test_word_level_is_refused_not_guessed(self):
        with pytest.raises(
            VocabularyError, match="Tokenizer: can't tell how its tokens map to bytes"
        ):
            Vocabulary.from_tokenizer(
                tokenizer({"[SEP]": 0, "hello": 1, "##ing": 2}, 0)
            )

    def test_no_tokens(self):
        with pytest.raises(
            VocabularyError, match="Tokenizer: the tokenizer has no tokens"
        ):
            Vocabulary.from_tokenizer(tokenizer({}, 0))


class TestStopTokens:
    def test_none_known(self):
        with pytest.raises(
            VocabularyError, match=r"has no stop token \(pass stop_token_ids"
        ):
            Vocabulary.from_tokenizer(tokenizer({"▁a": 0}, None))
        assert Vocabulary.from_tokenizer(
            tokenizer({"▁a": 0}, None), stop_token_ids=0
        ).stop_token_ids == (0,)

    @pytest.mark.parametrize("stop", [-1, 2, 10**9])
    def test_outside_the_vocabulary(self, stop):
        with pytest.raises(
            VocabularyError,
            match=f"stop token {stop} is outside the vocabulary of 2 tokens",
        ):
            Vocabulary.from_tokens([b"a", b"b"], [stop])

    def test_empty_vocabulary(self):
        with pytest.raises(VocabularyError, match="the vocabulary is empty"):
            Vocabulary.from_tokens([], [0])


class TestWidth:
    vocabulary = Vocabulary.from_tokens(
        [b"a", b"b", b"</s>", b"c", b"", b"<x>"], [2], [5]
    )

    @pytest.mark.parametrize("width", [6, 7, 1024])
    def test_as_wide_or_wider_is_padding(self, width):
        self.vocabulary.check_width(width)

    @pytest.mark.parametrize("width", [4, 5])
    def test_only_control_tokens_and_gaps_may_stick_out(self, width):
        self.vocabulary.check_width(width)

    @pytest.mark.parametrize("width", [0, 2, 3])
    def test_a_text_token_that_sticks_out_is_an_error(self, width):
        with pytest.raises(
            VocabularyError,
            match=f"logits have {width} columns, its tokenizer has 6 tokens",
        ):
            self.vocabulary.check_width(width)

    def test_a_stop_token_that_sticks_out_is_an_error(self):
        with pytest.raises(VocabularyError, match="1 columns"):
            Vocabulary.from_tokens([b"a", b"</s>"], [1]).check_width(1)


class TestSequence:
    def test_ids_stay_as_they_are(self, byte_vocabulary):
        assert byte_vocabulary.sequence([7, 7, 3]) == (7, 7, 3)

    def test_a_control_token_goes_by_its_name(self, demo_tokenizer, demo_vocabulary):
        assert demo_vocabulary.sequence(demo_tokenizer.eos_token) == (
            demo_tokenizer.eos_token_id,
        )

    def test_other_text_is_encoded_without_control_tokens(self, demo_vocabulary):
        ids = demo_vocabulary.sequence("answer: ")
        assert spelled(demo_vocabulary, list(ids)) == b"answer: "
        assert not demo_vocabulary.special_ids & set(ids)

    def test_text_without_an_encoder(self, byte_vocabulary, byte_stop):
        assert byte_vocabulary.sequence("</s>") == (byte_stop,)
        with pytest.raises(
            VocabularyError, match=r"no encoder for text \(give token ids"
        ):
            byte_vocabulary.sequence("text")


class TestFingerprint:
    base = Vocabulary.from_tokens([b"a", b"bc", b"</s>", b"<x>"], [2])

    def test_equal_for_equal_vocabularies(self, demo_tokenizer):
        again = Vocabulary.from_tokens(list(self.base.tokens), (2,))
        assert again == self.base
        assert again.fingerprint == self.base.fingerprint
        first, second = (Vocabulary.from_tokenizer(demo_tokenizer) for _ in range(2))
        assert first.fingerprint == second.fingerprint

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
