"""Distinct items through a whole pipeline: inline, in a worker, with drafts, after a replay."""

from __future__ import annotations

import json

import torch

import guided_plugin as gp
from guided_plugin.grammar.request_state import Phase
from guided_plugin.step import NO_TOKEN

VOCABULARY = gp.Vocabulary.from_tokens(
    [*(bytes([byte]) for byte in range(256)), b'","', b'",', b'"a","', b"</s>"], [259]
)
UNIQUE = {"type": "array", "uniqueItems": True}
SPECS = [
    gp.OutputSpec.json_schema({**UNIQUE, "items": {"type": "string", "maxLength": 1, "pattern": "^[ab]*$"}}),
    gp.OutputSpec.json_schema({**UNIQUE, "items": {"type": "integer", "minimum": 0, "maximum": 50}}),
    gp.OutputSpec.json_schema({"type": "array", "items": {"type": "boolean"}, "maxItems": 9}),
]


def text_of(tokens):
    return b"".join(VOCABULARY.tokens[token] for token in tokens if token not in VOCABULARY.stop_token_ids)


def test_outputs_have_distinct_items(mode):
    compiler = gp.GrammarCompiler(VOCABULARY)
    chance = torch.Generator().manual_seed(3)
    with gp.StepPipeline(compiler, max_slots=6, mode=mode) as pipeline:
        names = [f"r{i}" for i in range(6)]
        slots = [pipeline.add_request(name, SPECS[i % 3]) for i, name in enumerate(names)]
        for step in range(300):
            logits = torch.rand(6, VOCABULARY.size, generator=chance)
            logits[:, ord("]")] -= 1.0 if step < 150 else -1.0
            pipeline.plan(slots)
            pipeline.fill_mask()
            pipeline.apply_mask(logits)
            pipeline.schedule_update(logits.argmax(-1))
            pipeline.finish_update()
            if all(pipeline.phase(name) is Phase.DONE for name in names):
                break
        for i, name in enumerate(names):
            assert pipeline.request(name).error is None
            items = json.loads(text_of(pipeline.tokens(name)))
            assert i % 3 == 2 or len(items) == len(set(items)) > 2


def test_drafts_see_what_they_would_repeat(mode):
    compiler = gp.GrammarCompiler(VOCABULARY)
    with gp.StepPipeline(compiler, max_slots=1, mode=mode, drafts=3) as pipeline:
        slot = pipeline.add_request("one", SPECS[0])
        logits = torch.zeros(4, VOCABULARY.size)
        sampled, seen = list(b'["a"'), []
        while sampled:
            block, sampled = sampled[:4], sampled[4:]
            drafts = list(b',"b') if not sampled else [NO_TOKEN] * 3
            block += [NO_TOKEN] * (4 - len(block))
            masks = pipeline.judge_drafts([slot], torch.tensor([*block, *drafts]), logits)
            seen = [[i for i in range(259) if int(row[i // 32]) >> (i % 32) & 1] for row in masks]
        assert [bytes(i for i in row if i < 256) for row in seen] == [b",]", b'"', b'"b', b'"']
        assert pipeline.tokens("one") == tuple(b'["a"')
