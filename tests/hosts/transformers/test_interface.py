"""What the host relies on in transformers. When one of these fails, a new version has
changed under it.

The version range is in pyproject.toml; docs/operations.md says which versions these
tests were run with.
"""

import inspect

import pytest
import torch
from generating import random_model
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
)
from transformers.generation import utils

from guided_plugin.hosts.transformers.surroundings import DECODERS, surroundings


class Recorder:
    """Everything that `generate` says to a processor and a criterion, in order."""

    def __init__(self):
        self.calls = []

    def pair(self):
        outer = self

        class Processor(LogitsProcessor):
            def __call__(self, input_ids, scores):
                outer.calls.append(("processor", input_ids, scores, surroundings(self)))
                return scores

        class Criterion(StoppingCriteria):
            def __call__(self, input_ids, scores, **kwargs):
                outer.calls.append(("criterion", input_ids, scores, None))
                return torch.zeros(input_ids.shape[0], dtype=torch.bool)

        return {"logits_processor": [Processor()], "stopping_criteria": [Criterion()]}


@pytest.fixture(scope="module")
def model():
    return random_model(80)


INPUTS = {
    "input_ids": torch.tensor([[2, 5, 6], [7, 8, 9]]),
    "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]),
}


@pytest.mark.parametrize("sample", [False, True])
def test_processor_and_criterion_take_turns_on_the_same_token_ids(model, sample):
    recorder = Recorder()
    out = model.generate(
        **INPUTS,
        max_new_tokens=4,
        do_sample=sample,
        eos_token_id=None,
        **recorder.pair(),
    )
    assert [call[0] for call in recorder.calls] == ["processor", "criterion"] * 4
    for step in range(3):
        assert recorder.calls[2 * step + 1][1] is recorder.calls[2 * step + 2][1]
    assert torch.equal(recorder.calls[-1][1], out)
    for _, ids, scores, _ in recorder.calls[::2]:
        assert scores.shape == (2, 80)
        assert scores.dtype == torch.float32
        assert scores.device == ids.device


def test_scores_are_a_copy_of_the_models_logits(model):
    # They are masked in place: what the model or its cache keeps must not change.
    kept = []
    forward = model.forward

    def spy(*args, **kwargs):
        kept.append(forward(*args, **kwargs))
        return kept[-1]

    class Destroy(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores.fill_(0.0)

    model.forward = spy
    try:
        model.generate(**INPUTS, max_new_tokens=2, logits_processor=[Destroy()])
    finally:
        del model.forward
    assert all(out.logits.abs().sum() > 0 for out in kept)


def test_users_processors_come_before_the_warpers_and_after_the_rest(model):
    class Mine(LogitsProcessor):
        def __call__(self, input_ids, scores):
            return scores

    config = GenerationConfig(
        do_sample=True,
        temperature=0.5,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.2,
        eos_token_id=1,
    )
    config._eos_token_tensor = torch.tensor([1])
    chain = model._get_logits_processor(
        config,
        input_ids_seq_length=3,
        logits_processor=LogitsProcessorList([Mine()]),
        device="cpu",
    )
    names = [type(one).__name__ for one in chain]
    assert names[0] == "RepetitionPenaltyLogitsProcessor"
    assert names[1] == "Mine"
    assert all(name.endswith("Warper") for name in names[2:])
    assert len(names) == 6


def test_the_frame_of_a_decoding_method_tells_its_config(model):
    recorder = Recorder()
    model.generate(
        **INPUTS,
        max_new_tokens=1,
        eos_token_id=[3, 4],
        pad_token_id=2,
        do_sample=True,
        **recorder.pair(),
    )
    found = recorder.calls[0][3]
    assert found.pads == {2}
    assert (found.sequences, found.max_length) == (1, 4)
    assert (found.keeps_logits, found.first) == (False, True)


def test_the_decoding_methods_that_are_refused_have_these_names(model):
    methods = (
        {str(name) for name in utils.GENERATION_MODES_MAPPING.values()}
        if hasattr(utils, "GENERATION_MODES_MAPPING")
        else {"_sample", "_beam_search", "_assisted_decoding"}
    )
    own = {
        name
        for name in methods
        if name.startswith("_") and hasattr(utils.GenerationMixin, name)
    }
    assert {"_sample", *DECODERS} <= own
    for name in ("_sample", *DECODERS):
        parameters = inspect.signature(getattr(utils.GenerationMixin, name)).parameters
        assert {"logits_processor", "stopping_criteria", "generation_config"} <= set(
            parameters
        )
    # A decoding method that is new here has not been looked at.
    assert own - {"_sample", *DECODERS} <= {
        "_contrastive_search",
        "_group_beam_search",
        "_constrained_beam_search",
        "_dola_decoding",
    }
