"""What `generate` may do that can't be guided: refused before the first step."""

import pytest
import torch
from generate_calls import generate
from generating import PROMPTS, SPECS, encoded, random_model
from transformers import LogitsProcessor, StoppingCriteria

from guided_plugin.errors import ConfigError
from guided_plugin.hosts.transformers import call as transformers_step

UNGUIDABLE = {
    "beam search": {"num_beams": 3},
    "beam sampling": {"num_beams": 2, "do_sample": True},
    "beams returned": {"num_beams": 4, "num_return_sequences": 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "assisted": {"assistant_model": True},
}


@pytest.mark.parametrize("how", UNGUIDABLE)
def test_what_moves_rows_is_refused(tokenizer, model, guide, how, monkeypatch):
    options = dict(UNGUIDABLE[how])
    if "assistant_model" in options:
        options["assistant_model"] = random_model(model.config.vocab_size, seed=5)
    kwargs = guide.generate_kwargs(SPECS[0])
    taken = []
    monkeypatch.setattr(
        transformers_step.Run, "after_sampling", lambda *given: taken.append(given)
    )
    with pytest.raises(ConfigError, match="can't be guided") as caught:
        generate(model, encoded(tokenizer, PROMPTS[:1]), **options, **kwargs)
    assert caught.value.hint
    assert taken == []


@pytest.mark.parametrize("name", ["forced_bos_token_id", "forced_eos_token_id"])
def test_a_forced_token_is_refused(tokenizer, model, guide, name):
    kwargs = guide.generate_kwargs(SPECS[0])
    with pytest.raises(ConfigError, match=f"forced by {name} can't be guided"):
        generate(model, encoded(tokenizer, PROMPTS[:1]), **{name: 9}, **kwargs)


def test_a_loop_of_its_own_is_refused(tokenizer, model, guide):
    [processor] = guide.generate_kwargs(SPECS[0])["logits_processor"]
    with pytest.raises(ConfigError, match="no decoding method of transformers"):
        processor(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 99))


def test_the_prompts_logits_are_not_kept(tokenizer, model, guide):
    # Up to Python 3.12, reading a frame's variables leaves references to all of them in
    # the frame.
    import gc
    import weakref

    alive = []

    class Watch(LogitsProcessor):
        def __call__(self, input_ids, scores):
            alive.append(weakref.ref(scores))
            return scores.clone()

    class Look(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            gc.collect()
            alive.append(
                sum(isinstance(one, weakref.ref) and one() is not None for one in alive)
            )
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    kwargs = guide.generate_kwargs(
        SPECS, logits_processor=[Watch()], stopping_criteria=[Look()]
    )
    generate(model, encoded(tokenizer, PROMPTS), max_new_tokens=3, **kwargs)
    # The loop's own variable is one; the first step's logits must be gone in the
    # second.
    assert [one for one in alive if isinstance(one, int)][1:] == [1, 1]
