"""What is asked for with a type or a function. Depends on errors.

Literal or Enum of texts    one of these texts, as it stands: no quotes
function                    a call of it
any other type              JSON (`types`)
"""

from __future__ import annotations

import inspect
import json
import sys
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Union

from guided_plugin.errors import OutputError, SpecError, printable, shown

if TYPE_CHECKING:
    from guided_plugin.spec.python.types import JsonType

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:  # pydantic reads no other there; torch needs this package itself
    from typing_extensions import TypedDict


@dataclass(frozen=True, slots=True)
class PythonForm:
    """A constraint, and the way back from an output."""

    kind: Literal["json_schema", "choice", "structural_tag"]
    value: Any
    """What the constructor of this kind takes."""
    read: Callable[[str], Any]
    checked: tuple[str, ...] = ()
    """What the constraint does not say, and `read` checks."""


def is_python(of: Any) -> bool:
    """Whether this is a type or a function, and not a form that clients send."""
    if isinstance(of, type | types.UnionType | typing.NewType):
        return True
    # `type X = ...`, since Python 3.12
    named = hasattr(of, "__value__") and hasattr(of, "__type_params__")
    generic = typing.get_origin(of) is not None
    return of is Any or named or generic or inspect.isroutine(of)


def form_of(of: Any, *, texts: bool = True) -> PythonForm:
    """What a type asks for, or a function: a call of it. `texts`: an `Enum` or
    `Literal` of texts is these texts, not JSON. Raises SpecError."""
    if inspect.isroutine(of):
        return calls_form([of])
    made = _json_type(of)
    if texts and made.texts:
        return PythonForm("choice", made.texts, made.read_text)
    return PythonForm("json_schema", made.schema, made.read, made.checked)


def calls_form(
    functions: Sequence[Any], *, begin: str = "", end: str = "", many: bool = False
) -> PythonForm:
    """A call of one of several functions between two texts; `many`: free text with any
    number of calls."""
    for name, text in (("begin", begin), ("end", end)):
        if not isinstance(text, str):
            raise SpecError(
                f"must be a string, not {shown(text)}",
                where=name,
                hint='as in "<tool_call>"',
            )
    if many and not begin.strip():
        hint = 'say what a call begins with, as in begin="<tool_call>"'
        raise SpecError(
            "calls in free text need a text that begins them", where="begin", hint=hint
        )
    named = function_names(functions)
    made = _json_type(call_type(named))

    def call(text: str) -> ToolCall:
        found = made.read(text)
        return ToolCall(found["name"], found["arguments"], named[found["name"]])

    def whole(text: str) -> ToolCall:
        if not text.startswith(begin) or not text.endswith(end):
            raise OutputError(
                f"the output is not between {begin!r} and {end!r}", hint=_CUT
            )
        return call(text[len(begin) : len(text) - len(end)])

    def several(text: str) -> list[ToolCall]:
        found = []
        position = text.find(begin)
        while position >= 0:
            # A string in the arguments may hold what ends a call: the JSON itself tells
            # where it ends.
            start = position + len(begin)
            start += len(text[start:]) - len(text[start:].lstrip())
            try:
                _, stop = json.JSONDecoder().raw_decode(text, start)
            except (ValueError, RecursionError) as error:
                raise OutputError(
                    f"a call in the output is not JSON: {error}", hint=_CUT
                ) from None
            found.append(call(text[start:stop]))
            position = text.find(begin, stop)
        return found

    if not begin and not end:
        return PythonForm("json_schema", made.schema, whole, made.checked)
    content = {"type": "json_schema", "json_schema": made.schema}
    tag: dict[str, Any] = {
        "type": "tag",
        "begin": begin,
        "content": content,
        "end": end,
    }
    if many:
        tag = {"type": "triggered_tags", "triggers": [begin.rstrip()], "tags": [tag]}
    return PythonForm(
        "structural_tag", {"format": tag}, several if many else whole, made.checked
    )


_CUT = "only a complete output can be read: check for truncation"


def _json_type(of: Any) -> JsonType:
    try:
        from guided_plugin.spec.python.types import JsonType
    except ImportError as error:
        what = f"types and functions are read by pydantic, which cannot be imported: {error}"
        raise SpecError(what, where=name_of(of), hint="pip install pydantic") from None
    return JsonType(of, name_of(of))


# Functions as types: a call is {"name": "weather", "arguments": {"city": "Oslo"}}, as
# chat templates show calls to models, and as most models write them.


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model wrote: `call.function(**call.arguments)` makes it."""

    name: str
    arguments: dict[str, Any]
    """Those that the model gave, as values of the parameters' types."""
    function: Callable[..., Any]


def function_names(functions: Sequence[Any]) -> dict[str, Callable[..., Any]]:
    """Functions by the names that calls use. Raises SpecError for what a model can't
    call by a name."""
    found: dict[str, Callable[..., Any]] = {}
    for function in functions:
        name = getattr(function, "__name__", "")
        if (
            isinstance(function, type)
            or not callable(function)
            or not name.isidentifier()
        ):
            hint = "give functions that have a name: def weather(city: str) -> str: ..."
            raise SpecError(
                f"{name_of(function)} is not a function with a name",
                where="tools",
                hint=hint,
            )
        if name in found:
            raise SpecError(
                f"two functions are called {name!r}",
                where="tools",
                hint="rename one of them",
            )
        found[name] = function
    if not found:
        raise SpecError(
            "no function is given",
            where="tools",
            hint="TypedSpec.tools(weather, search)",
        )
    return found


def call_type(functions: dict[str, Callable[..., Any]]) -> Any:
    """The type of a call of one of several functions, as JSON has it."""
    calls = [
        TypedDict(
            f"call_{name}",
            {"name": Literal[name], "arguments": _arguments(name, function)},
        )  # type: ignore[operator]
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
        if parameter.kind not in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        ):
            raise SpecError(
                f"the parameter {str(parameter)!r} cannot be passed by name",
                where=name,
                hint="calls name their arguments: wrap it in a function whose parameters all have names",
            )
        if parameter.name not in hints:
            what = f"the parameter {parameter.name!r} has no type"
            raise SpecError(
                what, where=name, hint=f"write {parameter.name}: str, for example"
            )
        hint = hints[parameter.name]
        given = parameter.default is not parameter.empty
        fields[parameter.name] = NotRequired[hint] if given else hint
    make: Any = TypedDict
    arguments = make(name, fields)
    # also where there are none, which alone says nothing
    arguments.__pydantic_config__ = {"extra": "forbid"}
    return arguments


def name_of(of: Any) -> str:
    """A type or function, as messages name it: `list[User]`, `User`, `weather`."""
    text = getattr(of, "__name__", "") if isinstance(of, type) or callable(of) else ""
    if not text or getattr(of, "__args__", None):
        text = repr(of).replace("typing.", "")
    return printable(text, 120)
