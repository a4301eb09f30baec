"""instructor in its modes of JSON Schema and of tools, whole and as a stream of parts.

Its mode of tools sends none as `strict`, whatever it is asked for: the server holds
them.
"""

import instructor
import openai
import pytest
from client_schemas import ASKING, Person, check


@pytest.fixture(
    params=[instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS], ids=["schema", "tool"]
)
def client(request, base_url, wire):
    plain = openai.OpenAI(
        base_url=base_url,
        api_key="none",
        max_retries=0,
        timeout=240,
        http_client=wire.client(),
    )
    with plain:
        yield instructor.from_openai(plain, mode=request.param)


@pytest.mark.real_model
def test_a_model(client, whole):
    def ask():
        return client.chat.completions.create(
            model="demo",
            messages=ASKING,
            response_model=Person,
            max_tokens=250,
            max_retries=0,
        )

    check(whole(ask).model_dump_json())  # of a class that instructor derives


def test_a_stream_of_parts(client, whole):
    def ask():
        *_, last = client.chat.completions.create_partial(
            model="demo",
            messages=ASKING,
            response_model=Person,
            max_tokens=250,
            max_retries=0,
        )
        return last

    check(whole(ask).model_dump_json())
