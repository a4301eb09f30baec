"""`close_before_length` in `DecodeLoop`: what has room enough ends valid, at the latest
at its limit."""

import dataclasses
import re

import pytest
from closing import CASES, is_valid, least_of
from generating import random_model

import guided_plugin as gp
from guided_plugin.errors import RequestError

PROMPTS = [[5], [7, 8, 9], [11, 3]]
HOW = {
    "inline": {"mode": "inline"},
    "process": {"mode": "process"},
}


@pytest.fixture(scope="module", params=HOW)
def loop(request, demo_tokenizer):
    vocabulary = gp.Vocabulary.from_tokenizer(demo_tokenizer, stop_token_ids=1)
    compiler = gp.GrammarCompiler(
        vocabulary, config=gp.GuidedConfig(isolate_compiles=False)
    )
    made = gp.DecodeLoop(
        random_model(len(demo_tokenizer)), compiler, **HOW[request.param]
    )
    yield made
    made.pipeline.close()


def check(loop, kind, output, start=0):
    assert (output.error, output.stopped) == (None, True)
    tokens = loop.pipeline.compiler.vocabulary.tokens
    assert is_valid(
        kind, b"".join(tokens[token] for token in output.tokens[start:]).decode()
    )


@pytest.mark.parametrize("kind", CASES)
def test_every_output_with_room_enough_ends_valid(loop, kind):
    spec = CASES[kind]
    least = least_of(loop.pipeline, CASES[kind])
    free = dataclasses.replace(spec, close_before_length=False)
    closed = []
    cut = 0
    for seed, room in enumerate(
        (least, least + 1, least + 2, least + 7, 2 * least, 3 * least)
    ):
        options = {"max_new_tokens": room, "temperature": 1.0, "seed": seed}
        outputs = loop.run(PROMPTS, [spec, spec, None], **options)
        for output in outputs[:2]:
            check(loop, kind, output)
            assert len(output.tokens) < room
        closed += [output.closed == "led" for output in outputs[:2]]
        without = loop.run(PROMPTS, [free, free, None], **options)
        cut += sum(not output.stopped for output in without[:2])
        assert not any(output.closed for output in [*without, outputs[2]])
    assert any(closed)
    assert cut > 3, "these limits cut nothing: the test shows nothing"


def test_too_little_room_is_an_error_of_the_row_and_the_number_told_is_enough(loop):
    specs = [CASES["schema"], CASES["choice"], None]
    room = least_of(loop.pipeline, specs[0]) - 1
    refused, choice, free = loop.run(PROMPTS, specs, max_new_tokens=room)
    assert isinstance(refused.error, RequestError)
    assert (refused.tokens, refused.closed, free.error, len(free.tokens)) == (
        (),
        "",
        None,
        room,
    )
    check(loop, "choice", choice)
    told = int(re.search(r"allow at least (\d+)", refused.error.hint)[1])
    (output,) = loop.run(PROMPTS[:1], specs[:1], max_new_tokens=told)
    check(loop, "schema", output)
    assert output.closed == "led"
