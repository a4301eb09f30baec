"""How methods of vLLM are wrapped: once each. Depends on nothing.

docs/hosts.md lists every method that is wrapped, with the reason; `contract` has what is expected of them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


def wrap(owner: type | ModuleType, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a method, or a function of a module, with what `make` makes of it. Does nothing the second
    time, nor where there is none: the contract says then why nothing is guided."""
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "_guided_plugin"):
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
