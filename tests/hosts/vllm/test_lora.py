"""LoRA in the real vLLM on the CPU: rows with and without an adapter, guided and not,
in one batch.

In float32 the best token leads by more than the shape of a batch can change, so that
outputs can be compared.
"""

import asyncio
import dataclasses
import json

import pytest
import torch
from generating import PROMPTS, recheck
from generating import SPECS as ANY_SPACE
from safetensors.torch import load_file, save_file
from vllm.lora.request import LoRARequest
from vllm_support import params_of

import guided_plugin as gp
from guided_plugin.demo import MODEL_DIR

# A model that the adapter confuses writes all the whitespace that it may, and comes to
# no end.
SPECS = [dataclasses.replace(spec, whitespace="compact") for spec in ANY_SPACE]
ROWS = [
    (prompt, spec, with_adapter)
    for prompt, guided in zip(PROMPTS, SPECS, strict=True)
    for spec in (guided, None)
    for with_adapter in (True, False)
]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """Rank one and random, on every projection, large enough to change what the model
    writes."""
    folder = tmp_path_factory.mktemp("adapter")
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, weight in load_file(MODEL_DIR / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            height, width = weight.shape
            module = "base_model.model." + name.removesuffix(".weight")
            tensors[module + ".lora_A.weight"] = 0.3 * torch.randn(
                1, width, generator=generator
            )
            tensors[module + ".lora_B.weight"] = 0.3 * torch.randn(
                height, 1, generator=generator
            )
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = sorted({name.split(".")[-3] for name in tensors})
    options = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(options))
    return LoRARequest("random", 1, str(folder))


def generate(async_llm, adapter, *, guided):
    """All rows, greedily; with `guided` false without their specs."""
    engine, run = async_llm

    async def one(number, prompt, spec, with_adapter):
        form = spec.to_dict() if guided and spec is not None else None
        params = params_of(form, temperature=0.0, max_tokens=40)
        name = f"row {number} {guided}"
        lora = adapter if with_adapter else None
        async for output in engine.generate(prompt, params, name, lora_request=lora):
            last = output
        return last.outputs[0]

    async def answers():
        return await asyncio.gather(
            *(one(number, *row) for number, row in enumerate(ROWS))
        )

    return run(answers())


def test_guided_rows_are_valid_and_unguided_ones_as_they_were(async_llm, adapter):
    plain = generate(async_llm, adapter, guided=False)
    mixed = generate(async_llm, adapter, guided=True)
    vocabulary = gp.Vocabulary.from_tokenizer(async_llm[0].get_tokenizer())
    for (_, spec, _), before, after in zip(ROWS, plain, mixed, strict=True):
        if spec is None:
            assert after.token_ids == before.token_ids, after.text
        else:
            assert recheck(vocabulary, [spec], torch.tensor([after.token_ids])) == [
                True
            ]
            assert after.finish_reason == "stop"
    # Each row with the adapter stands before the same one without it.
    pairs = range(0, len(ROWS), 2)
    assert all(plain[at].token_ids != plain[at + 1].token_ids for at in pairs)
    changed = [
        ROWS[at][1] for at in pairs if mixed[at].token_ids != mixed[at + 1].token_ids
    ]
    # a choice leaves little to change
    assert {SPECS[0], SPECS[1], None} <= set(changed)
