"""The step hooks of a third-party plugin, in both of vLLM's model runners."""

import logging
import re
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker
from vllm_runners import V1, V2
from vllm_support import runner_config, runner_params, v2_context

import guided_plugin as gp
from guided_plugin import plugins
from guided_plugin.step import NO_TOKEN, UNGUIDED

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

    def sample(self, hidden_states, input_batch, grammar_output):
        output = SimpleNamespace(sampled_token_ids=sampled.tokens)
        return output, sampled.counts, None

    monkeypatch.setattr(GPUModelRunner, "sample", sample)
    monkeypatch.setattr(Worker, "sample_tokens", lambda self, grammar_output: OUTPUT)

    def install(plugin):
        point = SimpleNamespace(name="listener", load=lambda: plugin, dist=None)
        monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
        return sampled

    return install


def end_step(played):
    Worker.sample_tokens(SimpleNamespace(vllm_config=played.engine.config), None)


REQUESTS = [runner_params(AB), runner_params(None)]


class V1Steps(V1):
    """A V1 runner with a guided request in the first of two rows."""

    def __init__(self, sampled):
        super().__init__(runner_config(), ["one", "free"], REQUESTS)

    def step(self):
        """The slots and tokens of a step, as plugins hear of them."""
        tokens = [token for (token,) in self.sample()]
        self.tokens[0].append(tokens[0])
        return [*self.guide.runner._slots, UNGUIDED], tokens


class V2Steps(V2):
    """A V2 runner's tables with a guided request at index 5."""

    def __init__(self, sampled):
        super().__init__(runner_config(), ["one", "free"], REQUESTS)
        self.sampled = sampled

    def step(self):
        token = ord("a")
        # the last row is in the middle of its prompt
        self.sample([2, 5, 1], [[7], [token], [9]], [1, 1, 0])
        self.took([[token], [7]])
        slot = self.guide.runner.requests.slots[5]
        return [UNGUIDED, slot, UNGUIDED], [7, token, NO_TOKEN]

    def sample(self, indices, tokens, counts):
        self.sampled.tokens = torch.tensor(tokens)
        self.sampled.counts = torch.tensor(counts)
        self.guide.apply_staged_writes()
        context = v2_context(indices)
        self.guide.runner.mask(self.logits(indices), context)
        sampler = SimpleNamespace(logits_processors=[object(), self.guide])
        GPUModelRunner.sample(
            SimpleNamespace(sampler=sampler),
            None,
            context,
            None,
        )


@pytest.mark.parametrize("kind", [V1Steps, V2Steps])
def test_plugins_hear_of_a_step_after_the_sampler_and_after_the_worker(install, kind):
    listener = Listener()
    played = kind(install(listener))
    for index in range(3):
        slots, tokens = played.step()
        assert listener.heard[-1] == ("sampled", index)
        step = listener.steps[-1]
        assert (step.slots, step.tokens.tolist()) == (slots, tokens)
        end_step(played)
        assert listener.heard[-1] == ("appended", index)
    assert len(listener.heard) == 6


def test_v2_rejected_drafts_are_no_tokens(install):
    listener = Listener()
    played = V2Steps(install(listener))
    played.sample([5, 4], [[1, 2, 3], [4, 5, 6]], [2, 3])
    assert listener.steps[0].tokens.tolist() == [[1, 2, NO_TOKEN], [4, 5, 6]]


def test_without_a_listener_nothing_is_wrapped_for_it(install):
    sampled = install(object())
    before = GPUModelRunner.sample
    played = V2Steps(sampled)
    assert GPUModelRunner.sample is before
    assert played.engine.hooks is None


def test_a_plugin_that_fails_is_named_once_and_ends_nothing(install, caplog):
    class Fails:
        @gp.hookimpl
        def post_sampling(self, step):
            raise ZeroDivisionError("clumsy")

    played = V1Steps(install(Fails()))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            played.step()
            end_step(played)
    (record,) = caplog.records
    assert re.search("plugin 'listener'.*clumsy", record.getMessage())
