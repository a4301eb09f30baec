"""vLLM's OpenAI server under many clients at once, and while its grammar worker
dies."""

import asyncio
import contextlib
import json
import re
from concurrent import futures

import openai
import psutil
import pytest
from vllm_server import metrics_of
from worker_runs import until

from benchmarks.server.clients import asked, soak_crowd
from benchmarks.server.tally import figures

REFUSED_SECONDS = 20
"""As tests/support/short_window says."""


def guided(spec):
    return {"vllm_xargs": {"guided": json.dumps(spec)}}


def complete(client, spec=None, **options):
    body = {
        **(guided(spec) if spec is not None else {}),
        **options.pop("extra_body", {}),
    }
    options = {"max_tokens": 80, "prompt": "It is ", "extra_body": body, **options}
    return client.completions.create(model="demo", **options)


def test_thirty_two_clients_with_mixed_specs_and_aborts(server):
    outcomes = asyncio.run(asked(server.url, soak_crowd(32), 8.0, 5))
    found = figures(outcomes)
    assert (found["invalid"], found["lost"]) == ([], {})
    assert found["ends"]["valid"] > 16
    assert found["ends"]["left"] > 0


def test_a_request_whose_options_leave_no_token_is_answered_with_400_or_an_error_event(
    client, server
):
    spec = {"regex": "(ab){5}"}
    found = {"bad_words": ["a", "aba"]}

    def chat(client, spec, limits, **options):
        messages = [{"role": "user", "content": "Write a record"}]
        body = {**guided(spec), **limits}
        return client.chat.completions.create(
            model="demo", messages=messages, extra_body=body, **options
        )

    def completion(client, spec, limits, **options):
        return complete(client, spec, extra_body=limits, **options)

    for ask in (chat, completion):
        with pytest.raises(
            openai.BadRequestError, match="leave no token that the grammar allows"
        ):
            ask(client, spec, found)
        with pytest.raises(
            openai.APIError, match="leave no token that the grammar allows"
        ):
            list(ask(client, spec, found, stream=True))
    assert re.search(
        r"ERROR \d\d-\d\d .*request \S*cmpl-\S+: output cut off: ",
        server.log.read_text(),
    )
    # min_tokens alone asks for more than there is, which is no failure
    assert (
        complete(client, spec, extra_body={"min_tokens": 20}).choices[0].finish_reason
        == "stop"
    )


def test_while_nothing_can_be_guided_clients_are_told(client, server):
    endless = {"regex": "[ab]{450}"}
    fine = {"choice": ["fine"]}
    most = {"max_tokens": 470}

    def ask(spec, **options):
        try:
            return complete(client, spec, **options).choices[0].finish_reason
        except openai.APIStatusError as error:
            return error.status_code

    def stream():
        try:
            return [
                part.choices[0].finish_reason
                for part in complete(client, endless, **most, stream=True)
            ]
        except openai.APIError as error:
            return str(error)

    killed = set()

    def kills():
        """Whether there was a grammar worker that had not been killed yet."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(server.pid).children(recursive=True):
                if child.name() == "guided-worker" and child.pid not in killed:
                    child.kill()
                    killed.add(child.pid)
                    return True
        return False

    parts = complete(client, endless, **most, stream=True)
    text = next(parts).choices[0].text
    until(kills, 60.0)
    for part in parts:
        text += part.choices[0].text
    assert part.choices[0].finish_reason == "stop"
    assert re.fullmatch("[ab]{450}", text)
    # While no request runs: two workers that end on the rows of one alone would be that
    # request's fault.
    until(kills, 60.0)
    free = {**most, "n": 4, "extra_body": {"ignore_eos": True}}
    with futures.ThreadPoolExecutor(3) as pool:
        full = pool.submit(ask, endless, **most)
        streamed = pool.submit(stream)
        unguided = pool.submit(ask, None, **free)
        running = re.compile(r"^vllm:num_requests_running\{.*\} 6.0$", re.MULTILINE)
        until(lambda: running.search(metrics_of(server)), 60.0)
        until(kills, 60.0)
    assert full.result() == 500
    assert "guided request failed" in streamed.result()
    assert unguided.result() == "length"
    # the engine is asked again after a failure, and the request that comes first does not
    # wait for the answer
    until(lambda: ask(fine) != 500, 10.0)
    for options in ({}, {"stream": True}):
        with pytest.raises(
            openai.APIStatusError, match=r"cannot be served now.*3 times"
        ) as caught:
            complete(client, fine, **options)
        assert caught.value.status_code == 503
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= REFUSED_SECONDS
    assert complete(client).choices[0].finish_reason in ("stop", "length")
    answers = []
    until(lambda: answers.append(ask(fine)) or answers[-1] == "stop", 90.0)
    assert {*answers} <= {503, "stop"}
