"""`TypedSpec`: a type as a spec, and outputs as its values.

    users = TypedSpec(list[User])
    users.spec          an OutputSpec
    users.read(text)    a list of User

Depends on specs and their Python forms.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from guided_plugin.config import no_constant
from guided_plugin.errors import OutputError, SpecError, shown
from guided_plugin.spec.output_spec import OutputSpec
from guided_plugin.spec.python.form import form_of, is_python

T = TypeVar("T")


class TypedSpec(Generic[T]):
    """A spec that knows which Python values its outputs stand for. Accepted wherever a
    spec is."""

    @overload
    def __init__(self: TypedSpec[T], of: type[T], **options: Any) -> None: ...

    @overload
    def __init__(self: TypedSpec[Any], of: Any, **options: Any) -> None: ...

    def __init__(self, of: Any, **options: Any) -> None:
        """`of`: a type (a pydantic model, dataclass, TypedDict, Enum, Literal, union,
        or container of these). `options` are those of `OutputSpec`."""
        if not is_python(of):
            hint = "OutputSpec.parse reads other forms; a call is a type with its name and arguments"
            raise SpecError(
                f"must be a type, not {shown(of)}", where="TypedSpec", hint=hint
            )
        form = form_of(of)
        self.spec: OutputSpec = getattr(OutputSpec, form.kind)(form.value, **options)
        """The spec that goes to engines and other processes."""
        self._read = form.read

    def read(self, text: str) -> T:
        """The value that a complete output stands for. Raises OutputError if it stands
        for no value.

        With `start_after`, give it what follows the trigger."""
        value: T = self._read(text)
        return value

    def __copy__(self) -> TypedSpec[T]:
        return self  # it never changes

    def __deepcopy__(self, memo: Any) -> TypedSpec[T]:
        return self  # vLLM clones the params of each request

    def __repr__(self) -> str:
        return f"TypedSpec({self.spec})"


def reader_of(given: Any, spec: OutputSpec | None) -> Callable[[str], Any] | None:
    """Return what makes a value of a complete output; None where it is a text. `given`:
    what a caller passed."""
    if isinstance(given, TypedSpec):
        return given.read
    if is_python(given):
        return TypedSpec(given).read
    return _json_value if spec is not None and spec.is_json else None


def _json_value(text: str) -> Any:
    """Return the value of a JSON text."""
    try:
        return json.loads(text, parse_constant=no_constant)
    except (ValueError, RecursionError, TypeError) as error:
        hint = "only a complete output can be read: check for truncation"
        raise OutputError(
            f"the output is not JSON that can be read: {error}", hint=hint
        ) from None
