"""A server with a reasoning parser and a model that thinks for ever: every answer is
whole, and is told as one that was led."""

import json
import pathlib
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jsonschema
import openai
import pytest
from vllm_support import PATIENT

from benchmarks.server.launch import Launch, started
from guided_plugin.demo import MODEL_DIR

pytestmark = pytest.mark.slow

END_OF_TEXT = 1
FORMS = json.loads(pathlib.Path(__file__).with_name("thinking.json").read_text())
SCHEMA = FORMS[0]["response_format"]["json_schema"]["schema"]


@pytest.fixture(scope="module", params=["deepseek_r1", "qwen3", "glm45"])
def client(tmp_path_factory, request):
    """The demo model with a tokenizer that has marks of the reasoning."""
    folder = tmp_path_factory.mktemp("thinking")
    tokenizer = folder / "tokenizer"
    shutil.copytree(MODEL_DIR, tokenizer)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        file = tokenizer / name
        text = file.read_text().replace("<|bos|>", "<think>")
        read = json.loads(text.replace("<|pad|>", "</think>"))
        # else the marks are left out of texts
        for token in read.get("added_tokens", ()):
            token["special"] = token["id"] == END_OF_TEXT
        read.pop("bos_token", None)
        read.pop("pad_token", None)
        file.write_text(json.dumps(read))
    launch = Launch(
        sequences=16,
        tokenizer=str(tokenizer),
        plugin={"close_before_length": True, **PATIENT},
        arguments=f"--reasoning-parser {request.param}",
    )
    with started(launch, folder / "log") as running:
        yield openai.OpenAI(base_url=f"{running.url}/v1", api_key="none")


def asked(client, number, **options):
    """The answer to a request, whole or from a stream: reasoning, content, the
    arguments of its call, how it finished and what stopped it."""
    stream = number % 2 == 1
    options = FORMS[number // 2 % len(FORMS)] | options
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": f"Write {number} <think>"}],
        seed=number,
        logit_bias={str(END_OF_TEXT): -100},
        stream=stream,
        extra_body={"max_tokens": 60 + 3 * (number % 40), **options},
    )
    events = list(answer) if stream else [answer]
    choices = [one for event in events for one in event.choices]
    parts = [choice.delta if stream else choice.message for choice in choices]
    calls = [call for part in parts for call in part.tool_calls or ()]
    return {
        "reasoning": "".join(getattr(one, "reasoning", None) or "" for one in parts),
        "content": "".join(part.content or "" for part in parts),
        "call": "".join(call.function.arguments or "" for call in calls),
        "finish": choices[-1].finish_reason,
        "stopped": choices[-1].stop_reason,
    }


def test_a_model_that_thinks_for_ever_answers_each_request(client):
    with ThreadPoolExecutor(32) as pool:
        for answer in pool.map(partial(asked, client), range(200)):
            check(answer)
            assert ": reasoning" in answer["stopped"], answer


def test_a_client_may_ask_for_less_reasoning(client):
    lengths = []
    for budget in (8, 500):
        answer = asked(client, 1, thinking_token_budget=budget, max_tokens=150)
        check(answer)
        lengths.append(len(answer["reasoning"]))
    assert 8 <= 4 * lengths[0] < lengths[1]


def test_a_stream_without_room_for_the_end_of_its_reasoning_is_refused(client):
    room = 2
    for _ in "12":  # the second time a single token is missing
        with pytest.raises(openai.BadRequestError) as caught:
            asked(client, 1, max_tokens=room)
        room = int(re.search(r"takes (\d+),", str(caught.value))[1]) - 1
    json.loads(asked(client, 1, max_tokens=room + 1)["content"])


def check(answer):
    """Whether an answer is whole, and has reasoning before."""
    jsonschema.validate(json.loads(answer["call"] or answer["content"]), SCHEMA)
    assert answer["finish"] in ("stop", "tool_calls"), answer
    assert answer["reasoning"], answer
