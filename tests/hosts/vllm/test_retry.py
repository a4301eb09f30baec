"""`Retry-After`: on the answers with status 503 that the package gives, and on no others."""

import asyncio
import math
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.testclient import TestClient
from vllm import SamplingParams
from vllm.entrypoints.launchers import app as vllm_app
from vllm.exceptions import QueueOverflowError
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm_support import SMALL, config

from guided_plugin.errors import BusyError
from guided_plugin.hosts.vllm import admission as vllm_admission
from guided_plugin.hosts.vllm import questions as vllm_health
from guided_plugin.hosts.vllm.asked import refusal
from guided_plugin.hosts.vllm.names import When
from guided_plugin.hosts.vllm.patches import patch
from guided_plugin.hosts.vllm.questions import Health
from guided_plugin.hosts.vllm.telling import UNENFORCED, RetryAfter, tell_unenforced, unavailable

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:  # before 0.33
    from vllm.entrypoints.launchers.cli_args import make_arg_parser

HTTP = {"type": "http"}
BUSY = BusyError("no room")


def start(status):
    return {"type": "http.response.start", "status": status, "headers": [(b"a", b"b")]}


def sent(application, scope=HTTP):
    """What an application has sent through the middleware."""
    messages = []

    async def send(message):
        messages.append(message)

    asyncio.run(RetryAfter(application)(scope, None, send))
    return messages


def answering(status, *refusals):
    """An application that refuses its request, for each of these times, and then answers."""

    async def application(scope, receive, send):
        for seconds in refusals:
            unavailable("busy", seconds)
        await send(start(status))

    return application


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.0, b"1"), (-3.0, b"1"), (1.0, b"1"), (33.2, b"34"), (60.0, b"60"), (math.inf, b"60")],
)
def test_a_refused_request_is_told_when_to_come_again(seconds, told):
    assert sent(answering(503, seconds)) == [
        {**start(503), "headers": [(b"a", b"b"), (b"retry-after", told)]}
    ]


def test_of_several_refusals_the_longest_counts():
    assert sent(answering(503, 3, 9, 5))[0]["headers"][-1] == (b"retry-after", b"9")


@pytest.mark.parametrize("application", [answering(503), answering(400, 5), answering(200, 5)])
def test_other_answers_are_as_they_were(application):
    (message,) = sent(application)
    assert message["headers"] == [(b"a", b"b")]


def test_a_stream_that_has_begun_is_as_it_was():
    messages = [start(200), *({"type": "http.response.body", "body": b"%d" % n} for n in range(3))]

    async def application(scope, receive, send):
        await send(messages[0])
        unavailable("busy", 5)
        for message in messages[1:]:
            await send(message)

    assert all(one is other for one, other in zip(sent(application), messages, strict=True))


def test_what_is_no_request_passes_by():
    async def application(scope, receive, send):
        unavailable("busy", 5)
        await send(start(503))

    assert sent(application, {"type": "websocket"}) == [start(503)]


def test_requests_share_no_note_and_tasks_of_one_do():
    """As vLLM's server runs them: a request in a task, and its prompts in tasks of that."""

    async def refuses(seconds):
        await asyncio.sleep(0)
        unavailable("busy", seconds)

    async def request(seconds):
        messages = []

        async def application(scope, receive, send):
            await asyncio.gather(*(refuses(one) for one in seconds))
            await asyncio.sleep(0)
            await send(start(503))

        async def send(message):
            messages.append(message)

        await RetryAfter(application)(HTTP, None, send)
        return messages[0]["headers"][1:]

    async def many():
        return await asyncio.gather(*(request(seconds) for seconds in ([7, 8], [], [9])))

    assert asyncio.run(many()) == [[(b"retry-after", b"8")], [], [(b"retry-after", b"9")]]


def test_outside_of_a_server_nothing_is_noted():
    assert unavailable("busy", 5).http_status == 503
    assert refusal(BUSY).http_status == 503


@pytest.fixture
def client(monkeypatch):
    """vLLM's own app, without an engine, with paths that answer as an engine's would."""
    monkeypatch.setattr(vllm_app, "init_entrypoints_middleware", vllm_app.init_entrypoints_middleware)
    patch(When.LOADED)
    args = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    app = vllm_app.build_app(args, ("generate",), None)

    @app.get("/ours")
    async def ours():
        raise refusal(BUSY)

    @app.get("/theirs")
    async def theirs():
        raise QueueOverflowError

    return TestClient(app, raise_server_exceptions=False)


def test_vllms_own_app_adds_it_to_our_answers_alone(client):
    ours, theirs = client.get("/ours"), client.get("/theirs")
    assert (ours.status_code, ours.headers["retry-after"]) == (503, "1")
    assert "no room" in ours.text
    assert theirs.status_code == 503
    assert "retry-after" not in theirs.headers


def test_vllms_own_app_names_what_the_gate_left_unenforced(client, byte_vocabulary, monkeypatch):
    monkeypatch.setattr(vllm_admission, "vocabulary_of", lambda vllm_config: byte_vocabulary)
    gate = vllm_admission.Gate(config({**SMALL, "unenforced_keywords": ["uniqueItems"]}))

    @client.app.get("/guided/{unique}")
    async def guided(unique: bool, stream: bool = False):
        schema = {"type": "array", "uniqueItems": unique}
        await gate.admit_async(SamplingParams(extra_args={"guided": {"json_schema": schema}}))
        return StreamingResponse(iter(["a", "b"])) if stream else JSONResponse([])

    for path, told in {"true": "uniqueItems", "false": None, "true?stream=true": "uniqueItems"}.items():
        for _ in range(2):  # the second one is remembered
            answer = client.get(f"/guided/{path}")
            assert (answer.status_code, answer.headers.get(UNENFORCED)) == (200, told)
    assert UNENFORCED not in client.get("/theirs").headers


@pytest.mark.parametrize(
    ("waits", "told", "later"), [([0.0], b"1", b"1"), ([3.1], b"4", b"3"), ([3.1, math.inf], b"60", b"60")]
)
def test_the_engine_says_how_long_it_refuses(monkeypatch, waits, told, later):
    now, asked = [100.0], []
    monkeypatch.setattr(vllm_health, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def collective_rpc(method):
        asked.append(method)
        return ["the breaker is open"] if method == "guided_health" else waits

    async def application(scope, receive, send):
        with pytest.raises(Exception, match="the breaker is open"):
            await health.check_async(collective_rpc)
        await send(start(503))

    health = Health()
    assert sent(application)[0]["headers"][-1] == (b"retry-after", told)
    now[0] += 0.2
    assert sent(application)[0]["headers"][-1] == (b"retry-after", later)
    assert asked == ["guided_health", "guided_retry_after"]  # the second request was answered from memory


@pytest.mark.parametrize("status", [200, 400])
def test_answers_name_what_nothing_enforced(status):
    async def application(scope, receive, send):
        for keywords in (("uniqueItems",), (), ("format", "uniqueItems", "a\r\nb: c")):
            tell_unenforced(keywords)
        await send(start(status))
        await send({"type": "http.response.body"})

    first, second = sent(application)
    assert first["headers"] == [
        (b"a", b"b"),
        (b"x-guided-unenforced", b"a%0D%0Ab%3A%20c, format, uniqueItems"),
    ]
    assert second == {"type": "http.response.body"}
    tell_unenforced(("pattern",))  # outside of a request there is no answer
    assert sent(answering(200)) == [start(200)]
