"""A server with a reasoning parser and a model that thinks for ever: every answer is
whole, and is told as one that was led."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pytest
from vllm_server import serving
from vllm_support import PATIENT

from guided_plugin.demo import MODEL_DIR

pytestmark = pytest.mark.slow

REQUESTS = 20
END_OF_TEXT = 1
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array"}},
    "required": ["name", "tags"],
}
TOOL = {"type": "function", "function": {"name": "save", "parameters": SCHEMA}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "save"}}
FORMS = [
    {"response_format": FORMAT},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": NAMED},
    {"response_format": {"type": "json_object"}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The demo model with a tokenizer that has marks of the reasoning."""
    folder = tmp_path_factory.mktemp("thinking")
    tokenizer = folder / "tokenizer"
    shutil.copytree(MODEL_DIR, tokenizer)
    names = {"<|bos|>": "<think>", "<|pad|>": "</think>"}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (tokenizer / name).read_text()
        for before, after in names.items():
            text = text.replace(before, after)
        (tokenizer / name).write_text(text)
    plain(tokenizer / "tokenizer.json")
    arguments = ["--reasoning-parser", "deepseek_r1", "--tokenizer", str(tokenizer)]
    options = {"close_before_length": True, **PATIENT}
    with serving(folder, options, *arguments) as running:
        yield running


def plain(file):
    """Have a tokenizer write the marks of the reasoning into texts."""
    read = json.loads(file.read_text())
    for token in read["added_tokens"]:
        token["special"] = token["id"] == END_OF_TEXT
    file.write_text(json.dumps(read))
    settings = file.with_name("tokenizer_config.json")
    read = json.loads(settings.read_text())
    del read["bos_token"], read["pad_token"]
    settings.write_text(json.dumps(read))


def asked(server, number, **options):
    """The answer to a request, whole or from a stream: reasoning, content, the
    arguments of its call, how it finished and what stopped it."""
    stream = number % 2 == 1
    form = FORMS[number // 2 % len(FORMS)]
    body = {"max_tokens": 60 + 3 * (number % 40), **form, **options}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        answer = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": f"Write {number} <think>"}],
            seed=number,
            logit_bias={str(END_OF_TEXT): -100},
            stream=stream,
            extra_body=body,
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
        "body": body,
    }


def test_a_model_that_thinks_for_ever_answers_each_request(server):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: asked(server, number), range(REQUESTS)))
    for answer in answers:
        check(answer)
        assert answer["stopped"] == "close_before_length", answer
    assert len(answers) == REQUESTS


def test_a_client_may_ask_for_less_reasoning(server):
    lengths = []
    for budget in (8, 500):
        answer = asked(server, 1, thinking_token_budget=budget, max_tokens=150)
        check(answer)
        lengths.append(len(answer["reasoning"]))
    assert 8 <= 4 * lengths[0] < lengths[1]


def check(answer):
    """Whether an answer is whole, and has reasoning before."""
    tools = "tools" in answer["body"]
    whole = json.loads(answer["call" if tools else "content"])
    free = answer["body"].get("response_format") == {"type": "json_object"}
    jsonschema.validate(whole, {"type": "object"} if free else SCHEMA)
    assert answer["finish"] in ("stop", "tool_calls"), answer
    assert answer["reasoning"], answer
