"""The `openai` client and a vLLM server with the plugin: a model, a regex, a choice, a
refused schema.

python examples/vllm_server_client.py        # starts a server; --base-url URL asks one
that runs
"""

import json
from typing import Literal

import openai
from pydantic import BaseModel, Field
from serve import server_from_arguments


class Person(BaseModel):
    name: str = Field(max_length=30)
    age: int = Field(ge=18, le=90)
    role: Literal["engineer", "teacher", "nurse"]


def main(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="none")
    messages = [{"role": "user", "content": "Person as JSON:"}]
    options = {"model": "demo", "temperature": 0, "max_tokens": 200}

    answer = client.chat.completions.parse(
        messages=messages, response_format=Person, **options
    )
    print("person:", answer.choices[0].message.parsed.model_dump_json())

    # Forms that OpenAI has no name for: vLLM's own field, and the plugin's, whose value
    # is JSON text.
    order = {"structured_outputs": {"regex": "ORD-[0-9]{5}"}}
    answer = client.chat.completions.create(
        messages=messages, extra_body=order, **options
    )
    print("regex:", answer.choices[0].message.content)

    choice = {"vllm_xargs": {"guided": json.dumps({"choice": ["yes", "no"]})}}
    answer = client.chat.completions.create(
        messages=messages, extra_body=choice, **options
    )
    print("choice:", answer.choices[0].message.content)

    # A schema that can't be enforced is never served without it.
    wrong = {
        "type": "json_schema",
        "json_schema": {"name": "age", "schema": {"type": "int"}},
    }
    try:
        client.chat.completions.create(
            messages=messages, response_format=wrong, **options
        )
    except openai.BadRequestError as error:
        print("refused:", error.body["message"])


if __name__ == "__main__":
    with server_from_arguments() as url:
        main(url)
