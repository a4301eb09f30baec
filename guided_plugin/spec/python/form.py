"""The form that is asked for with a type. Depends on errors.

Literal or Enum of texts    one of these texts, as it stands: no quotes
any other type              JSON (`types`)
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from guided_plugin.errors import printable


@dataclass(frozen=True, slots=True)
class PythonForm:
    """A constraint, and the way back from an output."""

    kind: Literal["json_schema", "choice"]
    value: Any
    """The argument that the constructor of this kind takes."""
    read: Callable[[str], Any]


def is_python(of: Any) -> bool:
    """True if this is a type, and not a form that clients send."""
    if isinstance(of, type | types.UnionType | typing.NewType):
        return True
    # `type X = ...`, since Python 3.12
    named = hasattr(of, "__value__") and hasattr(of, "__type_params__")
    return of is Any or named or typing.get_origin(of) is not None


def form_of(of: Any, *, texts: bool = True) -> PythonForm:
    """Return what a type asks for. `texts`: an `Enum` or `Literal` of texts is these
    texts, not JSON. Raises SpecError."""
    # it takes a tenth of a second, and few processes need it
    from guided_plugin.spec.python.types import JsonType

    made = JsonType(of, _name_of(of))
    if texts and made.texts:
        return PythonForm("choice", made.texts, made.read_text)
    return PythonForm("json_schema", made.schema, made.read)


def _name_of(of: Any) -> str:
    """A type, as messages name it: `list[User]`, `User`."""
    text = of.__name__ if isinstance(of, type) else ""
    if not text or getattr(of, "__args__", None):
        text = repr(of).replace("typing.", "")
    return printable(text, 120)
