"""The step hooks of a third-party plugin, in both of vLLM's model runners."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm.v1.worker.gpu_worker import Worker
from vllm_support import WIDTH, runner_config, runner_params, v2_states

import guided_plugin as gp
from guided_plugin import plugins
from guided_plugin.step import NO_TOKEN, UNGUIDED
from guided_plugin.vllm import GuidedLogitsProcessor

pytestmark = pytest.mark.usefixtures("byte_tokenizer")

AB = gp.OutputSpec.regex("[ab]{40}")
OUTPUT = ModelRunnerOutput(req_ids=[], req_id_to_index={})


class Listener:
    """Notes what it hears."""

    def __init__(self):
        self.heard = []
        self.steps = []

    @gp.hookimpl
    def post_sampling(self, step):
        self.heard.append(("sampled", step.index))
        self.steps.append(step)

    @gp.hookimpl
    def after_stop_criteria(self, step):
        assert step is self.steps[-1]
        self.heard.append(("appended", step.index))


@pytest.fixture
def install(monkeypatch):
    """Installs a plugin as third parties' are, and vLLM's methods that say what the
    test gives them."""
    sampled = SimpleNamespace(tokens=None, counts=None)

    def forward(self, logits, sampling_metadata):
        return SimpleNamespace(sampled_token_ids=sampled.tokens)

    def sample(self, hidden_states, input_batch, grammar_output):
        return SimpleNamespace(sampled_token_ids=sampled.tokens), sampled.counts, None

    def sample_tokens(self, grammar_output):
        return OUTPUT

    monkeypatch.setattr(Sampler, "forward", forward)
    monkeypatch.setattr(GPUModelRunner, "sample", sample)
    monkeypatch.setattr(Worker, "sample_tokens", sample_tokens)

    def install(plugin):
        point = SimpleNamespace(name="listener", load=lambda: plugin, dist=None)
        monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
        return sampled

    return install


def end_step(guide):
    Worker.sample_tokens(SimpleNamespace(vllm_config=guide.runner.engine.config), None)


def v1_sample(guide, tokens, sampled):
    sampled.tokens = torch.tensor(tokens, dtype=torch.int32).view(-1, 1)
    processors = SimpleNamespace(non_argmax_invariant=[guide])
    Sampler.forward(
        None, None, SimpleNamespace(logitsprocs=processors, max_num_logprobs=None)
    )


def test_v1_fires_after_the_sampler_and_after_the_worker(install):
    listener = Listener()
    sampled = install(listener)
    guide = GuidedLogitsProcessor(runner_config(), torch.device("cpu"), False)
    output = []
    guide.update_state(BatchUpdate(2, [], [(0, runner_params(AB), [1], output)], []))
    (slot,) = guide.runner._slots
    for index in range(3):
        guide.apply(torch.zeros(2, WIDTH))
        v1_sample(guide, [ord("a"), index], sampled)
        assert listener.heard[-1] == ("sampled", index)
        output.append(ord("a"))
        end_step(guide)
        assert listener.heard[-1] == ("appended", index)
        guide.update_state(None)
    assert len(listener.heard) == 6
    assert [step.slots for step in listener.steps] == [[slot, UNGUIDED]] * 3
    assert [step.tokens.tolist() for step in listener.steps] == [
        [ord("a"), index] for index in range(3)
    ]
    assert (
        guide.runner.engine.pipeline.tokens(guide.runner._rows[0].guided.request_id)
        == (ord("a"),) * 3
    )


@pytest.fixture
def v2():
    """A V2 runner's tables with one guided request at index 3; makes a processor."""
    tokens = torch.zeros(8, 64, dtype=torch.int32)
    total = torch.zeros(8, dtype=torch.int32)
    total[3] = 1
    states = v2_states(tokens, np.ones(8, np.int32), np.ones(8, np.int32), total)

    def make():
        guide = GuidedLogitsProcessor(runner_config(), states)
        guide.add_request(3, runner_params(AB))
        return guide

    return SimpleNamespace(make=make, tokens=tokens, total=total)


def v2_step(guide, indices):
    guide.apply_staged_writes()
    mapping = torch.tensor(indices)
    guide.apply(
        torch.zeros(len(indices), WIDTH),
        LogitsContext(mapping, mapping, mapping.numpy(), *[None] * 4),
    )
    runner = SimpleNamespace(
        sampler=SimpleNamespace(logits_processors=[object(), guide])
    )
    GPUModelRunner.sample(
        runner, None, SimpleNamespace(idx_mapping_np=mapping.numpy()), None
    )


def test_v2_fires_after_the_sampler_and_after_the_worker(install, v2):
    listener = Listener()
    sampled = install(listener)
    guide = v2.make()
    for index in range(3):
        sampled.tokens = torch.tensor([[7], [ord("b")], [9]])
        sampled.counts = torch.tensor([1, 1, 0])
        v2_step(guide, [5, 3, 1])
        assert listener.heard[-1] == ("sampled", index)
        v2.tokens[3, v2.total[3]] = ord("b")
        v2.total[3] += 1
        end_step(guide)
        assert listener.heard[-1] == ("appended", index)
    assert len(listener.heard) == 6
    slot = guide.runner.requests.slots[3]
    assert [step.slots for step in listener.steps] == [[UNGUIDED, slot, UNGUIDED]] * 3
    # The last row is in the middle of its prompt.
    assert [step.tokens.tolist() for step in listener.steps] == [
        [7, ord("b"), NO_TOKEN]
    ] * 3


def test_v2_rejected_drafts_are_no_tokens(install, v2):
    listener = Listener()
    sampled = install(listener)
    guide = v2.make()
    sampled.tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    sampled.counts = torch.tensor([2, 3])
    v2_step(guide, [3, 4])
    assert listener.steps[0].tokens.tolist() == [[1, 2, NO_TOKEN], [4, 5, 6]]


def test_without_a_listener_nothing_is_wrapped_for_it(install, v2):
    class Deaf:
        pass

    install(Deaf())
    before = GPUModelRunner.sample
    guide = v2.make()
    assert GPUModelRunner.sample is before
    assert guide.runner.engine.hooks is None


def test_a_plugin_that_fails_is_named_once_and_ends_nothing(install, caplog):
    class Fails:
        @gp.hookimpl
        def post_sampling(self, step):
            raise ZeroDivisionError("clumsy")

    sampled = install(Fails())
    guide = GuidedLogitsProcessor(runner_config(), torch.device("cpu"), False)
    update = BatchUpdate(1, [], [(0, runner_params(AB), [1], [])], [])
    with caplog.at_level(logging.ERROR):
        for changes in (update, None, None):
            guide.update_state(changes)
            guide.apply(torch.zeros(1, WIDTH))
            v1_sample(guide, [ord("a")], sampled)
            end_step(guide)
    (record,) = caplog.records
    assert "plugin 'listener'" in record.getMessage()
    assert "clumsy" in record.getMessage()
