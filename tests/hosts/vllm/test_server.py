"""vLLM's OpenAI server as a process, the plugin installed, with the `openai` client against it."""

import asyncio
import json
import os
import pathlib
import random
import sys
import threading
import time

import pytest

pytest.importorskip("vllm")

import jsonschema
import openai
import psutil

import guided_plugin as gp
from benchmarks.server.launch import free_port, running
from guided_plugin.demo import MODEL_DIR

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SHORT_WINDOW = pathlib.Path(__file__).parents[2] / "support" / "short_window"
REFUSED_SECONDS = 20
"""As it says there."""
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
OPTIONS = {"take_over": True, "mode": "process", "worker_step_ms": 60_000, "worker_grammar_ms": 60_000}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    port = free_port()
    folder = tmp_path_factory.mktemp("server")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    arguments = (
        f"--model {MODEL_DIR} --served-model-name demo --port {port} --host 127.0.0.1 --max-model-len 512 "
        f"--max-num-seqs 16 --enforce-eager --no-async-scheduling --chat-template {template} "
        "--enable-auto-tool-choice --tool-call-parser hermes --disable-uvicorn-access-log "
        "--logits-processors guided_plugin.vllm:GuidedLogitsProcessor"
    )
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # vLLM's worker spins while it waits: bound to one processor it would keep the grammar worker from it.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "GUIDED_PLUGIN": json.dumps(OPTIONS),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SHORT_WINDOW), os.environ.get("PYTHONPATH")])),
    }
    log = folder / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments.split()]
    try:
        with running(command, environment, log, f"http://127.0.0.1:{port}") as process:
            grammar_worker.server = psutil.Process(process.pid)
            yield f"http://127.0.0.1:{port}/v1"
            assert process.poll() is None, log.read_text()[-4000:]
    finally:
        print(log.read_text()[-3000:])


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server, api_key="none", max_retries=0, timeout=240) as made:
        yield made


def grammar_worker():
    """The grammar worker that runs now, not its spare."""
    for child in grammar_worker.server.children(recursive=True):
        try:
            if child.name() == "guided-worker":
                return child
        except psutil.NoSuchProcess:
            continue
    return None


def complete(client, spec=None, **options):
    extra = {"extra_body": {"vllm_xargs": {"guided": json.dumps(spec)}}} if spec is not None else {}
    options = {"max_tokens": 80, "temperature": 1.0, **extra, **options}
    return client.completions.create(model="demo", prompt="Someone: ", **options).choices[0]


def chat(client, **options):
    options = {"max_tokens": 80, "temperature": 1.0, **options}
    messages = [{"role": "user", "content": "Write a record"}]
    return client.chat.completions.create(model="demo", messages=messages, **options).choices[0]


def test_a_spec_in_vllm_xargs(client):
    choice = complete(client, {"json_schema": SCHEMA})
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.text), SCHEMA)


def test_response_format_of_a_chat(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    choice = chat(client, response_format=form)
    jsonschema.validate(json.loads(choice.message.content), SCHEMA)
    choice = chat(client, response_format={"type": "json_object"}, max_tokens=200)
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def test_streaming(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    parts = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Write a record"}],
        response_format=form,
        max_tokens=80,
        stream=True,
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    jsonschema.validate(json.loads(text), SCHEMA)


def test_a_named_tool_with_strict_arguments(client):
    tool = {"type": "function", "function": {"name": "save", "parameters": SCHEMA, "strict": True}}
    forced = {"type": "function", "function": {"name": "save"}}
    for _ in range(5):  # the model may run into the limit before it has closed its call
        choice = chat(client, tools=[tool], tool_choice=forced, max_tokens=300)
        if choice.message.tool_calls:
            break
    assert choice.message.tool_calls, choice
    (call,) = choice.message.tool_calls
    assert call.function.name == "save"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_structured_outputs_of_vllm(client):
    choice = complete(client, extra_body={"structured_outputs": {"regex": "[0-9]{3}-[a-f]{3}"}})
    assert len(choice.text) == 7
    choice = complete(client, extra_body={"structured_outputs": {"choice": ["red", "green"]}})
    assert choice.text in ("red", "green")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {"json_schema": {"type": "object", "properties": {"a": {"type": "text"}}}},
            "guided.#/properties/a/type",
        ),
        ({"regex": "(?<=a)b"}, "ook"),
        ({"jsonschema": {}}, "did you mean"),
        ({"json_schema": {"type": "integer", "minimum": 3, "maximum": 2}}, ""),
    ],
)
def test_a_bad_spec_is_answered_with_400_path_and_hint(client, spec, says):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, spec)
    assert says in str(caught.value)
    assert complete(client, {"choice": ["fine"]}).text == "fine"


def test_thirty_two_clients_with_mixed_specs_and_aborts(server):
    rng = random.Random(5)
    kinds = [
        ({"json_schema": SCHEMA}, lambda text: jsonschema.validate(json.loads(text), SCHEMA)),
        ({"regex": "[ab]{10,30}"}, lambda text: len(text) >= 10 and set(text) <= {"a", "b"}),
        ({"choice": ["left", "right"]}, lambda text: text in ("left", "right")),
        ({"json_schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4}}, json.loads),
        (None, lambda text: True),
    ]

    async def one(client, number):
        ended = []
        for turn in range(3):
            spec, check = kinds[(number + turn) % len(kinds)]
            extra = {} if spec is None else {"extra_body": {"vllm_xargs": {"guided": json.dumps(spec)}}}
            stream = await client.completions.create(
                model="demo", prompt="It is ", max_tokens=80, temperature=1.0, stream=True, **extra
            )
            text, aborted, reason = "", rng.random() < 0.25, None
            async for part in stream:
                text += part.choices[0].text
                reason = part.choices[0].finish_reason or reason
                if aborted and len(text) > 3:
                    await stream.close()
                    break
            if not aborted and reason == "stop":
                assert check(text) is not False, (spec, text)
                ended.append(spec)
        return ended

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=server, api_key="none", max_retries=0, timeout=60) as client:
            return await asyncio.gather(*(one(client, number) for number in range(32)))

    ended = [spec for specs in asyncio.run(all_of_them()) for spec in specs]
    assert sum(spec is not None for spec in ended) > 25


def test_the_servers_own_answers_match_a_fresh_matcher(client):
    spec = {"grammar": 'root ::= "(" root ")" | "x"'}
    text = complete(client, spec, max_tokens=40).text
    depth = text.index("x") if "x" in text else len(text)
    assert text.startswith("(" * depth)
    assert gp.OutputSpec.parse(spec) is not None


FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
TOOL = {"type": "function", "function": {"name": "save", "parameters": SCHEMA, "strict": True}}
GUIDED = {"vllm_xargs": {"guided": json.dumps({"regex": "[0-9]{3}"})}}
ASKED = {
    "response_format": {"extra_body": {"response_format": FORM}},
    "a JSON object": {"extra_body": {"response_format": {"type": "json_object"}}},
    "structured_outputs": {"extra_body": {"structured_outputs": {"regex": "[0-9]{3}"}}},
    "vllm_xargs": {"extra_body": GUIDED},
}
CALLS = {
    "a named tool": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "save"}}},
    "any tool": {"tools": [TOOL], "tool_choice": "required"},
}


def with_beams(options, **more):
    return {
        "n": 2,
        "temperature": 0.0,
        "max_tokens": 8,
        **options,
        **more,
        "extra_body": {**options.get("extra_body", {}), "use_beam_search": True},
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("asked", [*ASKED, *CALLS])
def test_a_guided_chat_with_beam_search_is_refused(client, asked, stream):
    options = with_beams({**ASKED, **CALLS}[asked], stream=stream)
    with pytest.raises(
        openai.BadRequestError, match=r"use_beam_search: beam search can't be guided.*leave out"
    ):
        client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Write a record"}], **options
        )


@pytest.mark.parametrize("asked", ASKED)
def test_a_guided_completion_with_beam_search_is_refused(client, asked):
    with pytest.raises(
        openai.BadRequestError, match=r"use_beam_search: beam search can't be guided.*leave out"
    ):
        client.completions.create(model="demo", prompt="Someone: ", **with_beams(ASKED[asked]))
    # vLLM itself streams no beams of completions.
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="demo", prompt="Someone: ", **with_beams(ASKED[asked], stream=True))


def test_unguided_beam_search_is_served_as_before(client):
    answer = client.completions.create(model="demo", prompt="Someone: ", **with_beams({}))
    assert len({choice.text for choice in answer.choices}) == 2
    messages = [{"role": "user", "content": "Write a record"}]
    plain = {"response_format": {"type": "text"}, "tools": [{**TOOL, "function": {"name": "save"}}]}
    for options in ({}, plain):
        answer = client.chat.completions.create(model="demo", messages=messages, **with_beams(options))
        assert len(answer.choices) == 2
    parts = client.chat.completions.create(model="demo", messages=messages, **with_beams({}, stream=True))
    assert any(part.choices for part in parts)


def test_a_request_whose_options_leave_no_token_is_answered_with_500_or_an_error_event(client):
    options = {"vllm_xargs": {"guided": json.dumps({"choice": ["left"]})}, "allowed_token_ids": [5, 6]}
    with pytest.raises(openai.InternalServerError) as caught:
        complete(client, extra_body=options)
    assert caught.value.status_code == 500
    with pytest.raises(openai.InternalServerError):
        chat(client, extra_body=options)
    parts = client.completions.create(
        model="demo", prompt="It is ", max_tokens=9, stream=True, extra_body=options
    )
    with pytest.raises(openai.APIError, match="leave no token that the grammar allows"):
        list(parts)
    # min_tokens alone asks for more than there is, which is no failure
    finished = {**options, "allowed_token_ids": None, "min_tokens": 20}
    assert complete(client, extra_body=finished).finish_reason == "stop"


def test_while_nothing_can_be_guided_clients_are_told(client):
    endless = {"vllm_xargs": {"guided": json.dumps({"regex": "[ab]{450}"})}}
    ended, running = {}, threading.Event()

    def ask(name, **options):
        try:
            ended[name] = complete(client, **options).finish_reason
        except openai.APIStatusError as error:
            ended[name] = error.status_code

    def stream():
        try:
            parts = client.completions.create(
                model="demo", prompt="It is ", max_tokens=470, stream=True, extra_body=endless
            )
            for part in parts:
                running.set()
                ended["stream"] = part.choices[0].finish_reason
        except openai.APIError as error:
            ended["stream"] = str(error)
            running.set()

    def closed():
        try:
            return complete(client, {"choice": ["fine"]}).text != "fine"
        except openai.APIStatusError as error:
            return error.status_code == 503

    asking = [threading.Thread(target=ask, args=("full",), kwargs={"extra_body": endless, "max_tokens": 470})]
    asking += [threading.Thread(target=stream), threading.Thread(target=ask, args=("free",))]
    for thread in asking:
        thread.start()
    assert running.wait(120)
    time.sleep(0.3)
    killed = set()
    end = time.monotonic() + 120
    while any(thread.is_alive() for thread in asking):
        assert time.monotonic() < end
        found = grammar_worker()
        if found is not None and found.pid not in killed and len(killed) < 3:
            killed.add(found.pid)
            found.kill()
        time.sleep(0.02)
    assert ended["full"] == 500
    assert "guided request failed" in ended["stream"]
    assert ended["free"] in ("stop", "length")
    with pytest.raises(openai.APIStatusError, match=r"cannot be served now.*3 times") as caught:
        complete(client, {"choice": ["fine"]})
    assert caught.value.status_code == 503
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= REFUSED_SECONDS
    with pytest.raises(openai.APIStatusError, match="cannot be served now") as caught:
        client.completions.create(model="demo", prompt="x", stream=True, extra_body=endless)
    assert caught.value.status_code == 503
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= REFUSED_SECONDS
    assert complete(client).finish_reason in ("stop", "length")
    end = time.monotonic() + 90
    while closed():
        assert time.monotonic() < end
        time.sleep(1.0)
