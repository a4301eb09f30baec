"""instructor in its mode of JSON Schema, whole and as a stream of parts.

Its mode of tools sends none as `strict`, whatever it is asked for: vLLM then leaves the arguments to the
model, and instructor itself judges them.
"""

import instructor
import openai
import pytest
from client_schemas import ASKING, Person, check
from instructor.core.exceptions import IncompleteOutputException


@pytest.fixture
def client(base_url):
    plain = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=240)
    with plain:
        yield instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)


def test_a_model(client, whole):
    def ask():
        return client.chat.completions.create(
            model="demo", messages=ASKING, response_model=Person, max_tokens=250, max_retries=0
        )

    person = whole(ask, IncompleteOutputException)  # of a class that instructor derives
    check(person.model_dump_json())


def test_a_stream_of_parts(client, whole):
    def ask():
        parts = list(
            client.chat.completions.create_partial(
                model="demo", messages=ASKING, response_model=Person, max_tokens=250, max_retries=0
            )
        )
        last = parts[-1]
        return None if None in (last.name, last.age, last.state, last.tags) else last

    check(whole(ask, IncompleteOutputException).model_dump_json())
