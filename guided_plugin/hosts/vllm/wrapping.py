"""How methods of vLLM are wrapped: once each, if they have the expected arguments. Depends on errors.

docs/hosts.md lists every method that is wrapped, with the reason.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

from guided_plugin.errors import RequestError

Known = tuple[str, dict[str, tuple[str, ...]]]
"""A class of vLLM's as `module:name`, and its methods with their arguments; "..." at the end allows more."""


def mismatch(known: Known) -> RequestError | None:
    """What differs from what is known of a class of vLLM's, if anything does."""
    path, methods = known
    hint = "nothing is guided; docs/hosts.md has the versions that are supported"
    try:
        owner = resolve_name(path)
    except (ImportError, AttributeError) as error:
        return RequestError(f"this vLLM has no {path}: {error}", hint=hint)
    for name, expected in methods.items():
        method = getattr(owner, name, None)
        found = () if method is None else tuple(inspect.signature(method).parameters)
        if expected[-1] == "...":
            expected = expected[:-1]
            found = found[: len(expected)]
        if found != expected:
            what = f"this vLLM's {owner.__name__}.{name} has other arguments than expected"
            return RequestError(what, hint=hint)
    return None


def wrap(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a method with what `make` makes of it. Does nothing the second time."""
    original = getattr(owner, name)
    if hasattr(original, "_guided_plugin"):
        return
    wrapper: Any = functools.wraps(original)(make(original))
    wrapper._guided_plugin = True
    setattr(owner, name, wrapper)


class Call:
    """The arguments of a wrapped method by name, at a fraction of what `Signature.bind` costs."""

    def __init__(self, original: Any) -> None:
        names = list(inspect.signature(original).parameters)[1:]  # without self
        self._places = {name: at for at, name in enumerate(names)}

    def get(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An argument; None where it was not given."""
        at = self._places.get(name, len(args))
        return args[at] if at < len(args) else kwargs.get(name)

    def having(
        self, params: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other params."""
        at = self._places["params"]
        if at < len(args):
            return (*args[:at], params, *args[at + 1 :]), kwargs
        return args, {**kwargs, "params": params}
