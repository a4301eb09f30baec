"""instructor and a vLLM server with the plugin: no answer is ever asked for twice.

python examples/instructor_client.py        # starts a server; --base-url URL asks one
that runs
"""

from typing import Literal

import instructor
import openai
from pydantic import BaseModel, Field
from serve import server_from_arguments


class Person(BaseModel):
    name: str = Field(max_length=30)
    age: int = Field(ge=18, le=90)
    role: Literal["engineer", "teacher", "nurse"]


def main(base_url: str) -> None:
    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
        client = instructor.from_openai(
            openai.OpenAI(base_url=base_url, api_key="none"), mode=mode
        )
        person = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Person as JSON:"}],
            response_model=Person,
            temperature=0,
            max_tokens=200,
            max_retries=0,
        )
        print(mode.value, person.model_dump_json())


if __name__ == "__main__":
    with server_from_arguments() as url:
        main(url)
