"""How many files one step of vLLM's V2 runner goes through in the engine's thread, on a
GPU and on the CPU; and what an admission does in a frontend."""

import pathlib
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm.v1.worker.gpu_worker import Worker
from vllm_support import (
    SMALL,
    WIDTH,
    config,
    engine_request,
    params_of,
    runner_config,
    runner_params,
    v2_states,
)

import guided_plugin as gp
from guided_plugin.grammar.llguidance.backend import LLGuidanceBackend
from guided_plugin.hosts.vllm.admission import Gate
from guided_plugin.vllm import GuidedLogitsProcessor

pytestmark = pytest.mark.usefixtures("byte_tokenizer")

PACKAGE = pathlib.Path(gp.__file__).parent
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def calls_of(call):
    """The calls of the package's functions in `call`, in this thread, by file."""
    found = Counter()

    def look(frame, event, argument):
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            found[str(path.relative_to(PACKAGE))] += 1

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_a_v2_step_goes_through_thirteen_files_at_most(device, monkeypatch):
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
        files = calls_of(step)
    finally:
        guide.runner.engine.close()
    assert "pipeline/pipeline.py" in files
    assert len(files) <= 13, " ".join(sorted(files))


@pytest.mark.parametrize(
    ("properties", "built", "most"),
    [
        ({"a": {"type": "string"}, "b": {"type": "integer"}}, 0, 299),
        ({"a": {"type": "string"}, "b": {"type": "integer", "multipleOf": 10}}, 1, 368),
    ],
)
def test_an_admission_is_short(properties, built, most, monkeypatch):
    """What is known to compile is built where it is loaded alone."""
    gate = Gate(config(SMALL))
    gate.specs.compiler.warm_up()
    texts = []
    monkeypatch.setattr(
        LLGuidanceBackend, "_first", lambda self, *text: texts.append(text)
    )

    def admit():
        schema = {"type": "object", "properties": properties}
        params = gate.admit(params_of({"json_schema": schema}))
        gate.complete(engine_request(params, [1]))

    new = calls_of(admit)
    assert len(texts) == built
    assert new.total() <= most
    assert len(new) <= 29 + 3 * built
    assert calls_of(admit).total() <= 15
