"""langchain-openai: structured output by JSON Schema and by function calling, tools,
streams."""

import json

import pytest
from client_schemas import SAVE, SCHEMA, Person, check
from langchain_openai import ChatOpenAI


@pytest.fixture
def model(base_url, wire):
    with wire.client() as http:
        yield ChatOpenAI(
            model="demo",
            base_url=base_url,
            api_key="none",
            max_retries=0,
            timeout=240,
            max_tokens=250,
            http_client=http,
        )


@pytest.mark.real_model
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("schema", [Person, SCHEMA], ids=["pydantic", "JSON Schema"])
def test_structured_output(model, whole, method, schema):
    asked = model.with_structured_output(
        schema, method=method, strict=True, include_raw=True
    )
    answer = whole(lambda: asked.invoke("Write a record"))
    assert answer["parsing_error"] is None
    parsed = answer["parsed"]
    check(
        parsed.model_dump_json() if isinstance(parsed, Person) else json.dumps(parsed)
    )


def test_a_stream_of_structured_output(model, whole):
    asked = model.with_structured_output(SCHEMA, method="json_schema")
    *_, last = whole(lambda: list(asked.stream("Write a record")))
    check(json.dumps(last))


@pytest.mark.real_model
@pytest.mark.parametrize("chosen", ["any", "save"])
def test_tools(model, whole, chosen):
    asked = model.bind_tools([SAVE], tool_choice=chosen)
    message = whole(lambda: asked.invoke("Write a record"))
    assert message.invalid_tool_calls == []
    assert message.tool_calls
    for call in message.tool_calls:
        assert call["name"] == "save"
        check(json.dumps(call["args"]))
