"""V2's own sampler with the plugin's processor in it: which logits are masked, and when
a copy is made."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu.sample.sampler import Sampler as V2Sampler
from vllm_games import SPECS, Request, V2DraftGame, V2Game
from vllm_support import WIDTH, runner_config, runner_params

from guided_plugin.hosts.vllm.logits import reject_cut

pytestmark = pytest.mark.usefixtures("byte_tokenizer")


class _Own:
    """A processor of vLLM's own."""

    __module__ = "vllm.own"

    def __init__(self, apply):
        self.apply = apply


class _Sampling:
    """The parts of V2's sampler that its own code calls here; a temperature of 2 where
    one is asked for."""

    def __init__(self, game, temperatures):
        nothing = SimpleNamespace(apply=lambda *given: None)
        self.copies = 0
        sampler = self.sampler = V2Sampler.__new__(V2Sampler)
        sampler.logits_processors = [_Own(self.copied), game.guide]
        sampler.needs_logits_processing = np.array(
            [index in temperatures for index in range(8)]
        )
        sampler.thinking_budget_state = nothing
        sampler.sampling_states = SimpleNamespace(
            apply_temperature=nothing.apply, apply_min_p=nothing.apply
        )

    def copied(self, logits, context):
        self.copies += 1
        return logits

    def __call__(self, logits, indices):
        rows = torch.tensor(indices, dtype=torch.int32)
        fed = torch.ones(len(indices)).int()
        first = torch.zeros(len(indices)).int()
        return self.sampler.apply_sampling_params(
            logits,
            rows,
            rows,
            rows.numpy(),
            None,
            fed,
            first,
            None,
            skip_top_k_top_p=True,
        )


def entered(game, *specs, **options):
    """The indices of new requests, which the sampler is told of as vLLM does."""
    for number, spec in enumerate(specs, game.count):
        request = Request(number, random.Random(1))
        request.spec, request.params, request.prompt = (
            spec,
            runner_params(spec, **options),
            [1],
        )
        before = set(game.running)
        game.enter(request)
        yield next(iter(set(game.running) - before))
    game.count += len(specs)


@pytest.mark.parametrize("processed", [True, False])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_v2_masks_the_logits_themselves(processed, drafts, dtype):
    # That of raw logprobs too. Where another request needs processing, vLLM works on a
    # copy.
    game = (V2DraftGame if drafts else V2Game)(runner_config(), 1)
    guided, free = entered(game, SPECS[0], None)
    game.guide.apply_staged_writes()
    sampling = _Sampling(game, {free} if processed else {})
    logits = torch.randn(2, WIDTH).to(dtype)
    before = logits.clone()
    sampled = sampling(logits, [guided, free])
    assert sampling.copies == processed
    assert (sampled is logits) != processed
    assert logits[0].isfinite().nonzero().view(-1).tolist() == list(b"abc")
    assert torch.equal(logits[0, list(b"abc")], before[0, list(b"abc")])
    assert torch.equal(logits[1], before[1])
    assert torch.equal(sampled, logits.to(sampled.dtype))


def test_what_the_worker_cut_is_invalid_for_vllms_rejection_sampler():
    # Next to vLLM's own structured output it looks at nothing else.
    runner = SimpleNamespace(
        slots_of=None, invalid_drafts=lambda batch, known: (batch, known)
    )
    sampler = SimpleNamespace(logits_processors=[SimpleNamespace(runner=runner)])
    given = SimpleNamespace(sampler=sampler), "logits", "batch", None, "known"
    assert reject_cut(lambda self, *told: told)(*given) == (
        "logits",
        "batch",
        None,
        ("batch", "known"),
    )
