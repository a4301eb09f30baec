"""Guides that are used again, in several threads, and after failures."""

import os
import signal
import threading

import pytest
import torch
from generate_calls import MIXED, generate
from generating import PROMPTS, SPECS, encoded, recheck, same_until_stop
from transformers import LogitsProcessor, StoppingCriteria

from guided_plugin.errors import PipelineError


def test_a_second_use_is_an_error(tokenizer, model, guide):
    inputs = encoded(tokenizer, PROMPTS)
    kwargs = guide.generate_kwargs(SPECS)
    generate(model, inputs, **kwargs)
    with pytest.raises(PipelineError, match="second generate call") as caught:
        generate(model, inputs, **kwargs)
    assert "reuse=True" in caught.value.hint


def test_reuse(tokenizer, vocabulary, model, guide):
    inputs = encoded(tokenizer, PROMPTS)
    kwargs = guide.generate_kwargs(MIXED, reuse=True)
    for seed in range(4):
        rows = generate(model, inputs, seed=seed, do_sample=True, **kwargs)
        recheck(vocabulary, MIXED, rows)
        fresh = generate(
            model, inputs, seed=seed, do_sample=True, **guide.generate_kwargs(MIXED)
        )
        assert rows.tolist() == fresh.tolist()


def test_reuse_after_a_call_that_broke_off(tokenizer, vocabulary, model, guide):
    class Breaks(StoppingCriteria):
        steps = 0

        def __call__(self, input_ids, scores, **kwargs):
            self.steps += 1
            if self.steps == 3:
                raise RuntimeError("out of memory")
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    kwargs = guide.generate_kwargs(SPECS, stopping_criteria=[Breaks()], reuse=True)
    inputs = encoded(tokenizer, PROMPTS)
    with pytest.raises(RuntimeError, match="out of memory"):
        generate(model, inputs, **kwargs)
    recheck(vocabulary, SPECS, generate(model, inputs, **kwargs))


def test_more_rows_than_slots(tokenizer, vocabulary, model, guide):
    prompts = [f"prompt {n}" for n in range(70)]
    rows = generate(
        model, encoded(tokenizer, prompts), **guide.generate_kwargs(SPECS[2])
    )
    assert all(recheck(vocabulary, [SPECS[2]] * 70, rows))


def test_threads(tokenizer, vocabulary, model, make_guide, mode):
    guide = make_guide(model, mode=mode)
    found = {}
    errors = []

    def work(number):
        try:
            inputs = encoded(tokenizer, PROMPTS)
            for _ in range(3):
                rows = model.generate(
                    **inputs, max_new_tokens=40, **guide.generate_kwargs(MIXED)
                )
                found.setdefault(number, []).append(
                    rows[:, inputs["input_ids"].shape[1] :]
                )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    everything = [rows.tolist() for several in found.values() for rows in several]
    assert len(everything) == 9
    assert all(rows == everything[0] for rows in everything)
    recheck(vocabulary, MIXED, torch.tensor(everything[0]))


def test_a_closed_guide(tokenizer, model, make_guide, vocabulary):
    guide = make_guide(model)
    running = guide.generate_kwargs(SPECS)
    guide.close()
    with pytest.raises(PipelineError, match="closed") as caught:
        guide.generate_kwargs(SPECS)
    assert caught.value.hint
    recheck(vocabulary, SPECS, generate(model, encoded(tokenizer, PROMPTS), **running))


@pytest.mark.parametrize("when", ["processor", "criterion"])
def test_a_worker_killed_in_a_step(tokenizer, vocabulary, model, make_guide, when):
    guide = make_guide(model, mode="process")
    inputs = encoded(tokenizer, PROMPTS)
    steps = []

    def kill():
        steps.append(None)
        if len(steps) in (2, 5):
            os.kill(
                kwargs.call._loans[0].pipeline.runtime.supervisor.worker_pid,
                signal.SIGKILL,
            )

    class Killer(LogitsProcessor):
        def __call__(self, input_ids, scores):
            kill()
            return scores

    class Stopper(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            kill()
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    options = {"stopping_criteria": [Stopper()]} if when == "criterion" else {}
    kwargs = guide.generate_kwargs(MIXED, **options)
    if when == "processor":
        # Between the mask and the sampling: the tokens go to a worker that is gone.
        kwargs["logits_processor"].append(Killer())
    rows = generate(model, inputs, do_sample=True, **kwargs)
    assert kwargs.call._loans[0].pipeline.metrics().worker.restarts >= 1
    recheck(vocabulary, MIXED, rows)
    assert kwargs.errors == {}
    assert same_until_stop(rows[1], generate(model, inputs, do_sample=True)[1])
