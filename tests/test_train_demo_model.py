"""The demo model's training script, and the model it wrote."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
from script_files import load_script

from guided_plugin.demo import DEMOS, MODEL_DIR

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FILES = {
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("scripts/train_demo_model.py")


@pytest.fixture(autouse=True)
def torch_settings():
    """Training sets global switches; put them back for the other tests."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(scope="module")
def shipped():
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        MODEL_DIR, local_files_only=True
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        MODEL_DIR, local_files_only=True, dtype=torch.float32
    )
    return tokenizer, model


def train_quickly(script: ModuleType, out: Path, *more: str) -> Path:
    assert script.main(["--quick", "--threads", "1", "--out", str(out), *more]) == 0
    return out


def test_quick_training_writes_every_file_and_is_deterministic(script, tmp_path):
    first = train_quickly(script, tmp_path / "first")
    second = train_quickly(script, tmp_path / "second")
    other = train_quickly(script, tmp_path / "other", "--seed", "8", "--steps", "1")
    assert {path.name for path in first.iterdir()} == FILES
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    assert (first / "model.safetensors").read_bytes() != (
        other / "model.safetensors"
    ).read_bytes()
    transformers.AutoTokenizer.from_pretrained(first)
    transformers.AutoModelForCausalLM.from_pretrained(first)


@pytest.mark.parametrize("demo", DEMOS, ids=lambda demo: demo.name)
def test_tidy_records_satisfy_the_demo_schemas(demo):
    text = load_script("scripts/demo_text.py")
    jsonschema.Draft202012Validator.check_schema(demo.schema)
    topic = next(topic for topic in text.TOPICS if demo.prompt in topic.intros)
    rng = text.random.Random(3)
    validator = jsonschema.Draft202012Validator(demo.schema)
    for _ in range(100):
        record = json.loads(text.spell(topic.make(rng), text.COMPACT))
        validator.validate(record)
        assert list(record) == list(demo.schema["properties"])


def test_shipped_vocabulary_has_every_byte(script, shipped):
    tokenizer, model = shipped
    vocabulary = tokenizer.get_vocab()
    alphabet = script.pre_tokenizers.ByteLevel.alphabet()
    assert len(alphabet) == 256
    assert set(alphabet) <= vocabulary.keys()
    assert len(vocabulary) == model.config.vocab_size
    assert (
        tokenizer.bos_token,
        tokenizer.eos_token,
        tokenizer.pad_token,
    ) == script.SPECIAL_TOKENS


@pytest.mark.parametrize(
    "text", ['Żółć 日本語 🙂\t{"a":1}\n', *(demo.prompt for demo in DEMOS)]
)
def test_shipped_tokenizer_gives_text_back(shipped, text):
    tokenizer, _ = shipped
    ids = tokenizer(text).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_shipped_model_predicts_fresh_text(script, shipped):
    tokenizer, model = shipped
    loss = script.mean_loss(
        model, tokenizer.backend_tokenizer, seed=424_242, count=1, size=4
    )
    # An untrained model is near the logarithm of the vocabulary size, about 7.3.
    assert loss < 1.2 < 0.25 * math.log(model.config.vocab_size)
