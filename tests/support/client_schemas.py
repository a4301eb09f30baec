"""What the tests of real clients ask for. Depends on pydantic and jsonschema alone."""

import json
from typing import Annotated, Literal

import jsonschema
from pydantic import BaseModel, ConfigDict, Field


class Person(BaseModel):
    """A person to save."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=8)]
    age: Annotated[int, Field(ge=0, le=120)]
    state: Literal["new", "known"]
    tags: Annotated[list[bool], Field(max_length=2)]


SCHEMA = Person.model_json_schema()
SAVE = {
    "type": "function",
    "function": {"name": "save", "parameters": SCHEMA, "strict": True},
}
ASKING = [{"role": "user", "content": "Write a record"}]


def check(text):
    """A whole answer, by two judges that this package has no part in."""
    jsonschema.validate(json.loads(text), SCHEMA)
    return Person.model_validate_json(text)
