"""Every endpoint of two API servers of one engine: what comes out is constrained or refused, never free."""

import json
import re
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("vllm")

from vllm_server import serving

PATTERN = "[xyz]{6,14}"
BROKEN, REASON = "(x", "a ( without its ) at position 2"
OPTIONS = {"take_over": True, "mode": "inline", "threads": 1, "worker_grammar_ms": 60_000}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("entrances")
    arguments = ["--enable-log-requests", "--enable-scale-out"]
    with serving(folder, OPTIONS, *arguments, frontends=2) as running:
        yield running


def post(server, path, body):
    """The answer's status and text. Each call is a connection of its own: either server may get it."""
    data = json.dumps({"model": "demo", **body}).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": "application/json"})
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


def guided(text):
    return re.fullmatch(PATTERN, text) is not None


MESSAGES = [{"role": "user", "content": "Write"}]
CHAT = {"messages": MESSAGES, "max_tokens": 30}
SCHEMA = {"type": "string", "pattern": f"^{PATTERN}$"}


def message(answer):
    return answer["choices"][0]["message"]["content"]


def parts(answer):
    return "".join(part["text"] for part in answer["content"])


def output(answer):
    return "".join(part["text"] for item in answer["output"] for part in item.get("content") or ())


ENTRANCES = {
    "chat": ("/v1/chat/completions", CHAT, message),
    "completion": (
        "/v1/completions",
        {"prompt": "Write: ", "max_tokens": 30},
        lambda answer: answer["choices"][0]["text"],
    ),
    "response": ("/v1/responses", {"input": "Write", "max_output_tokens": 30}, output),
    "message": ("/v1/messages", CHAT, parts),
}


def xargs(spec):
    return {"vllm_xargs": {"guided": json.dumps(spec)}}


def cases():
    """A body for each form in which each entrance takes a spec, and how to read the text."""
    for name, (path, body, text_of) in ENTRANCES.items():
        yield f"{name}, vllm_xargs", path, {**body, **xargs({"regex": PATTERN})}, text_of
        if name != "message":
            asked = {**body, "structured_outputs": {"regex": PATTERN}}
            yield f"{name}, structured_outputs", path, asked, text_of
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA}
    path, body, text_of = ENTRANCES["response"]
    yield "response, text.format", path, {**body, "text": {"format": form}}, lambda a: json.loads(output(a))
    path, body, text_of = ENTRANCES["message"]
    asked = {**body, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    yield "message, output_config", path, asked, lambda answer: json.loads(parts(answer))


CASES = [pytest.param(*case[1:], id=case[0]) for case in cases()]


@pytest.mark.parametrize(("path", "body", "text_of"), CASES)
def test_endpoints_guide(server, path, body, text_of):
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: served(server, path, body), range(2)))
    assert all(guided(text_of(answer)) for answer in answers), answers


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_endpoints_refuse_what_they_cannot_guide(server, entrance, stream):
    path, body, _ = ENTRANCES[entrance]
    status, text = post(server, path, {**body, **xargs({"regex": BROKEN}), "stream": stream})
    assert status == 400, text
    assert REASON in text


def test_a_batch_of_chats_is_guided_or_refused(server):
    path, body = "/v1/chat/completions/batch", {"messages": [MESSAGES, MESSAGES], "max_tokens": 30}
    answer = served(server, path, {**body, "structured_outputs": {"regex": PATTERN}})
    assert [guided(choice["message"]["content"]) for choice in answer["choices"]] == [True, True]
    status, text = post(server, path, {**body, "structured_outputs": {"regex": BROKEN}})
    assert status == 400, text
    assert REASON in text


ASKED = [
    pytest.param(lambda regex: {"structured_outputs": {"regex": regex}}, id="structured_outputs"),
    pytest.param(lambda regex: {"extra_args": {"guided": {"regex": regex}}}, id="extra_args"),
]


@pytest.mark.parametrize("asked", ASKED)
def test_tokens_in_tokens_out_is_guided_or_refused(server, asked):
    path, prompt = "/inference/v1/generate", {"token_ids": [5, 6]}
    answer = served(server, path, {**prompt, "sampling_params": {"max_tokens": 30, **asked(PATTERN)}})
    tokens = answer["choices"][0]["token_ids"]
    assert guided(served(server, "/detokenize", {"tokens": tokens[:-1]})["prompt"]), answer
    for stream in (False, True):
        body = {**prompt, "sampling_params": {"max_tokens": 30, **asked(BROKEN)}, "stream": stream}
        status, text = post(server, path, body)
        assert status == 400, text
        assert REASON in text


def servers(server, said):
    """The API servers whose log lines have a text."""
    pattern = re.compile(rf"^\(?(ApiServer_\d).*{said}", re.MULTILINE)
    return set(pattern.findall(server.log.read_text()))


def test_both_servers_guide_and_refuse(server):
    path, body, _ = ENTRANCES["completion"]
    asked = [{**body, **xargs({"regex": regex})} for regex in (PATTERN, BROKEN)] * 2
    both, end = {"ApiServer_0", "ApiServer_1"}, time.monotonic() + 120
    while not both == servers(server, "refused") == servers(server, "Received request"):
        assert time.monotonic() < end
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda one: post(server, path, one), asked))
        assert [status for status, _ in answers] == [200, 400, 200, 400]
        assert all(guided(json.loads(text)["choices"][0]["text"]) for _, text in answers[::2])
