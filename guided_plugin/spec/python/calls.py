"""Functions as types: a call is an object with the function's name and its arguments. Depends on errors.

    {"name": "weather", "arguments": {"city": "Oslo", "days": 2}}

That is the form in which chat templates show calls to models, and in which most of them write calls.
"""

from __future__ import annotations

import inspect
import json
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Union

from guided_plugin.errors import OutputError, SpecError, printable

__all__ = ["ToolCall", "call_type", "function_names", "name_of", "read_call", "read_calls"]

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:  # pydantic reads no other there; torch needs this package itself
    from typing_extensions import TypedDict


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wrote: `call.function(**call.arguments)` makes it."""

    name: str
    arguments: dict[str, Any]
    """Those that the model gave, as values of the parameters' types."""
    function: Callable[..., Any]


Functions = typing.Mapping[str, Callable[..., Any]]
"""By the names that calls use."""


def function_names(functions: Sequence[Any]) -> Functions:
    """Functions by the names that calls use. Raises SpecError for what a model can't call by a name."""
    found: dict[str, Callable[..., Any]] = {}
    for function in functions:
        name = getattr(function, "__name__", "")
        if isinstance(function, type) or not callable(function) or not name.isidentifier():
            hint = "give functions that have a name: def weather(city: str) -> str: ..."
            raise SpecError(f"{name_of(function)} is not a function with a name", where="tools", hint=hint)
        if name in found:
            raise SpecError(f"two functions are called {name!r}", where="tools", hint="rename one of them")
        found[name] = function
    if not found:
        raise SpecError("no function is given", where="tools", hint="TypedSpec.tools(weather, search)")
    return found


def call_type(functions: Functions) -> Any:
    """The type of a call of one of several functions, as JSON has it."""
    calls = [
        TypedDict(f"call_{name}", {"name": Literal[name], "arguments": _arguments(name, function)})  # type: ignore[operator]
        for name, function in functions.items()
    ]
    return Union[tuple(calls)]  # noqa: UP007  (of a list that is made here)


def _arguments(name: str, function: Callable[..., Any]) -> Any:
    """The parameters of a function as a type."""
    try:
        parameters = inspect.signature(function).parameters.values()
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, ValueError, AttributeError) as error:
        raise SpecError(
            f"its parameters cannot be read: {error}",
            where=name,
            hint="annotate it with types that are known at the top level of its module",
        ) from None
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise SpecError(
                f"the parameter {str(parameter)!r} cannot be given by its name",
                where=name,
                hint="calls name their arguments: wrap it in a function whose parameters all have names",
            )
        if parameter.name not in hints:
            what = f"the parameter {parameter.name!r} has no type"
            raise SpecError(what, where=name, hint=f"write {parameter.name}: str, for example")
        hint, given = hints[parameter.name], parameter.default is not parameter.empty
        fields[parameter.name] = NotRequired[hint] if given else hint
    return TypedDict(name, fields)  # type: ignore[operator]


Read = Callable[[str], Any]
"""Makes the object that is a call of its JSON."""


def read_call(functions: Functions, read: Read, begin: str, end: str, text: str) -> ToolCall:
    """The call that a whole output is, between the texts around it."""
    if not text.startswith(begin) or not text.endswith(end):
        raise OutputError(f"is not between {begin!r} and {end!r}", hint=_CUT)
    made = read(text[len(begin) : len(text) - len(end)])
    return ToolCall(made["name"], made["arguments"], functions[made["name"]])


def read_calls(functions: Functions, read: Read, begin: str, text: str) -> list[ToolCall]:
    """The calls in free text, in their order."""
    found, position = [], text.find(begin)
    while position >= 0:
        # A string in the arguments may hold what ends a call: the JSON itself tells where it ends.
        start = position + len(begin)
        start += len(text[start:]) - len(text[start:].lstrip())
        try:
            _, stop = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise OutputError(f"a call in it is not JSON: {error}", hint=_CUT) from None
        found.append(read_call(functions, read, "", "", text[start:stop]))
        position = text.find(begin, stop)
    return found


_CUT = "only a complete output can be read: look at whether it was cut"


def name_of(of: Any) -> str:
    """A type or function, as messages name it: `list[User]`, `User`, `weather`."""
    text = getattr(of, "__name__", "") if isinstance(of, type) or callable(of) else ""
    if not text or getattr(of, "__args__", None):
        text = repr(of).replace("typing.", "")
    return printable(text, 120)
