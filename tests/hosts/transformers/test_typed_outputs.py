"""Types, functions and compiled regexes given to a `Guide`, and the values that come back."""

import re
from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from pydantic import BaseModel, Field, field_validator

import guided_plugin as gp
from guided_plugin.errors import OutputError, SpecError


@dataclass
class Pair:
    left: bool
    right: Literal["a", "b"] | None = None


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)


class Never(BaseModel):
    a: bool

    @field_validator("a")
    @classmethod
    def refuse(cls, value):
        raise ValueError("never right")


def turn(side: Literal["left", "right"], twice: bool = False) -> str:
    return f"{side} {twice}"


@pytest.fixture(scope="module")
def guide(demo_tokenizer, demo_model):
    config = gp.GuidedConfig(threads=2, isolate_compiles=False, unenforced_keywords=("uniqueItems",))
    with gp.Guide(demo_tokenizer, model=demo_model, config=config) as guide:
        yield guide


def test_values_of_their_types_come_back(demo_model, guide):
    specs = [
        *(Pair, Pair | None, Literal["yes", "no"], turn, Person, tuple[Person, Pair]),
        *(re.compile("(?P<digits>[0-9]{2})-x"), gp.TypedSpec(bool), Never, set[bool]),
        gp.TypedSpec.tools(turn, begin="<call>", end="</call>"),
        object(),
    ]
    outputs = guide.generate(demo_model, ["Person as JSON: "] * len(specs), specs, max_new_tokens=120)
    pair, maybe, choice, call, person, both, match, flag, never, flags, tool, wrong = outputs
    assert isinstance(pair.parsed, Pair)
    assert maybe.complete
    assert maybe.parsed is None if maybe.text == "null" else isinstance(maybe.parsed, Pair)
    assert choice.parsed == choice.text
    assert choice.text in ("yes", "no")
    assert call.parsed.function(**call.parsed.arguments).startswith(call.parsed.arguments["side"])
    assert isinstance(person.parsed, Person)
    assert list(map(type, both.parsed)) == [Person, Pair]
    assert match.parsed["digits"] == match.text[:2]
    assert flag.parsed in (True, False)
    assert (tool.parsed.name, tool.text[:6]) == ("turn", "<call>")
    assert isinstance(never.error, OutputError)
    assert "never right" in str(never.error)
    assert (never.complete, never.parsed) == (True, None)
    assert isinstance(wrong.error, SpecError)
    assert [output.unenforced for output in outputs] == [
        ("uniqueItems",) if output is flags else () for output in outputs
    ]


def test_arguments_for_generate_take_types_and_name_what_nothing_enforced(demo_tokenizer, demo_model, guide):
    inputs = demo_tokenizer(["x", "x", "x"], return_tensors="pt", return_token_type_ids=False)
    typed = gp.TypedSpec(Pair)
    kwargs = guide.generate_kwargs([typed, set[bool], None])
    made = demo_model.generate(**inputs, **kwargs, max_new_tokens=40)
    assert kwargs.unenforced == {1: ("uniqueItems",)}
    text = demo_tokenizer.decode(made[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert isinstance(typed.read(text), Pair)
    assert kwargs.errors == {}
    with pytest.raises(SpecError, match="spec 1: turn_back"):
        guide.generate_kwargs([Pair, turn_back])


def turn_back(*sides: str) -> None: ...


def test_free_text_may_hold_no_call(demo_model, guide):
    torch.manual_seed(0)
    typed = gp.TypedSpec.tools(turn, begin="<call>", end="</call>", many=True)
    (output,) = guide.generate(demo_model, "Person as JSON: ", typed, max_new_tokens=60)
    assert output.parsed == [] if output.complete else output.parsed is None
