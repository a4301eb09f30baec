"""Every endpoint of two API servers of one engine: what comes out is constrained or
refused, never free."""

import json
import pathlib
import re
from functools import reduce
from operator import getitem

import httpx
import jsonschema
import pytest

PATTERN = "[xyz]{6,14}"
BROKEN = "(x"
REASON = "a ( without its )"
ENTRANCES = json.loads(pathlib.Path(__file__).with_name("entrances.json").read_text())
"""By each way to give a spec: the path, where its answer has the output, and a request
for a text of `PATTERN`."""


def answers(server, path, body, status=200):
    """What it answers whole and streamed, each over a connection of its own: either
    server may get it."""
    for stream in (False, True):
        asked = {"model": "demo", "stream": stream, **body}
        answer = httpx.post(server.url + path, json=asked, timeout=240)
        assert answer.status_code == status, answer.text
        yield answer.text


def served(server, path, body):
    whole, streamed = answers(server, path, body)
    assert "error" not in streamed
    return json.loads(whole), streamed


def refuses(server, path, body, reason=REASON):
    """No stream begins before its spec is admitted."""
    for text in answers(server, path, body, 400):
        assert reason in text, text
    return text


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_endpoints_guide_or_refuse(server, entrance):
    path, place, body = ENTRANCES[entrance]
    asked = json.dumps(body)
    answer, _ = served(server, path, json.loads(asked.replace("PATTERN", PATTERN)))
    found = reduce(getitem, place, answer)
    if path == "/inference/v1/generate":
        tokens = {"model": "demo", "tokens": found[:-1]}
        found = httpx.post(f"{server.url}/detokenize", json=tokens).json()["prompt"]
    if "schema" in asked:
        found = json.loads(found)
    assert re.fullmatch(PATTERN, found)
    refuses(server, path, json.loads(asked.replace("PATTERN", BROKEN)))


CLOSED = {"type": "array", "items": {"type": "string"}, "minItems": 2}
FORM = {"json_schema": CLOSED, "close_before_length": True}
LED = '"close_before_length"'
"""As answers write it."""


@pytest.mark.parametrize("entrance", ["chat", "completion", "response", "message"])
def test_outputs_are_complete_at_their_limit_or_refused_before_the_first_byte(
    server, entrance
):
    path, place, body = ENTRANCES[entrance]
    limit = next(name for name in body if name.startswith("max_"))
    asked = {**body, "vllm_xargs": {"guided": json.dumps(FORM)}}
    text = refuses(server, path, {**asked, limit: 2}, "leaves 2 tokens")
    least = int(re.search(r"takes (\d+)", text)[1])
    assert entrance == "message" or f'"param":"{limit}"' in text, text
    refuses(server, path, {**asked, limit: least - 1}, f"leaves {least - 1} tokens")
    for room in (least, least + 1, least + 9, 40):
        answer, streamed = served(server, path, {**asked, limit: room})
        jsonschema.validate(json.loads(reduce(getitem, place, answer)), CLOSED)
        assert "length" not in streamed.replace(LED, "")
        if room == least and entrance != "response":  # responses have no place for it
            assert LED in streamed
            assert LED in json.dumps(answer)


def test_a_prompt_that_leaves_too_little_room_is_refused_before_the_first_byte(server):
    models = httpx.get(f"{server.url}/v1/models").json()
    body = {
        "token_ids": [5] * (models["data"][0]["max_model_len"] - 3),
        "sampling_params": {"max_tokens": 100, "extra_args": {"guided": FORM}},
    }
    refuses(server, "/inference/v1/generate", body, "leaves 3 tokens")


def test_a_background_response_is_refused_before_it_is_queued(server):
    path, _, body = ENTRANCES["response"]
    wrong = {"vllm_xargs": {"guided": json.dumps({"regex": BROKEN})}}
    refuses(server, path, {**body, **wrong, "background": True, "store": True})
