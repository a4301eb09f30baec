"""A third-party plugin hears each step of `generate` once, at the right moment."""

import pytest
import torch
from generate_calls import MIXED
from generating import PROMPTS, SPECS, encoded, random_model
from transformers import LogitsProcessor, StoppingCriteria, set_seed

import guided_plugin as gp
from guided_plugin.errors import PluginError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class StepListener:
    """Notes what the step hooks get, in order, and checks that they come in pairs with
    truthful fields."""

    def __init__(self):
        self.calls = []
        """The names of the hooks; other parties may add theirs."""
        self.steps = []
        self.tokens = []
        """Of each step, one for each row."""
        self.requests = {}
        """The request in each slot."""

    @gp.hookimpl
    def request_added(self, request):
        self.requests[request.slot] = request.request_id

    @gp.hookimpl
    def post_sampling(self, step):
        self.calls.append("post_sampling")
        self.steps.append(step)
        self.tokens.append(step.tokens.tolist())
        assert len(step.slots) == len(step.tokens)

    @gp.hookimpl
    def after_stop_criteria(self, step):
        self.calls.append("after_stop_criteria")
        assert step is self.steps[-1]
        assert step.tokens.tolist() == self.tokens[-1]

    def check_order(self):
        """Each step once, from 0 on, and both hooks for each."""
        assert [step.index for step in self.steps] == list(range(len(self.steps)))
        hooks = ["post_sampling", "after_stop_criteria"]
        assert self.calls == hooks * len(self.steps)


@pytest.fixture
def guide(make_guide, model, mode):
    return make_guide(model, mode=mode)


@pytest.fixture
def listener(guide):
    """Compilers are shared by guides of one tokenizer, so it has to leave again."""
    listener = StepListener()
    guide.compiler.plugins.register(listener)
    yield listener
    guide.compiler.plugins.unregister(listener)


def generate(model, inputs, **options):
    set_seed(0)
    out = model.generate(
        **inputs, **{"max_new_tokens": 24, "do_sample": True, **options}
    )
    return out[:, inputs["input_ids"].shape[1] :]


def by_step(rows):
    return rows.T.tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_each_step_of_generate_once_with_the_tokens_that_were_appended(
    demo_tokenizer, guide, listener, device
):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = random_model(len(demo_tokenizer) + 61).to(device)
    inputs = {
        name: ids.to(device) for name, ids in encoded(demo_tokenizer, PROMPTS).items()
    }
    bare = generate(model, inputs, **guide.generate_kwargs(MIXED))
    listener.check_order()
    assert listener.tokens == by_step(bare)
    guided, free, other = listener.steps[0].slots
    assert free == gp.UNGUIDED
    assert guided != other
    assert listener.requests[guided].endswith("row-0")
    assert listener.requests[other].endswith("row-2")
    assert all(list(step.slots) == [guided, free, other] for step in listener.steps)


def test_the_moments_in_a_step_of_generate(demo_tokenizer, model, guide, listener):
    class Processor(LogitsProcessor):
        def __call__(self, input_ids, scores):
            listener.calls.append("processor")
            return scores

    class Criterion(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            listener.calls.append("criterion")
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    class Streamer:
        def put(self, value):
            listener.calls.append("streamer")

        def end(self):
            pass

    kwargs = guide.generate_kwargs(
        SPECS[2], logits_processor=[Processor()], stopping_criteria=[Criterion()]
    )
    generate(
        model,
        encoded(demo_tokenizer, PROMPTS[:1]),
        max_new_tokens=3,
        streamer=Streamer(),
        **kwargs,
    )
    steps = "".join(f"{name} " for name in listener.calls if name != "streamer").split(
        "processor "
    )
    assert steps[0] == ""
    assert set(steps[1:]) == {"criterion post_sampling after_stop_criteria "}


@pytest.mark.parametrize("hook", ["post_sampling", "after_stop_criteria"])
def test_a_hook_that_raises_ends_its_call_and_is_named(
    demo_tokenizer, model, guide, hook
):
    def fail(self, step):
        raise ZeroDivisionError("oops")

    clumsy = type("Clumsy", (), {hook: gp.hookimpl(fail)})()
    inputs = encoded(demo_tokenizer, PROMPTS)
    kwargs = guide.generate_kwargs(MIXED, reuse=True)
    guide.compiler.plugins.register(clumsy, "clumsy")
    try:
        with pytest.raises(PluginError, match=r"'clumsy'.*oops"):
            generate(model, inputs, **kwargs)
    finally:
        guide.compiler.plugins.unregister(clumsy)
    again = generate(model, inputs, **kwargs)
    assert (
        again.tolist()
        == generate(model, inputs, **guide.generate_kwargs(MIXED)).tolist()
    )
