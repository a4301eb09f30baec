"""What operators and clients of vLLM's server see: statuses before streams, reasons, the log, `/metrics`."""

import json
import re
import time

import pytest

pytest.importorskip("vllm")

import openai

CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "zz"]}
FINE = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
MESSAGES = [{"role": "user", "content": "Write a record"}]


def guided(spec):
    return {"vllm_xargs": {"guided": json.dumps(spec)}}


def chat(client, **options):
    return client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=40, **options)


def completion(client, **options):
    return client.completions.create(model="demo", prompt="Someone: ", max_tokens=40, **options)


def response(client, **options):
    return client.responses.create(model="demo", input="Write a record", max_output_tokens=40, **options)


def schema(document):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": document}}


REFUSED = {
    "a chat, response_format": (chat, {"response_format": schema(CLOSED)}),
    "a chat, vllm_xargs": (chat, {"extra_body": guided({"json_schema": CLOSED})}),
    "a completion, response_format": (completion, {"extra_body": {"response_format": schema(CLOSED)}}),
    "a completion, vllm_xargs": (completion, {"extra_body": guided({"json_schema": CLOSED})}),
    "a response, text.format": (
        response,
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": CLOSED}}},
    ),
    "a response, vllm_xargs": (response, {"extra_body": guided({"json_schema": CLOSED})}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_spec_has_status_400_before_a_stream_begins(client, case, stream):
    ask, options = REFUSED[case]
    with pytest.raises(openai.BadRequestError) as caught:  # raised by the call: no stream was begun
        ask(client, stream=stream, **options)
    assert caught.value.status_code == 400
    told = str(caught.value)
    assert "#/required" in told
    assert "zz" in told
    assert "strict: false" in told


def test_tools_are_named_in_refusals(client):
    tool = {"type": "function", "function": {"name": "save_it", "parameters": CLOSED, "strict": True}}
    for choice in ("required", {"type": "function", "function": {"name": "save_it"}}):
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="zz"):
                chat(client, tools=[tool], tool_choice=choice, stream=stream)
    with pytest.raises(openai.BadRequestError, match="save_it"):
        chat(client, tools=[tool], tool_choice="required")


@pytest.mark.parametrize("ask", [chat, completion, response])
def test_streams_of_specs_that_are_served(client, ask):
    options = {"extra_body": guided({"choice": ["left", "right"]})}
    events = list(ask(client, stream=True, **options))
    text = json.dumps([event.model_dump(mode="json") for event in events])
    assert "left" in text or "right" in text or '"le' in text or '"r' in text


def test_a_background_response_is_refused_before_it_is_queued(client):
    with pytest.raises(openai.BadRequestError):
        response(client, background=True, store=True, extra_body=guided({"json_schema": CLOSED}))


def test_a_request_that_fails_while_it_runs_says_why(server, client):
    options = {"extra_body": {**guided({"choice": ["left"]}), "allowed_token_ids": [5, 6]}}
    for ask in (chat, completion):
        with pytest.raises(openai.InternalServerError, match="leave no token that the grammar allows"):
            ask(client, **options)
        with pytest.raises(openai.APIError, match="leave no token that the grammar allows"):
            list(ask(client, stream=True, **options))
    assert re.search(r"ERROR \d\d-\d\d .*output cut off: request \S*cmpl-", server.log.read_text())


def values(server, name):
    """The values of a metric, by its labels."""
    pattern = re.compile(rf"^{name}(?:\{{(.*?)\}})? (\S+)$", re.MULTILINE)
    return {found[1] or "": float(found[2]) for found in pattern.finditer(server.get("/metrics"))}


def test_metrics(server, client):
    name = "guided_plugin"
    before = values(server, f"{name}_requests_total")
    assert chat(client, response_format=schema(FINE)).choices
    assert completion(client, extra_body=guided({"regex": "[ab]{3}"})).choices
    with pytest.raises(openai.BadRequestError):
        chat(client, response_format=schema({"type": "text"}))
    after = values(server, f"{name}_requests_total")
    more = {labels: after[labels] - before.get(labels, 0) for labels in after}
    assert sum(count for labels, count in more.items() if 'outcome="admitted"' in labels) == 2
    assert more['backend="none",outcome="refused"'] == 1
    refusals = values(server, f"{name}_refusals_total")
    assert refusals['reason="SpecError"'] >= 1
    assert any('backend="llguidance"' in labels for labels in values(server, f"{name}_compile_seconds_count"))
    deadline = time.monotonic() + 120
    while values(server, f"{name}_engine_requests").get('engine="0"', 0) < 2:
        assert time.monotonic() < deadline
        assert completion(client, extra_body=guided({"regex": "[ab]{3}"})).choices
        time.sleep(1)
    assert values(server, f"{name}_engine_steps")['engine="0"'] >= 2
    assert values(server, f"{name}_worker_memory_bytes")['engine="0"'] > 10e6
    assert values(server, f"{name}_shared_memory_bytes")['engine="0"'] > 0
    assert 'engine="0"' in values(server, f"{name}_worker_restarts")
    assert 'engine="0"' in values(server, f"{name}_mask_wait_seconds")
    assert 'engine="0"' in values(server, f"{name}_worker_learnt_bytes")
    assert "vllm:" in server.get("/metrics")  # vLLM's own are there as before


def test_the_log(server, client):
    with pytest.raises(openai.BadRequestError):
        completion(
            client,
            extra_body=guided({"json_schema": {"type": "te\nxt\x1b[31m"}}),
            extra_headers={"X-Request-Id": "mine-1"},
        )
    log = server.log.read_text()
    lines = [line for line in log.splitlines() if "guided_plugin" in line and "is on in this" in line]
    (frontend,) = [line for line in lines if "frontend" in line]
    (engine,) = [line for line in lines if "engine" in line]
    assert re.search(r"INFO \d\d-\d\d \d\d:\d\d:\d\d .*take_over on.*xgrammar \d.*llguidance \d", frontend)
    assert re.search(r"INFO \d\d-\d\d \d\d:\d\d:\d\d .*mode process.*MiB of shared memory.*threads", engine)
    (refused,) = [line for line in log.splitlines() if "mine-1" in line and "refused" in line]
    assert re.search(r"INFO \d\d-\d\d \d\d:\d\d:\d\d ", refused)
    assert "\\n" in refused
    assert "\x1b[31mt" not in refused.replace("\x1b[0;36m", "")
