"""Types as specs, and outputs as their values."""

import collections.abc
import dataclasses
import datetime
import json
import pickle
import re
import subprocess
import sys
import typing
from decimal import Decimal
from random import Random
from typing import Annotated, Any, Literal, NewType, Optional, Union

import pydantic
import pytest
from pydantic import Field
from stopping import Walker
from typed_classes import (
    Color,
    Level,
    Loose,
    Mixed,
    Money,
    Options,
    Pair,
    Person,
    Point,
    Positive,
    Shouting,
    Tree,
)

from guided_plugin import OutputSpec, TypedSpec
from guided_plugin.errors import GrammarError, OutputError, SpecError

UserId = NewType("UserId", int)

TYPES = [
    *(bool, int, float, str, type(None), Any, object, list, dict, tuple, set, UserId),
    *(Literal["a", "b"], Literal[1, 2], Literal["a", 1, None, True]),
    *(Color, Level, Mixed),
    *(list[int], typing.List[Color], collections.abc.Sequence[bool], tuple[int, str], tuple[bool, ...]),  # noqa: UP006
    *(set[int], frozenset[Color], dict[str, int], typing.Dict[str, Point], tuple[()]),  # noqa: UP006
    *(Point, Tree, Options, Loose, Pair, Annotated[Point, "where it is"]),
    *(int | None, Optional[Color], Union[int, str], Point | Options, int | float, list[Tree] | None),  # noqa: UP007, UP045
    *(Person, list[Person], Person | None, dict[str, Person], tuple[Person, int], set[Literal["a", "b"]]),
    *(datetime.date, Annotated[int, Field(gt=3, lt=9)], Money),
]  # fmt: skip


@pytest.mark.parametrize("of", TYPES, ids=str)
def test_every_output_of_a_type_is_read_as_a_value_of_it(compiler, of):
    typed = TypedSpec(of)
    chance = Random(str(of))
    for _ in range(12):
        text = Walker(compiler).output(typed.spec, chance)
        value = typed.read(text)
        assert pydantic.TypeAdapter(of).validate_python(value) == value, text


@pytest.mark.parametrize(
    ("of", "text", "value"),
    [
        (Color | None, '"red"', Color.RED),
        (Level, "2", Level.HIGH),
        (Literal[1, True], "true", True),
        (Mixed, '"yes"', Mixed.TRUE),
        (Point, '{"x":1,"y":2,"tags":["a"]}', Point(1, 2.0, ["a"])),
        (Tree, '{"value":1,"right":{"value":2}}', Tree(1, None, Tree(2))),
        (Loose, '{"a":"red","b":[{"a":1}]}', {"a": Color.RED, "b": [{"a": 1}]}),
        (Pair, '["a"]', Pair("a")),
        (set[int], "[1,2]", {1, 2}),
        (tuple[int, Color], '[1,"blue"]', (1, Color.BLUE)),
        (int | float, "1.0", 1.0),
        (Point | Options, '{"a":1}', {"a": 1}),
        (Positive, '{"number":2}', Positive(2)),
        (Money, '{"price":1.25}', Money(price=Decimal("1.25"))),
        (datetime.date, '"2026-01-02"', datetime.date(2026, 1, 2)),
    ],
)
def test_values(of, text, value):
    found = TypedSpec(of).read(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("of", "text", "where", "what"),
    [
        (int, "1.5", "#", "valid integer"),
        (list[int], '[1,"a"]', "#/1", "valid integer"),
        (Point, "{}", "#/x", "Field required"),
        (Color, "green", "#", "should be 'red' or 'blue'"),
        (set[Any], "[[1]]", "#/0", "hashable"),
        (Positive, '{"number":0}', "#", "must be positive"),
        (int, "{", "#", "Invalid JSON"),
        (list[Any], "[" * 100_000, "#", "Invalid JSON"),
        (Person, '{"name":"b","age":200}', "#/age", "less than or equal to 150"),
        (Shouting, '{"word":"a"}', "#/word", "must be loud"),
    ],
)
def test_what_is_not_a_value_is_an_error_with_its_place(of, text, where, what):
    typed = TypedSpec(of)
    with pytest.raises(OutputError, match=re.escape(what)) as caught:
        typed.read(text)
    assert caught.value.where == where
    assert caught.value.hint


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (Color, "choice"),
        (Literal["a"], "choice"),
        (Literal["a", 1], "json_schema"),
        (Color | None, "json_schema"),
        (Point, "json_schema"),
    ],
)
def test_kinds(of, kind):
    assert TypedSpec(of).spec.kind == kind
    assert OutputSpec.parse(of) == TypedSpec(of).spec == OutputSpec.parse(TypedSpec(of))


def test_a_type_is_json_where_json_is_asked_for():
    assert OutputSpec.json_schema(Color).document()["enum"] == ["red", "blue"]
    assert OutputSpec.json_schema(int) == OutputSpec.json_schema({"type": "integer"})
    assert OutputSpec.json_schema(Person) == OutputSpec.json_schema(
        Person.model_json_schema()
    )


def test_options_and_names():
    typed = TypedSpec(
        Point, strict=False, whitespace="flexible", start_after="</think>"
    )
    assert (typed.spec.strict, typed.spec.whitespace) == (False, "flexible")
    assert typed.read('{"x":1,"more":2}') == Point(1)
    with pytest.raises(SpecError, match="unknown option"):
        TypedSpec(Point, whitspace="compact")
    assert "json_schema" in repr(typed)
    assert pickle.loads(pickle.dumps(typed.spec)) == typed.spec


def test_two_classes_of_one_name():
    def make(kind):
        return dataclasses.make_dataclass("Same", [("a", kind)])

    one = make(int)
    other = make(str)
    typed = TypedSpec(tuple[one, other])
    assert len(typed.spec.document()["$defs"]) == 2
    assert typed.read('[{"a":1},{"a":"x"}]') == (one(1), other("x"))


class Place(pydantic.BaseModel, frozen=True):
    name: Literal["a", "b"]
    at: tuple[int, bool] | None


@pytest.mark.parametrize(
    "of",
    [
        *(set[bool], set[float], set[str], set[Literal["a", "b", 1]], set[Any]),
        *(set[int | str | None], Annotated[set[bool], Field(min_length=2)]),
    ],
)
def test_sets_hold_as_many_values_as_their_arrays(compiler, of):
    typed = TypedSpec(of)
    for seed in range(10):
        text = Walker(compiler).output(typed.spec, Random(seed))
        assert len(typed.read(text)) == len(json.loads(text)), text


@pytest.mark.parametrize(
    "of", [set[tuple[int, str]], frozenset[Place], set[frozenset[bool]]]
)
def test_sets_of_what_is_no_scalar_are_refused(compiler, of):
    with pytest.raises(GrammarError, match="uniqueItems"):
        compiler.compile(TypedSpec(of).spec)


def test_decimals_are_numbers_with_their_places_and_digits(compiler):
    for seed in range(20):
        text = Walker(compiler).output(TypedSpec(Money).spec, Random(seed))
        money = TypedSpec(Money).read(text)
        assert 0 < money.price < 1000
        assert money.price == round(money.price, 2)


WITHOUT = """
import sys
import guided_plugin.spec
assert not {"torch", "pydantic"} & sys.modules.keys()
"""


def test_specs_import_no_pydantic():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
