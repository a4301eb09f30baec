"""Classes that tests take for specs."""

import enum
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, NamedTuple, NotRequired, Required

from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Mixed(enum.Enum):
    ONE = 1
    TRUE = "yes"
    NOTHING = None


@dataclass
class Point:
    x: int
    y: float = 0.0
    tags: list[str] = field(default_factory=list)


@dataclass
class Tree:
    value: int
    left: "Tree | None" = None
    right: "Tree | None" = None


@dataclass
class Positive:
    number: int
    doubled: int = field(init=False)

    def __post_init__(self):
        if self.number <= 0:
            raise ValueError("must be positive")
        self.doubled = 2 * self.number


class Pair(NamedTuple):
    name: str
    size: int = 0


class Options(TypedDict):
    a: int
    b: NotRequired[str]


class Loose(TypedDict, total=False):
    a: Required[Color]
    b: "NotRequired[list[Options]]"


class Person(BaseModel):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=150)


class Shouting(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def loud(cls, value):
        if value != value.upper():
            raise ValueError("must be loud")
        return value


class Money(BaseModel):
    price: Annotated[Decimal, Field(max_digits=5, decimal_places=2, gt=0)]
