"""What is asked for with a type, a function or a compiled regex. Depends on errors.

Literal or Enum of texts    one of these texts, as it stands: no quotes
re.Pattern                  a text that it matches as a whole
function                    a call of it (`calls`)
any other type              JSON
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from guided_plugin.errors import SpecError, shown
from guided_plugin.spec.python.calls import CallReader, call_type, function_names
from guided_plugin.spec.python.library import json_type
from guided_plugin.spec.python.plain import PlainType
from guided_plugin.spec.python.texts import match, pattern_text, value_of_text

__all__ = ["PythonForm", "calls_form", "form_of", "is_python", "json_form"]


@dataclass(frozen=True, slots=True)
class PythonForm:
    """A constraint, and the way back from an output."""

    kind: Literal["json_schema", "choice", "regex", "structural_tag"]
    value: Any
    """What the constructor of this kind takes."""
    read: Callable[[str], Any]
    checked: tuple[str, ...] = ()
    """What the constraint does not say, and `read` checks."""


def is_python(of: Any) -> bool:
    """Whether this is a type, a function or a compiled regex, and not a form that clients send."""
    if isinstance(of, type | types.UnionType | typing.NewType | re.Pattern) or inspect.isroutine(of):
        return True
    named = hasattr(of, "__value__") and hasattr(of, "__type_params__")  # `type X = ...`, since Python 3.12
    return of is Any or named or typing.get_origin(of) is not None


def form_of(of: Any) -> PythonForm:
    """What a type, a function or a compiled regex asks for. Raises SpecError."""
    if isinstance(of, re.Pattern):
        return PythonForm("regex", pattern_text(of), partial(match, of))
    return json_form(of, texts=True)


def json_form(of: Any, *, texts: bool = False) -> PythonForm:
    """A type, or a call of a function, as JSON. `texts`: an `Enum` or `Literal` of texts is these texts."""
    if isinstance(of, re.Pattern):
        raise SpecError("a regex is no JSON Schema", where="json_schema", hint="pass it to TypedSpec")
    if inspect.isroutine(of):
        return calls_form([of])
    made = json_type(of)
    if texts and isinstance(made, PlainType) and made.texts is not None:
        values = {text: made.value(text) for text in made.texts}
        return PythonForm("choice", made.texts, partial(value_of_text, values))
    return PythonForm("json_schema", made.schema, made.read, made.checked)


def calls_form(functions: Sequence[Any], *, begin: str = "", end: str = "", many: bool = False) -> PythonForm:
    """A call of one of several functions between two texts; `many`: free text with any number of calls."""
    for name, text in (("begin", begin), ("end", end)):
        if not isinstance(text, str):
            raise SpecError(f"must be a text, not {shown(text)}", where=name, hint='as in "<tool_call>"')
    if many and not begin.strip():
        hint = 'say what a call begins with, as in begin="<tool_call>"'
        raise SpecError("calls in free text need a text that begins them", where="begin", hint=hint)
    named = function_names(functions)
    made = json_type(call_type(named))
    reader = CallReader(named, made.read, begin, end)
    if not begin and not end:
        return PythonForm("json_schema", made.schema, reader.one, made.checked)
    tag: dict[str, Any] = {
        "type": "tag",
        "begin": begin,
        "content": {"type": "json_schema", "json_schema": made.schema},
        "end": end,
    }
    if many:
        tag = {"type": "triggered_tags", "triggers": [begin.rstrip()], "tags": [tag]}
    return PythonForm("structural_tag", {"format": tag}, reader.all if many else reader.one, made.checked)
