"""pydantic-ai: output through tools and natively, chats and responses, whole and
streamed."""

import asyncio
from typing import Annotated, Literal

import openai
import pytest
from client_schemas import Person, check
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class Visit(BaseModel):
    """A model without lengths of texts: pydantic-ai sends a strict tool without them,
    and judges by them."""

    model_config = ConfigDict(extra="forbid")

    age: Annotated[int, Field(ge=0, le=120)]
    state: Literal["new", "known"]
    tags: Annotated[list[bool], Field(max_length=2)]


def run(base_url, wire, kind, output, *, stream=False):
    """One answer, of an agent with an event loop and connections of its own."""

    async def ask():
        async with openai.AsyncOpenAI(
            base_url=base_url,
            api_key="none",
            max_retries=0,
            timeout=240,
            http_client=wire.async_client(),
        ) as client:
            model = kind("demo", provider=OpenAIProvider(openai_client=client))
            agent = Agent(
                model, output_type=output, retries=0, model_settings={"max_tokens": 250}
            )
            if not stream:
                return (await agent.run("Write a record")).output
            async with agent.run_stream("Write a record") as result:
                return await result.get_output()

    return asyncio.run(ask())


@pytest.mark.real_model
@pytest.mark.parametrize(
    "output", [NativeOutput(Person), ToolOutput(Person)], ids=["native", "tool"]
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_agent(base_url, wire, output, stream):
    person = wire.whole(
        lambda: run(base_url, wire, OpenAIChatModel, output, stream=stream)
    )
    assert check(person.model_dump_json()) == person


def test_an_agent_with_a_strict_tool(base_url, wire):
    output = ToolOutput(Visit, strict=True)
    visit = wire.whole(lambda: run(base_url, wire, OpenAIChatModel, output))
    assert Visit.model_validate_json(visit.model_dump_json()) == visit


@pytest.mark.real_model
def test_an_agent_that_asks_for_a_response(base_url, wire):
    person = wire.whole(
        lambda: run(base_url, wire, OpenAIResponsesModel, NativeOutput(Person))
    )
    assert check(person.model_dump_json()) == person
