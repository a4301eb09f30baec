"""langchain-openai and a vLLM server with the plugin: structured output and a tool
call.

python examples/langchain_client.py        # starts a server; --base-url URL asks one
that runs
"""

from typing import Literal

from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from serve import server_from_arguments


class Person(BaseModel):
    """A person to save."""

    name: str = Field(max_length=30)
    age: int = Field(ge=18, le=90)
    role: Literal["engineer", "teacher", "nurse"]


def main(base_url: str) -> None:
    model = ChatOpenAI(
        model="demo", base_url=base_url, api_key="none", temperature=0, max_tokens=200
    )

    person = model.with_structured_output(Person, method="json_schema").invoke(
        "Person as JSON:"
    )
    print("structured", person.model_dump_json())

    message = model.bind_tools([Person], tool_choice="any").invoke("Person as JSON:")
    for call in message.tool_calls:
        print("tool", Person(**call["args"]).model_dump_json())


if __name__ == "__main__":
    with server_from_arguments() as url:
        main(url)
