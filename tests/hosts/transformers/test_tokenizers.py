"""Real vocabularies with tiny random models: every row is checked again."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from generating import SPECS, random_model, recheck, same_until_stop
from real_vocabularies import VOCABULARIES
from transformers import set_seed

import guided_plugin as gp

pytestmark = pytest.mark.slow


@functools.cache
def parts(name: str) -> Any:
    vocabulary, width = VOCABULARIES[name]()
    assert vocabulary.size <= width
    model = random_model(
        width, eos_token_id=list(vocabulary.stop_token_ids), pad_token_id=0
    )
    return vocabulary, model


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_row_is_accepted_by_a_fresh_matcher(name):
    vocabulary, model = parts(name)
    # A text of several scripts, and a schema; one row unguided; twice each, as several
    # sequences have it.
    specs = [SPECS[0], None, SPECS[1], gp.OutputSpec.choice(["Grüße, 世界!", "नमस्ते"])]
    prompts = torch.tensor(
        [[0, 0, 300, 301], [0, 302, 303, 304], [305, 306, 307, 308], [0, 0, 0, 309]]
    )
    attention = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]])
    stops = vocabulary.stop_token_ids
    options = {
        "max_new_tokens": 60,
        "do_sample": True,
        "num_return_sequences": 2,
        "pad_token_id": stops[0],
    }
    with gp.Guide(
        vocabulary,
        model=model,
        config=gp.GuidedConfig(threads=2, isolate_compiles=False),
    ) as guide:
        set_seed(1)
        kwargs = guide.generate_kwargs(specs)
        rows = model.generate(prompts, attention_mask=attention, **options, **kwargs)[
            :, 4:
        ]
        assert kwargs.errors == {}
    set_seed(1)
    bare = model.generate(prompts, attention_mask=attention, **options)[:, 4:]
    ended = recheck(vocabulary, [spec for spec in specs for _ in range(2)], rows)
    assert ended[6:] == [True, True]
    for row in (2, 3):
        assert same_until_stop(rows[row], bare[row], stops)
    spelled = [
        b"".join(vocabulary.tokens[t] for t in row if t not in stops)
        for row in rows[6:].tolist()
    ]
    assert {text.decode() for text in spelled} <= {"Grüße, 世界!", "नमस्ते"}
