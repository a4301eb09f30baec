"""Specs for which an output was once wrong, or a refusal misleading, inline and in a
worker.

They are in `hard_specs.json`. What is right comes from the JSON Schema standard, the
EBNF and the regular expressions themselves. Each text is decoded token by token in
three tokenizations, so that one token may close an object and its array at once.
"""

import json
from pathlib import Path
from random import Random

import pytest
import torch

import guided_plugin as gp
from guided_plugin.errors import GuidedError

_PIECES = """"," },{ ],[ }] ]} "},{" ":" "}] [{ {" é ü École 12 e1 00"""
TOKENS = [
    *(bytes([byte]) for byte in range(256)),
    b"<|im_end|>",
    b"<|eot|>",
    b"<think>",
    *_PIECES.encode().split(),
]
END = 256
TEXTS = range(259, len(TOKENS))
"""Tokens of several bytes."""
VOCABULARY = gp.Vocabulary.from_tokens(TOKENS, [END, 257], [258])
TABLES = json.loads(Path(__file__).with_name("hard_specs.json").read_bytes())
MANY = {
    f"p{i}": {"anyOf": [{"type": "string"}, {"type": "integer"}]} for i in range(3300)
}
TABLES["texts"].append(
    [
        {
            "json_schema": {"type": "object", "properties": MANY, "minProperties": 1},
            "whitespace": "compact",
            "strict": False,
        },
        ['{"p1":1,"p2":"a"}'],
        ["{}"],
    ]
)


@pytest.fixture(scope="module", params=["inline", "process"])
def pipeline(request):
    compiler = gp.GrammarCompiler(VOCABULARY, config=gp.GuidedConfig(threads=1))
    with gp.StepPipeline(compiler, max_slots=1, mode=request.param) as found:
        yield found


def tokenizations(text):
    """Its bytes, the longest tokens from left to right, and tokens merged at random."""
    data = text.encode()
    yield list(data)
    for share, chance in ((1.0, Random(text)), (0.5, Random(text))):
        tokens = []
        at = 0
        while at < len(data):
            longer = [one for one in TEXTS if data.startswith(TOKENS[one], at)]
            merged = longer and chance.random() < share
            tokens.append(
                max(longer, key=lambda i: len(TOKENS[i])) if merged else data[at]
            )
            at += len(TOKENS[tokens[-1]])
        yield tokens


def ends(pipeline, spec, tokens):
    """Whether a text is a whole output."""
    slot = pipeline.add_request("one", spec)
    try:
        for token in (*tokens, END):
            pipeline.plan([slot])
            pipeline.fill_mask()
            masked = pipeline.apply_mask(torch.zeros(1, VOCABULARY.size))
            if not masked[0, token].isfinite():
                return False
            pipeline.schedule_update(torch.tensor([token]))
            pipeline.finish_update()
        return True
    finally:
        pipeline.remove_request("one")


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    TABLES["texts"],
    ids=[str(form)[:60] for form, *_ in TABLES["texts"]],
)
def test_takes_what_satisfies_it_and_nothing_else(pipeline, form, good, bad):
    spec = gp.OutputSpec.parse(form)
    assert spec is not None
    for text in (*good, *bad):
        for tokens in tokenizations(text):
            assert ends(pipeline, spec, tokens) == (text in good), (text, tokens)


@pytest.mark.parametrize("name", TABLES["refused"])
def test_is_refused_with_its_place_and_reason(pipeline, name):
    form, where, says = TABLES["refused"][name]
    with pytest.raises(GuidedError) as caught:
        pipeline.add_request("one", gp.OutputSpec.parse(form))
    assert caught.value.where.startswith(where)
    assert says in caught.value.what
    assert "nothing" not in str(caught.value)
