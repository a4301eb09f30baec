"""V2's own sampler with the plugin's processor in it: which logits are masked, and when
a copy is made."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from vllm.v1.worker.gpu.sample.sampler import Sampler as V2Sampler
from vllm_runners import V2, V2Drafts
from vllm_support import WIDTH, runner_config

import guided_plugin as gp
from guided_plugin.hosts.vllm.logits import reject_cut

pytestmark = pytest.mark.usefixtures("byte_tokenizer")


def sampled(guide, own, logits, indices, temperatures):
    """What V2's own code makes of logits: with a processor of vLLM's own, and a
    temperature of 2 for some requests."""
    nothing = SimpleNamespace(apply=lambda *given: None)
    sampler = V2Sampler.__new__(V2Sampler)
    sampler.logits_processors = [SimpleNamespace(apply=own), guide]
    sampler.needs_logits_processing = np.isin(range(8), temperatures)
    sampler.thinking_budget_state = nothing
    sampler.sampling_states = SimpleNamespace(
        apply_temperature=nothing.apply, apply_min_p=nothing.apply
    )
    rows = torch.tensor(indices, dtype=torch.int32)
    return sampler.apply_sampling_params(
        logits,
        rows,
        rows,
        rows.numpy(),
        None,
        torch.ones_like(rows),
        torch.zeros_like(rows),
        None,
        skip_top_k_top_p=True,
    )


@pytest.mark.parametrize("processed", [True, False])
@pytest.mark.parametrize("kind", [V2, V2Drafts])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_v2_masks_the_logits_themselves(play, processed, kind, dtype):
    # That of raw logprobs too. Where another request needs processing, vLLM works on a
    # copy.
    asked = {
        "guided": {"spec": gp.OutputSpec.regex("[a-c]{3}")},
        "free": {"spec": None},
    }
    played = play(kind, runner_config(), **asked)
    played.guide.apply_staged_writes()
    own = Mock(side_effect=lambda logits, context: logits)
    logits = torch.randn(2, WIDTH).to(dtype)
    before = logits.clone()
    temperatures = played.places[1:] if processed else []
    found = sampled(played.guide, own, logits, played.places, temperatures)
    assert own.called == processed
    assert (found is logits) != processed
    assert logits[0].isfinite().nonzero().view(-1).tolist() == list(b"abc")
    assert torch.equal(logits[0, list(b"abc")], before[0, list(b"abc")])
    assert torch.equal(logits[1], before[1])
    assert torch.equal(found, logits.to(found.dtype))


def test_what_the_worker_cut_is_invalid_for_vllms_rejection_sampler():
    # Next to vLLM's own structured output it looks at nothing else.
    class Runner(SimpleNamespace):
        __module__ = "guided_plugin.hosts.vllm.drafts"

    ours = Runner(invalid_drafts=lambda batch, known: (batch, known))
    runners = ours, SimpleNamespace(requests="another package's")
    sampler = SimpleNamespace(
        logits_processors=[SimpleNamespace(runner=one) for one in runners]
    )
    given = SimpleNamespace(sampler=sampler), "logits", "batch", None, "known"
    assert reject_cut(*given, original=lambda self, *told: told) == (
        "logits",
        "batch",
        None,
        ("batch", "known"),
    )
