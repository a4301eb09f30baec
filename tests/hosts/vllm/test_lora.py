"""LoRA in the real vLLM on the CPU: rows with and without an adapter, guided and not, in one batch.

In float32 the best token leads by more than the shape of a batch can change, so that outputs can be compared.
"""

import json

import pytest

pytest.importorskip("vllm")

import torch
from generating import PROMPTS, SPECS, recheck
from safetensors.torch import load_file, save_file
from vllm import LLM
from vllm.lora.request import LoRARequest
from vllm_support import params_of, runner

import guided_plugin as gp
from guided_plugin.demo import MODEL_DIR
from guided_plugin.vllm import GuidedLogitsProcessor

ROWS = [
    (prompt, spec, with_adapter)
    for prompt, guided in zip(PROMPTS, SPECS, strict=True)
    for spec in (guided, None)
    for with_adapter in (True, False)
]


@pytest.fixture(scope="module")
def llm():
    made = LLM(
        str(MODEL_DIR),
        dtype="float32",
        max_model_len=512,
        max_num_seqs=6,
        enforce_eager=True,
        async_scheduling=True,
        enable_chunked_prefill=True,
        max_num_batched_tokens=32,
        enable_lora=True,
        max_lora_rank=1,
        # On the CPU, vLLM gives rows without an adapter that of the last slot if any row of a step has one.
        # With a single slot the adapter would change them too; with two, the last one is empty.
        max_loras=2,
        logits_processors=[GuidedLogitsProcessor],
        additional_config={
            "guided_plugin": {
                "mode": "process",
                "isolate_compiles": False,
                "worker_step_ms": 60_000,
                "worker_grammar_ms": 60_000,
            }
        },
    )
    yield made
    runner(made).engine.close()


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """Rank one and random, on every projection, large enough to change what the model writes."""
    folder = tmp_path_factory.mktemp("adapter")
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, weight in load_file(MODEL_DIR / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            height, width = weight.shape
            module = "base_model.model." + name.removesuffix(".weight")
            tensors[module + ".lora_A.weight"] = 0.3 * torch.randn(1, width, generator=generator)
            tensors[module + ".lora_B.weight"] = 0.3 * torch.randn(height, 1, generator=generator)
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = sorted({name.split(".")[-3] for name in tensors})
    options = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(options))
    return LoRARequest("random", 1, str(folder))


def generate(llm, adapter, *, guided):
    """All rows, greedily; with `guided` false without their specs."""
    outputs = llm.generate(
        [prompt for prompt, _, _ in ROWS],
        [
            params_of(spec.to_dict() if guided and spec is not None else None, temperature=0.0, max_tokens=40)
            for _, spec, _ in ROWS
        ],
        lora_request=[adapter if with_adapter else None for _, _, with_adapter in ROWS],
        use_tqdm=False,
    )
    return [output.outputs[0] for output in outputs]


def test_guided_rows_are_valid_and_unguided_ones_as_they_were(llm, adapter):
    plain = generate(llm, adapter, guided=False)
    mixed = generate(llm, adapter, guided=True)
    vocabulary = gp.Vocabulary.from_tokenizer(llm.get_tokenizer())
    for (_, spec, _), before, after in zip(ROWS, plain, mixed, strict=True):
        if spec is None:
            assert after.token_ids == before.token_ids, after.text
        else:
            assert recheck(vocabulary, [spec], torch.tensor([after.token_ids])) == [True]
            assert after.finish_reason == "stop"
    # Each row with the adapter stands before the same one without it.
    pairs = range(0, len(ROWS), 2)
    assert all(plain[at].token_ids != plain[at + 1].token_ids for at in pairs)
    changed = [ROWS[at][1] for at in pairs if mixed[at].token_ids != mixed[at + 1].token_ids]
    assert {SPECS[0], SPECS[1], None} <= set(changed)  # a choice leaves little to change
    figures = llm.collective_rpc("guided_metrics")[0][0]
    assert figures["added"] >= sum(spec is not None for _, spec, _ in ROWS)
    assert figures["failed"] == 0
    assert figures["mode"] == "process"
