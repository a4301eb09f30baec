"""How many files one step of vLLM's V2 runner goes through in the engine's thread. On a
GPU and on the CPU."""

import pathlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm.v1.worker.gpu_worker import Worker
from vllm_support import WIDTH, runner_config, runner_params, v2_states

import guided_plugin as gp
from guided_plugin.vllm import GuidedLogitsProcessor

pytestmark = pytest.mark.usefixtures("byte_tokenizer")

PACKAGE = pathlib.Path(gp.__file__).parent
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def files_of(call):
    """The package's files whose functions run in `call`, in this thread."""
    found = set()

    def look(frame, event, argument):
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            found.add(str(path.relative_to(PACKAGE)))

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_a_v2_step_goes_through_twelve_files_at_most(device, monkeypatch):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    output = ModelRunnerOutput(req_ids=[], req_id_to_index={})
    monkeypatch.setattr(Worker, "sample_tokens", lambda self, grammar_output: output)
    tokens = torch.zeros(8, 64, dtype=torch.int32, device=device)
    total = torch.ones(8, dtype=torch.int32, device=device)
    states = v2_states(tokens, np.ones(8, np.int32), np.ones(8, np.int32), total)
    guide = GuidedLogitsProcessor(runner_config("process"), states)
    worker = SimpleNamespace(vllm_config=guide.runner.engine.config)
    for index in (2, 5):
        guide.add_request(index, runner_params(gp.OutputSpec.regex("[ab]{40}")))
    rows = torch.tensor([5, 2, 7], device=device)
    batch = np.array([5, 2, 7])

    def step():
        guide.apply_staged_writes()
        guide.runner.mask(
            torch.zeros(3, WIDTH, device=device),
            LogitsContext(rows, rows, batch, *[None] * 4),
        )
        tokens[rows, total[rows].long()] = ord("a")
        total[rows] += 1
        Worker.sample_tokens(worker, None)

    try:
        for _ in range(5):
            step()
        files = files_of(step)
    finally:
        guide.runner.engine.close()
    assert "pipeline/pipeline.py" in files
    assert len(files) <= 12, " ".join(sorted(files))
