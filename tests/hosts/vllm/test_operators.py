"""What operators see of vLLM's server: the log, `/metrics`, and answers that name what
nothing enforced."""

import json
import re

import numpy as np
import openai
import pytest
from vllm_server import metrics_of
from worker_runs import until

from guided_plugin.diagnose.server import ask
from guided_plugin.hosts.vllm.headers import UNENFORCED

FINE = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
MESSAGES = [{"role": "user", "content": "Write a record"}]


def guided(spec):
    return {"vllm_xargs": {"guided": json.dumps(spec)}}


def completion(client, **options):
    return client.completions.create(
        model="demo", prompt="Someone: ", max_tokens=40, **options
    )


def form(document):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": document}}


def chat(client, document, **options):
    options = {"model": "demo", "messages": MESSAGES, "max_tokens": 40, **options}
    return client.chat.completions.create(response_format=form(document), **options)


def values(server, name):
    """The values of a metric, by its labels."""
    pattern = re.compile(rf"^guided_plugin_{name}(?:\{{(.*?)\}})? (\S+)$", re.MULTILINE)
    return {
        found[1] or "": float(found[2])
        for found in pattern.finditer(metrics_of(server))
    }


TIMED = ("engine_pipeline", "engine_thread", "mask", "mask_wait")


def counted(server):
    """Requests that were refused, that were admitted, and that the engine has told
    of."""
    requests = values(server, "requests_total").items()
    admitted = [count for name, count in requests if 'outcome="admitted"' in name]
    told = values(server, "engine_requests_total").get('engine="0"', 0)
    refused = dict(requests)['backend="none",outcome="refused"']
    return np.array([refused, sum(admitted), told])


def test_metrics(server, client):
    # of earlier tests some requests were aborted before they came to the engine
    before = counted(server)
    assert chat(client, FINE).choices
    assert completion(client, extra_body=guided({"regex": "[ab]{3}"})).choices
    with pytest.raises(openai.BadRequestError):
        chat(client, {"type": "text"})
    assert [*counted(server) - before][:2] == [1, 2]
    assert values(server, "refusals_total")['reason="SpecError"'] >= 1
    # of both frontends
    until(lambda: np.diff(counted(server) - before)[1] >= 0, 120.0)
    assert np.diff(counted(server))[1] <= 0
    assert values(server, "worker_memory_bytes")['engine="0"'] > 10e6
    assert values(server, "shared_memory_bytes")['engine="0"'] > 0

    # Each step has its times once, in one of the buckets, though two frontends ask for
    # them. Of steps whose requests failed or were aborted some times are missing, or the
    # step is not counted.
    buckets = {
        name: [*values(server, f"{name}_seconds_bucket").values()] for name in TIMED
    }
    steps = values(server, "engine_steps_total")['engine="0"']
    for name, counts in buckets.items():
        assert counts == sorted(counts)
        assert len(counts) == 16
        assert 0 < counts[-1] < 1.5 * steps
        assert values(server, f"{name}_seconds_sum")['engine="0"'] > 0
    assert "vllm:" in metrics_of(server)  # vLLM's own are there as before


def test_the_server_says_that_the_plugin_is_on(server):
    found = ask(server.url)
    assert (
        found.status,
        "is on, in the frontend and in each engine" in found.what,
    ) == ("ok", True), found


def test_the_log(server, client):
    with pytest.raises(openai.BadRequestError):
        completion(
            client,
            extra_body=guided({"json_schema": {"type": "te\nxt\x1b[31m"}}),
            extra_headers={"X-Request-Id": "mine-1"},
        )
    log = server.log.read_text()
    lines = [
        line
        for line in log.splitlines()
        if "guided_plugin" in line and "is on in this" in line
    ]
    frontends = [line for line in lines if "frontend" in line]
    (engine,) = [line for line in lines if "engine" in line]
    assert len(frontends) == 2
    assert all("worker_step_ms = 60000 (GUIDED_PLUGIN)" in line for line in lines)
    for frontend in frontends:
        assert re.search(
            r"INFO \d\d-\d\d \d\d:\d\d:\d\d .*take_over on",
            frontend,
        )
    assert re.search(
        r"INFO \d\d-\d\d \d\d:\d\d:\d\d .*mode process.*threads",
        engine,
    )
    (refused,) = [
        line for line in log.splitlines() if "mine-1" in line and "refused" in line
    ]
    assert re.search(r"INFO \d\d-\d\d \d\d:\d\d:\d\d ", refused)
    assert "\\n" in refused
    assert "\x1b[31mt" not in refused.replace("\x1b[0;36m", "")


def test_each_answer_names_what_nothing_enforced(client, server):
    holds = {
        "type": "array",
        "items": {"enum": ["a", "b"]},
        "contains": {"const": "a"},
    }
    loose = {
        "type": "object",
        "properties": {"tags": {**holds, "maxContains": 1}},
        "required": ["tags"],
    }
    raw = client.with_raw_response
    for schema, told in ((loose, "maxContains"), (FINE, None), (loose, "maxContains")):
        assert chat(raw, schema).headers.get(UNENFORCED) == told
    streamed = chat(raw, loose, stream=True)
    assert streamed.headers.get(UNENFORCED) == "maxContains"
    assert list(streamed.parse())
    assert "because of unenforced_keywords: maxContains" in server.log.read_text()
