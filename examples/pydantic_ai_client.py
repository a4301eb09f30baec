"""pydantic-ai and a vLLM server with the plugin: an agent with native output, and one
with tool output.

python examples/pydantic_ai_client.py        # starts a server; --base-url URL asks one
that runs
"""

from typing import Literal

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from serve import server_from_arguments


class Person(BaseModel):
    name: str = Field(max_length=30)
    age: int = Field(ge=18, le=90)
    role: Literal["engineer", "teacher", "nurse"]


def main(base_url: str) -> None:
    model = OpenAIChatModel(
        "demo", provider=OpenAIProvider(base_url=base_url, api_key="none")
    )
    for output in (NativeOutput(Person), ToolOutput(Person)):
        agent = Agent(
            model,
            output_type=output,
            model_settings={"temperature": 0, "max_tokens": 200},
        )
        answer = agent.run_sync("Person as JSON:")
        print(type(output).__name__, answer.output.model_dump_json())


if __name__ == "__main__":
    with server_from_arguments() as url:
        main(url)
