"""pydantic-ai: output through tools and natively, chats and responses, whole and streamed."""

import asyncio

import pytest
from client_schemas import Person, check
from pydantic_ai import Agent, NativeOutput, ToolOutput, capture_run_messages
from pydantic_ai.exceptions import IncompleteToolCall, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class WasCut(Exception):
    """An answer that reached the limit of tokens."""


def agent(base_url, kind, output):
    model = kind("demo", provider=OpenAIProvider(base_url=base_url, api_key="none"))
    return Agent(model, output_type=output, retries=0, model_settings={"max_tokens": 250, "timeout": 240})


def run(made):
    """A whole answer. pydantic-ai reports an invalid one and one that was cut in the same way: the reason of
    the last response tells."""
    with capture_run_messages() as messages:
        try:
            return made.run_sync("Write a record").output
        except IncompleteToolCall:
            raise WasCut from None
        except UnexpectedModelBehavior:
            if getattr(messages[-1], "finish_reason", None) == "length":
                raise WasCut from None
            raise


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        (OpenAIChatModel, ToolOutput(Person, strict=True)),
        (OpenAIChatModel, NativeOutput(Person)),
        (OpenAIResponsesModel, NativeOutput(Person)),
    ],
    ids=["tool", "native", "responses"],
)
def test_an_agent(base_url, whole, kind, output):
    made = agent(base_url, kind, output)
    person = whole(lambda: run(made), WasCut)
    assert check(person.model_dump_json()) == person


def test_an_agent_that_streams(base_url, whole):
    made = agent(base_url, OpenAIChatModel, NativeOutput(Person))

    async def stream():
        async with made.run_stream("Write a record") as result:
            try:
                return await result.get_output()
            except UnexpectedModelBehavior:
                if result.response.finish_reason == "length":
                    return None
                raise

    person = whole(lambda: asyncio.run(stream()), IncompleteToolCall)
    assert check(person.model_dump_json()) == person
