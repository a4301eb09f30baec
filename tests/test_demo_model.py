"""The model that the demo ships."""

import pytest

from guided_plugin.demo import DEMOS, MODEL_DIR

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(MODEL_DIR, local_files_only=True)


def test_its_vocabulary_has_every_byte(tokenizer):
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = set(ByteLevel.alphabet())
    assert len(alphabet) == 256
    assert alphabet <= tokenizer.get_vocab().keys()


@pytest.mark.parametrize(
    "text", ["Żółć 日本語 🙂\t{}\n", *(one.prompt for one in DEMOS)]
)
def test_its_tokenizer_gives_text_back(tokenizer, text):
    tokens = tokenizer(text).input_ids
    assert tokens[0] == tokenizer.bos_token_id
    assert tokenizer.decode(tokens, skip_special_tokens=True) == text
