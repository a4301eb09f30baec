"""What is asked for with a type, a function or a compiled regex. Depends on errors.

Literal or Enum of texts    one of these texts, as it stands: no quotes
re.Pattern                  a text that it matches as a whole
function                    a call of it (`calls`)
any other type              JSON (`types`)
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from guided_plugin.errors import OutputError, SpecError, shown
from guided_plugin.spec.python.calls import call_type, function_names, name_of, read_call, read_calls

if TYPE_CHECKING:
    from guided_plugin.spec.python.types import JsonType

__all__ = ["PythonForm", "calls_form", "form_of", "is_python", "json_form"]

_KEPT_FLAGS = re.UNICODE | re.ASCII
_WAYS_OUT = {
    re.IGNORECASE: "write both cases, as in [aA]",
    re.DOTALL: "write [^] for any character",
    re.MULTILINE: "write the line ends",
    re.VERBOSE: "write it without spaces and comments",
}


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
        return PythonForm("regex", _pattern_text(of), partial(_match, of))
    return json_form(of, texts=True)


def json_form(of: Any, *, texts: bool = False) -> PythonForm:
    """A type, or a call of a function, as JSON. `texts`: an `Enum` or `Literal` of texts is these texts."""
    if isinstance(of, re.Pattern):
        raise SpecError("a regex is not a JSON Schema", where="json_schema", hint="pass it to TypedSpec")
    if inspect.isroutine(of):
        return calls_form([of])
    made = _json_type(of)
    if texts and made.texts:
        return PythonForm("choice", made.texts, made.read_text)
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
    made = _json_type(call_type(named))
    read = partial(read_call, named, made.read, begin, end)
    if not begin and not end:
        return PythonForm("json_schema", made.schema, read, made.checked)
    tag: dict[str, Any] = {
        "type": "tag",
        "begin": begin,
        "content": {"type": "json_schema", "json_schema": made.schema},
        "end": end,
    }
    if many:
        tag = {"type": "triggered_tags", "triggers": [begin.rstrip()], "tags": [tag]}
        many_read = partial(read_calls, named, made.read, begin)
        return PythonForm("structural_tag", {"format": tag}, many_read, made.checked)
    return PythonForm("structural_tag", {"format": tag}, read, made.checked)


def _json_type(of: Any) -> JsonType:
    try:
        from guided_plugin.spec.python.types import JsonType
    except ImportError as error:
        what = f"types and functions are read by pydantic, which cannot be imported: {error}"
        raise SpecError(what, where=name_of(of), hint="pip install pydantic") from None
    return JsonType(of)


def _pattern_text(pattern: re.Pattern[Any]) -> str:
    """The regex of a compiled pattern. Raises SpecError for flags that change what it says."""
    if not isinstance(pattern.pattern, str):
        raise SpecError("is a pattern of bytes", where="re.Pattern", hint="compile a text")
    for flag, hint in _WAYS_OUT.items():
        if pattern.flags & flag:
            what = f"the flag {flag.name} changes what it says, and cannot be kept"
            raise SpecError(what, where="re.Pattern", hint=hint)
    if pattern.flags & ~_KEPT_FLAGS:
        what = f"it has flags that cannot be kept: {re.RegexFlag(pattern.flags & ~_KEPT_FLAGS)!r}"
        raise SpecError(what, where="re.Pattern", hint="compile it without flags")
    return pattern.pattern


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """The match of a whole text."""
    found = pattern.fullmatch(text)
    if found is None:
        raise OutputError(
            f"{shown(text)} does not match {shown(pattern.pattern)}",
            hint="if it is complete, Python reads this regex otherwise: docs/specs.md#python-types",
        )
    return found
