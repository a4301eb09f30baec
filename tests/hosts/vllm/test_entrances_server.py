"""Every endpoint of two API servers of one engine: what comes out is constrained or
refused, never free."""

import json
import re
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

PATTERN = "[xyz]{6,14}"
BROKEN = "(x"
REASON = "a ( without its )"
MESSAGES = [{"role": "user", "content": "Write"}]


def post(server, path, body):
    """The answer's status and text. Each call is a connection of its own: either server
    may get it."""
    data = json.dumps({"model": "demo", **body}).encode()
    request = urllib.request.Request(
        server.url + path, data, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=240) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def served(server, path, body):
    """The answer, which must have status 200."""
    status, text = post(server, path, body)
    assert status == 200, text
    return json.loads(text)


def refuses(server, path, body, reason=REASON):
    """Whole and streamed: no stream begins before its spec is admitted."""
    for stream in (False, True):
        status, text = post(server, path, {**body, "stream": stream})
        assert status == 400, text
        assert reason in text, text


def guided(text):
    return re.fullmatch(PATTERN, text) is not None


ENTRANCES = {
    "chat": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "max_completion_tokens": 30},
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    "completion": (
        "/v1/completions",
        {"prompt": "Write: ", "max_tokens": 30},
        lambda answer: answer["choices"][0]["text"],
    ),
    "response": (
        "/v1/responses",
        {"input": "Write", "max_output_tokens": 30},
        lambda answer: "".join(
            part["text"]
            for item in answer["output"]
            for part in item.get("content") or ()
        ),
    ),
    "message": (
        "/v1/messages",
        {"messages": MESSAGES, "max_tokens": 30},
        lambda answer: "".join(part["text"] for part in answer["content"]),
    ),
}


def schema(regex):
    return {"type": "string", "pattern": f"^{regex}$"}


def response_format(regex):
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema(regex)},
        }
    }


def xargs(regex):
    return {"vllm_xargs": {"guided": json.dumps({"regex": regex})}}


FORMS = {
    **{(name, "vllm_xargs"): xargs for name in ENTRANCES},
    **{
        (name, "structured_outputs"): lambda regex: {
            "structured_outputs": {"regex": regex}
        }
        for name in ("chat", "completion", "response")
    },
    **{(name, "response_format"): response_format for name in ("chat", "completion")},
    ("response", "text.format"): lambda regex: {
        "text": {
            "format": {"type": "json_schema", "name": "x", "schema": schema(regex)}
        }
    },
    ("message", "output_config"): lambda regex: {
        "output_config": {"format": {"type": "json_schema", "schema": schema(regex)}}
    },
}
"""How each entrance takes a spec."""


@pytest.mark.parametrize(("entrance", "form"), FORMS)
def test_endpoints_guide_or_refuse(server, entrance, form):
    (path, body, text_of), make = ENTRANCES[entrance], FORMS[entrance, form]
    with ThreadPoolExecutor(2) as pool:
        texts = [
            text_of(one)
            for one in pool.map(
                lambda _: served(server, path, body | make(PATTERN)), "12"
            )
        ]
    if form not in ("vllm_xargs", "structured_outputs"):
        texts = [json.loads(text) for text in texts]
    assert all(map(guided, texts)), texts
    status, text = post(server, path, body | make(PATTERN) | {"stream": True})
    assert (status, "error" in text) == (200, False), text
    refuses(server, path, body | make(BROKEN))


CLOSED = {"type": "array", "items": {"type": "string"}, "minItems": 2}
LED = '"close_before_length"'
"""As answers write it."""


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_outputs_are_complete_at_their_limit_or_refused_before_the_first_byte(
    server, entrance
):
    path, body, text_of = ENTRANCES[entrance]
    form = json.dumps({"json_schema": CLOSED, "close_before_length": True})
    limit = next(name for name in body if name.startswith("max_"))
    asked = {**body, "vllm_xargs": {"guided": form}}
    text = post(server, path, {**asked, limit: 2})[1]
    least = int(re.search(r"leaves 2 tokens; .* takes (\d+)", text)[1])
    assert entrance == "message" or f'"param":"{limit}"' in text, text
    refuses(server, path, {**asked, limit: least - 1}, f"leaves {least - 1} tokens")
    for room in (least, least + 1, least + 9, 40):
        answer = served(server, path, {**asked, limit: room})
        jsonschema.validate(json.loads(text_of(answer)), CLOSED)
        status, text = post(server, path, {**asked, limit: room, "stream": True})
        assert (status, "error" in text, "length" in text.replace(LED, "")) == (
            200,
            False,
            False,
        ), text
        if room == least and entrance != "response":  # responses have no place for it
            assert [LED in one for one in (text, json.dumps(answer))] == [True, True], (
                text,
                answer,
            )


def test_a_prompt_that_leaves_too_little_room_is_refused_before_the_first_byte(server):
    with urllib.request.urlopen(f"{server.url}/v1/models") as models:
        long = [5] * (json.load(models)["data"][0]["max_model_len"] - 3)
    form = {"json_schema": CLOSED, "close_before_length": True}
    body = {
        "token_ids": long,
        "sampling_params": {"max_tokens": 100, "extra_args": {"guided": form}},
    }
    refuses(server, "/inference/v1/generate", body, "leaves 3 tokens")


def test_a_batch_of_chats_is_guided_or_refused(server):
    path = "/v1/chat/completions/batch"
    body = {"messages": [MESSAGES, MESSAGES], "max_tokens": 30}
    answer = served(server, path, {**body, "structured_outputs": {"regex": PATTERN}})
    assert [guided(choice["message"]["content"]) for choice in answer["choices"]] == [
        True,
        True,
    ]
    status, text = post(server, path, {**body, "structured_outputs": {"regex": BROKEN}})
    assert (status, REASON in text) == (400, True), text


@pytest.mark.parametrize(
    "asked",
    [
        lambda regex: {"structured_outputs": {"regex": regex}},
        lambda regex: {"extra_args": {"guided": {"regex": regex}}},
    ],
    ids=["structured_outputs", "extra_args"],
)
def test_tokens_in_tokens_out_is_guided_or_refused(server, asked):
    path = "/inference/v1/generate"
    prompt = {"token_ids": [5, 6]}
    answer = served(
        server,
        path,
        {**prompt, "sampling_params": {"max_tokens": 30, **asked(PATTERN)}},
    )
    tokens = answer["choices"][0]["token_ids"]
    assert guided(served(server, "/detokenize", {"tokens": tokens[:-1]})["prompt"]), (
        answer
    )
    refuses(
        server, path, {**prompt, "sampling_params": {"max_tokens": 30, **asked(BROKEN)}}
    )


def test_a_background_response_is_refused_before_it_is_queued(server):
    path, body, _ = ENTRANCES["response"]
    assert (
        post(server, path, body | xargs(BROKEN) | {"background": True, "store": True})[
            0
        ]
        == 400
    )
