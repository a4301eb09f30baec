"""What clients and operators are told: `Retry-After` on the answers with status 503
that the package gives alone, the log, metrics, the lines at start."""

import asyncio
import json
import logging
import math
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from prometheus_client import REGISTRY
from vllm.entrypoints.launchers import app as vllm_app
from vllm.utils.argparse_utils import FlexibleArgumentParser

import guided_plugin as gp
from guided_plugin.config import GuidedConfig
from guided_plugin.errors import BusyError, PipelineError, RequestError, SpecError
from guided_plugin.hosts.vllm import logs
from guided_plugin.hosts.vllm import metrics as vllm_metrics
from guided_plugin.hosts.vllm.headers import (
    STATE,
    Middleware,
    tell_unenforced,
    tell_wait,
)
from guided_plugin.hosts.vllm.health import Health
from guided_plugin.hosts.vllm.logs import engine_line, start_line
from guided_plugin.hosts.vllm.metrics import metrics
from guided_plugin.hosts.vllm.names import When
from guided_plugin.hosts.vllm.patches import patch
from guided_plugin.hosts.vllm.refusals import refusal

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ImportError:  # before 0.33
    from vllm.entrypoints.launchers.cli_args import make_arg_parser

HTTP = {"type": "http", "path": "/v1/completions", "query_string": b""}
BUSY = BusyError("no room")


def start(status):
    return {"type": "http.response.start", "status": status, "headers": [(b"a", b"b")]}


def sent(application, scope=HTTP):
    """What an application has sent through the middleware."""
    messages = []

    async def send(message):
        messages.append(message)

    asyncio.run(Middleware(application, None, None)(scope, None, send))
    return messages


def answering(status, *refusals):
    """An application that refuses its request, for each of these times, and then
    answers."""

    async def application(scope, receive, send):
        for seconds in refusals:
            tell_wait(seconds)
        await send(start(status))

    return application


@pytest.mark.parametrize(
    ("status", "seconds", "told"),
    [
        *(
            (503, [seconds], told)
            for seconds, told in ((0.0, b"1"), (-3.0, b"1"), (1.0, b"1"), (33.2, b"34"))
        ),
        (503, [math.inf], b"60"),
        *((503, [], None), (200, [], None)),
    ],
)
def test_a_refused_request_is_told_when_to_come_again(status, seconds, told):
    more = [] if told is None else [(b"retry-after", told)]
    assert sent(answering(status, *seconds)) == [
        {**start(status), "headers": [(b"a", b"b"), *more]}
    ]


def test_what_is_no_request_passes_by():
    async def application(scope, receive, send):
        tell_wait(5)
        await send(start(503))

    assert sent(application, {"type": "websocket"}) == [start(503)]


def test_requests_share_no_note_and_tasks_of_one_do():
    """As vLLM's server runs them: a request in a task, and its prompts in tasks of
    that."""

    async def refuses(seconds):
        await asyncio.sleep(0)
        tell_wait(seconds)

    async def request(seconds):
        messages = []

        async def application(scope, receive, send):
            await asyncio.gather(*(refuses(one) for one in seconds))
            await asyncio.sleep(0)
            await send(start(503))

        async def send(message):
            messages.append(message)

        await Middleware(application, None, None)(HTTP, None, send)
        return messages[0]["headers"][1:]

    async def many():
        return await asyncio.gather(
            *(request(seconds) for seconds in ([8, 8], [], [9]))
        )

    assert asyncio.run(many()) == [
        [(b"retry-after", b"8")],
        [],
        [(b"retry-after", b"9")],
    ]


def test_outside_of_a_server_nothing_is_noted():
    assert refusal(BUSY).http_status == 503


@pytest.mark.parametrize("takes", [0.0, 60.0])
def test_engines_are_asked_before_metrics_are_read(
    client, listening, monkeypatch, takes
):
    """They answer in a bounded time all the same. vLLM serves the page under both of
    its paths."""
    monkeypatch.setattr(vllm_metrics, "_SECONDS", 0.05)

    async def collective_rpc(method, args=()):
        await asyncio.sleep(takes)
        return [[{"growth": {"added": (2,)}}]]

    client.app.state.engine_client = SimpleNamespace(
        input_processor=None, collective_rpc=collective_rpc
    )
    before = listening("engine_requests_total", engine="0")
    assert client.get("/metrics/").status_code == 200
    grown = listening("engine_requests_total", engine="0") - before
    assert grown == (0 if takes else 2)


@pytest.fixture
def client(monkeypatch):
    """vLLM's own app, without an engine, with paths that answer as an engine's
    would."""
    monkeypatch.setattr(
        vllm_app, "init_entrypoints_middleware", vllm_app.init_entrypoints_middleware
    )
    patch(When.SERVING)
    level = logging.root.level
    args = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    app = vllm_app.build_app(args, ("generate",), None)

    @app.get("/ours")
    async def ours():
        raise refusal(BUSY)

    yield TestClient(app, raise_server_exceptions=False)
    logging.root.setLevel(level)  # vLLM's app has set it to that of vLLM's log


@pytest.mark.parametrize(
    ("reason", "health", "says"),
    [
        (None, "", ""),
        (
            None,
            "no grammar\nworker",
            r"guided requests cannot be served now: no grammar\nworker",
        ),
        (
            RequestError("it is switched off", hint="unset it"),
            "",
            "it is switched off (unset it)",
        ),
    ],
)
def test_a_server_says_whether_it_is_on_where_it_is_asked(client, reason, health, says):
    async def collective_rpc(method, args=()):
        return [[health, 1.0 * bool(health)]]

    gate = SimpleNamespace(
        unsupported_reason=reason,
        health=Health(),
        options=SimpleNamespace(take_over=True),
    )
    processor = SimpleNamespace(_guided_gate=gate)
    client.app.state.engine_client = SimpleNamespace(
        input_processor=processor, collective_rpc=collective_rpc
    )
    asked = client.get("/version?guided")
    assert json.loads(asked.headers[STATE]) == {
        "version": gp.__version__,
        "take_over": True,
        "off": says,
    }
    assert asked.json() == client.get("/version").json()
    for path in ("/version", "/version?other", "/ours?guided"):
        assert STATE not in client.get(path).headers


def test_a_server_without_an_engine_says_so(client):
    state = json.loads(client.get("/version?guided").headers[STATE])
    assert state == {"version": gp.__version__, "off": "this server has no engine"}


@pytest.mark.parametrize(
    ("waits", "told"),
    [([0.0], b"1"), ([3.1], b"4"), ([3.1, math.inf], b"60"), ([5.0, 3.1], b"5")],
)
def test_the_engine_says_how_long_it_refuses(waits, told):
    async def collective_rpc(method):
        return [["the breaker is open", seconds] for seconds in waits]

    async def application(scope, receive, send):
        with pytest.raises(PipelineError, match="the breaker is open") as caught:
            await health.check_async(collective_rpc)
        assert refusal(caught.value).http_status == 503
        await send(start(503))

    health = Health()
    assert sent(application)[0]["headers"][-1] == (b"retry-after", told)


@pytest.mark.parametrize("status", [200, 400])
def test_answers_name_what_nothing_enforced(status):
    async def application(scope, receive, send):
        tell_unenforced(("a\r\nb: c", "format", "uniqueItems"))
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


@pytest.fixture
def listening():
    metrics()
    assert (
        REGISTRY.get_sample_value(
            "guided_plugin_requests_total", {"backend": "none", "outcome": "left"}
        )
        is not None
    )  # from the start, so that the first one is a growth
    return lambda name, **labels: (
        REGISTRY.get_sample_value(f"guided_plugin_{name}", labels) or 0.0
    )


def test_what_engines_answer_becomes_gauges_and_counters(listening):
    worker = {"restarts": 7, "exposed_wait": 0.5, "learnt_bytes": 7}
    grown = {
        "steps": [5],
        "restarts": [2],
        "taken": [0],
        "fill": [1, 2],
        "exposed_wait": [2, *[0] * 6, 1, *[0] * 7, 1, 0.75],
    }
    twice = {
        ("engine_steps_total", None): 10,
        ("worker_restarts_total", None): 4,
        ("drafts_taken_total", None): 0,
        ("mask_wait_seconds_bucket", "0.002"): 6,
        ("mask_wait_seconds_bucket", "+Inf"): 8,
        ("mask_wait_seconds_count", None): 8,
        ("mask_wait_seconds_sum", None): 1.5,
    }

    def told(engine):
        return [
            listening(name, engine=engine, **({"le": bound} if bound else {}))
            for name, bound in twice
        ]

    before = told("0"), told("1")  # of engines of another test, perhaps
    for _ in range(2):
        metrics().tell(
            [{"refused": "off"}, {"steps": 90, "worker": worker, "growth": grown}]
        )
    assert told("0") == before[0]
    growth = [now - then for now, then in zip(told("1"), before[1], strict=True)]
    assert growth == [*twice.values()]
    assert listening("worker_learnt_bytes", engine="1") == 7
    taken = REGISTRY.get_sample_value(
        "guided_plugin_drafts_taken_total", {"engine": "1"}
    )
    assert taken is not None


def test_a_request_that_is_left_has_its_id_in_the_log(caplog):
    with caplog.at_level(logging.INFO, "guided_plugin.requests"):
        logs.left("cmpl-\nmine")
    assert caplog.messages == [
        r"request cmpl-\nmine: left to vLLM's own structured output"
    ]


def test_handlers_of_vllm_are_taken_where_there_are_no_others(monkeypatch):
    ours, theirs, root = (
        logging.getLogger(name) for name in ("guided_plugin", "vllm", "")
    )
    handler = logging.NullHandler()
    monkeypatch.setattr(ours, "level", logging.NOTSET)
    # the program has a log of its own; it has none
    for there, adopted in (([logging.NullHandler()], []), ([], [handler])):
        for logger, handlers in ((ours, []), (theirs, [handler]), (root, there)):
            monkeypatch.setattr(logger, "handlers", handlers)
        logs.adopt_handlers()
        logs.adopt_handlers()
        assert ours.handlers == adopted


def test_start_lines_say_what_is_on_and_why_not():
    on = GuidedConfig(take_over=True)
    off = SpecError("the plugin is switched off", hint="set enabled")
    name = f"guided_plugin {gp.__version__}"
    assert start_line("frontend", on, None) == (
        f"{name} is on in this frontend; take_over on"
    )
    assert start_line("frontend", GuidedConfig(), off) == (
        f"{name} is off in this frontend: the plugin is switched off (set enabled); take_over off"
    )
    jump = GuidedConfig(jump_forward=True)
    for mode, drafts, says in (
        ("process", 7, "jump_forward with up to 7 tokens"),
        ("inline", 7, "without effect in mode inline"),
        ("process", 0, "without effect in mode process with 0 drafts"),
    ):
        assert says in engine_line(jump, None, mode, 16, drafts)
    assert engine_line(on, off, "", 16).endswith(
        "is off in this engine: the plugin is switched off (set enabled); take_over on"
    )
