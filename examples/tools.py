"""Tool calls whose arguments fit their schemas, with the `openai` client and a vLLM
server with the plugin.

python examples/tools.py        # starts a server; --base-url URL asks one that runs
"""

from typing import Literal

import openai
from pydantic import BaseModel, Field
from serve import server_from_arguments


class BookTable(BaseModel):
    """Book a table in a restaurant."""

    guests: int = Field(ge=1, le=8)
    day: Literal["friday", "saturday", "sunday"]


class CancelOrder(BaseModel):
    """Cancel an order."""

    order_id: str = Field(pattern="^ORD-[0-9]{5}$")


TOOLS = [
    openai.pydantic_function_tool(BookTable),
    openai.pydantic_function_tool(CancelOrder),
]


def main(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="none")
    named = {"type": "function", "function": {"name": "BookTable"}}
    for choice in ("required", named):
        answer = client.chat.completions.parse(
            model="demo",
            messages=[{"role": "user", "content": "Call a tool:"}],
            tools=TOOLS,
            tool_choice=choice,
            temperature=0,
            max_tokens=200,
        )
        for call in answer.choices[0].message.tool_calls:
            # An instance of BookTable or CancelOrder, made of the arguments.
            print(call.function.name, call.function.parsed_arguments.model_dump_json())


if __name__ == "__main__":
    with server_from_arguments() as url:
        main(url)
