"""langchain-openai: structured output by JSON Schema and by function calling, tools, streams."""

import json

import openai
import pytest
from client_schemas import SCHEMA, Person, check
from langchain_core.exceptions import OutputParserException
from langchain_openai import ChatOpenAI


@pytest.fixture
def model(base_url):
    return ChatOpenAI(
        model="demo", base_url=base_url, api_key="none", max_retries=0, timeout=240, max_tokens=250
    )


def was_cut(message):
    return message.response_metadata.get("finish_reason") == "length"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("schema", [Person, SCHEMA], ids=["pydantic", "JSON Schema"])
def test_structured_output(model, whole, method, schema):
    asked = model.with_structured_output(schema, method=method, strict=True, include_raw=True)

    def ask():
        answer = asked.invoke("Write a record")
        return None if was_cut(answer["raw"]) else answer

    answer = whole(ask, openai.LengthFinishReasonError)
    assert answer["parsing_error"] is None
    parsed = answer["parsed"]
    check(parsed.model_dump_json() if isinstance(parsed, Person) else json.dumps(parsed))


def test_a_stream_of_structured_output(model, whole):
    asked = model.with_structured_output(SCHEMA, method="json_schema")

    def ask():
        *_, last = asked.stream("Write a record")
        return last if set(last) == set(SCHEMA["required"]) else None

    check(json.dumps(whole(ask, OutputParserException)))


@pytest.mark.parametrize("chosen", ["any", "save"])
def test_tools(model, whole, chosen):
    tool = {"type": "function", "function": {"name": "save", "parameters": SCHEMA, "strict": True}}
    asked = model.bind_tools([tool], tool_choice=chosen)

    def ask():
        message = asked.invoke("Write a record")
        return None if was_cut(message) else message

    message = whole(ask)
    assert message.invalid_tool_calls == []
    assert message.tool_calls
    for call in message.tool_calls:
        assert call["name"] == "save"
        check(json.dumps(call["args"]))
