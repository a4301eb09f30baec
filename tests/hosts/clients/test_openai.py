"""The `openai` package: chat, completions, parse, tools in every choice, streams,
responses."""

import json
import re

import openai
import pytest
from client_schemas import ASKING, SAVE, SCHEMA, Person, check

FORM = {
    "type": "json_schema",
    "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
}


@pytest.fixture(scope="module")
def client(base_url, wire):
    with openai.OpenAI(
        base_url=base_url,
        api_key="none",
        max_retries=0,
        timeout=240,
        http_client=wire.client(),
    ) as made:
        yield made


def chat(client, **options):
    options = {"max_tokens": 250, **options}
    return client.chat.completions.create(
        model="demo", messages=ASKING, **options
    ).choices[0]


@pytest.mark.real_model
def test_a_chat_with_a_response_format(client, whole):
    check(whole(lambda: chat(client, response_format=FORM)).message.content)


@pytest.mark.real_model
def test_a_chat_that_is_streamed(client, whole):
    def stream():
        parts = client.chat.completions.create(
            model="demo",
            messages=ASKING,
            response_format=FORM,
            max_tokens=250,
            stream=True,
        )
        return "".join(
            part.choices[0].delta.content or "" for part in parts if part.choices
        )

    check(whole(stream))


def test_a_completion(client):
    structured = {"structured_outputs": {"regex": "[a-f]{4}-[0-9]{2}"}}
    answer = client.completions.create(
        model="demo", prompt="x", max_tokens=40, extra_body=structured
    )
    assert re.fullmatch("[a-f]{4}-[0-9]{2}", answer.choices[0].text)
    guided = {"vllm_xargs": {"guided": json.dumps({"choice": ["red", "green"]})}}
    answer = client.completions.create(
        model="demo", prompt="x", max_tokens=40, extra_body=guided
    )
    assert answer.choices[0].text in ("red", "green")


@pytest.mark.real_model
def test_parse(client, whole):
    answer = whole(
        lambda: client.chat.completions.parse(
            model="demo", messages=ASKING, response_format=Person, max_tokens=250
        )
    )
    assert answer.choices[0].message.parsed == check(answer.choices[0].message.content)


def test_parse_of_a_stream(client, whole):
    def stream():
        with client.chat.completions.stream(
            model="demo", messages=ASKING, response_format=Person, max_tokens=250
        ) as events:
            kinds = {event.type for event in events}
            assert {"chunk", "content.delta"} <= kinds
            return events.get_final_completion()

    message = whole(stream).choices[0].message
    assert message.parsed == check(message.content)


@pytest.mark.real_model
def test_parse_of_a_tool(client, whole):
    tool = openai.pydantic_function_tool(Person, name="save")
    answer = whole(
        lambda: client.chat.completions.parse(
            model="demo",
            messages=ASKING,
            tools=[tool],
            tool_choice="required",
            max_tokens=250,
        )
    )
    for call in answer.choices[0].message.tool_calls:
        assert call.function.parsed_arguments == check(call.function.arguments)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "chosen",
    ["auto", "none", "required", {"type": "function", "function": {"name": "save"}}],
    ids=["auto", "none", "required", "named"],
)
def test_tools(client, wire, chosen, stream):
    options = {"tools": [SAVE], "tool_choice": chosen}

    def streamed(**more):
        parts = client.chat.completions.create(
            model="demo", messages=ASKING, stream=True, **options, **more
        )
        calls = {}
        for choice in (part.choices[0] for part in parts if part.choices):
            for delta in choice.delta.tool_calls or []:
                calls.setdefault(delta.index, []).append(delta.function)
        return [
            (
                "".join(one.name or "" for one in deltas),
                "".join(one.arguments or "" for one in deltas),
            )
            for deltas in calls.values()
        ]

    def at_once(**more):
        calls = chat(client, **options, **more).message.tool_calls or []
        return [(call.function.name, call.function.arguments) for call in calls]

    ask = streamed if stream else at_once
    # free text, which may reach its limit, within a call too
    if chosen in ("auto", "none"):
        wire.reasons.clear()
        calls = ask(max_tokens=40)
        assert chosen == "auto" or calls == []
        calls = [] if wire.reasons == ["length"] else calls
    else:
        calls = wire.whole(lambda: ask(max_tokens=250))
        assert calls
    for name, arguments in calls:
        assert name == "save"
        check(arguments)


@pytest.mark.real_model
def test_responses(client, whole):
    form = {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}

    def ask():
        return client.responses.create(
            model="demo",
            input="Write a record",
            text={"format": form},
            max_output_tokens=250,
        )

    check(whole(ask).output_text)


def test_parse_of_responses(client, whole):
    def ask():
        return client.responses.parse(
            model="demo",
            input="Write a record",
            text_format=Person,
            max_output_tokens=250,
        )

    answer = whole(ask)
    assert answer.output_parsed == check(answer.output_text)


BAD = {"type": "object", "properties": {"age": {"type": "text"}}}
ASKED = {
    "tools": [SAVE, openai.pydantic_function_tool(Person, name="other")],
    "tool_choice": "required",
}
ASKED["tools"][1]["function"]["parameters"]["not"] = {}
FORMAT = {"type": "json_schema", "name": "x", "schema": BAD}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD}}},
         "response_format.json_schema.schema#/properties/age/type: unknown type"),
        (ASKED, "tools[1].function.parameters#/not: "),
        (ASKED | {"tool_choice": "auto"}, "tools[1].function.parameters#/not: "),
        ({"extra_body": {"structured_outputs": {"choice": []}}}, "structured_outputs.choice: an empty list"),
        ({"extra_body": {"vllm_xargs": {"guided": json.dumps({"json_schema": BAD})}}},
         "vllm_xargs.guided.json_schema#/properties/age/type: unknown type"),
        ({"text": {"format": FORMAT}}, "text.format.schema#/properties/age/type: unknown type"),
    ],
)  # fmt: skip
def test_a_refused_request_names_the_field_and_the_place_that_the_client_wrote(
    client, options, place, stream
):
    def ask():
        if "text" in options:
            return client.responses.create(
                model="demo", input="x", stream=stream, **options
            )
        return chat(client, stream=stream, **options)

    with pytest.raises(openai.BadRequestError) as caught:
        ask()
    assert caught.value.body["message"].startswith(place)
    assert caught.value.param == re.split(r"\W", place)[0]
