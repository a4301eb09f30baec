"""`close_before_length` in `DecodeLoop`: what has room enough ends valid, at the latest
at its limit."""

import dataclasses
import math
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
ENDS = {
    "many": ("tag", [[token] for token in range(20, 40)]),
    "one": ("choice", [20]),
    "two": ("tag", [20, 21]),
    "repeated": ("choice", [20, 20, 21, 20, 20, 22]),
    "several": ("tag", [[20, 21, 22], [23, 20]]),
    "kept": ("choice", [{"tokens": [30], "kept": True}, {"tokens": [20, 21]}]),
}
"""What ends the reasoning: a random model comes to one of many, sometimes."""


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
        outputs = loop.run(
            PROMPTS, [spec, spec, None], ignore_stop=seed % 2 == 1, **options
        )
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


@pytest.mark.parametrize(("kind", "ends"), ENDS.values(), ids=ENDS)
def test_an_output_that_thinks_too_long_is_led_to_its_answer(loop, kind, ends):
    spec = dataclasses.replace(CASES[kind], start_after=ends)
    ends = [list(one.tokens) for one in spec.start_after if not one.kept]
    shortest = min(map(len, ends))
    least = least_of(loop.pipeline, spec)
    led = 0
    for seed, more in enumerate((0, 1, 7, 50)):
        room = shortest + least + more
        options = {"max_new_tokens": room, "temperature": 1.0, "seed": seed}
        for output in loop.run(PROMPTS, [spec] * 3, **options):
            if output.error is not None:
                assert "ended before" in str(output.error), output.error
                continue
            start = next(
                at
                for at in range(1, room + 1)
                if any(list(output.tokens[:at][-len(end) :]) == end for end in ends)
            )
            check(loop, kind, output, start)
            latest = room - max(least, math.ceil(room / 5))
            assert start <= latest
            led += start == latest
            assert output.closed == "led" or start < latest
    assert led > 3
    (refused,) = loop.run(PROMPTS[:1], [spec], max_new_tokens=shortest + least - 1)
    assert f"allow at least {shortest + least}" in str(refused.error)
