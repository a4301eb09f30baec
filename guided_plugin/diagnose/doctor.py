"""`guided-plugin doctor`: does everything that guiding needs work on this machine?

A section yields findings; what it raises is a finding of it. Only the section on vLLM
imports vLLM.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

import guided_plugin
from guided_plugin.config import ENVIRONMENT_VARIABLE, GuidedConfig
from guided_plugin.diagnose.machine import (
    DRIVER,
    Finding,
    Status,
    cuda,
    processor_time,
    self_test,
)
from guided_plugin.errors import ConfigError, printable


def examine() -> dict[str, list[Finding]]:
    """The findings of each section."""
    sections: dict[str, list[Finding]] = {}
    for name, look in SECTIONS.items():
        found = sections[name] = []
        try:
            found += look()
        except ModuleNotFoundError as error:  # the section on versions tells
            found.append(Finding("unknown", f"needs {error.name}"))
        except ConfigError as error:
            status: Status = "problem" if look is options else "unknown"
            remedy = f"set {ENVIRONMENT_VARIABLE} to 0, 1 or a JSON object of options, or unset it"
            found.append(Finding(status, str(error), remedy))
        # of a library that is broken: that is what people come here for
        except Exception as error:
            what = f"cannot be checked: {type(error).__name__}: {printable(error)}"
            remedy = getattr(error, "hint", "") or "reinstall what the message names"
            found.append(Finding("problem", what, remedy))
    return sections


# Versions

REQUIRED = {
    "torch": "2.6",
    "xgrammar": "0.2.1",
    "llguidance": "1.7.6",
    "transformers": "4.56",
}
"""The oldest versions that serve, as pyproject.toml has them."""
_MISSED = {
    "torch": "no host is installed: `check` and `explain` work; to guide, install vLLM, transformers or torch",
    "xgrammar": "xgrammar is not installed: only EBNF grammars need it",
    "transformers": "transformers is not installed: only `Guide` and the demo need it",
}
"""The loss without a package that can be left out."""


def versions() -> Iterator[Finding]:
    """Each version, and those that are missing or too old."""
    yield Finding(
        "ok",
        f"guided-plugin {guided_plugin.__version__}, Python {platform.python_version()}",
    )
    for package, oldest in REQUIRED.items():
        remedy = f"pip install '{package}>={oldest}'"
        try:
            found = version(package)
        except PackageNotFoundError:
            what = _MISSED.get(package)
            if package == "torch" and any(map(find_spec, ("vllm", "transformers"))):
                what = None
            status: Status = "note" if what else "problem"
            yield Finding(status, what or f"{package} is not installed", remedy)
            continue
        if _numbers(found) < _numbers(oldest):
            yield Finding(
                "problem", f"{package} {found} is older than {oldest}", remedy
            )
        else:
            yield Finding("ok", f"{package} {found}")
    try:
        named = re.search(r"\d+\.\d+(?:\.\d+)*", DRIVER.read_text())
        yield Finding(
            "ok", f"NVIDIA driver {named[0] if named else 'of unknown version'}"
        )
    except OSError:
        yield Finding("unknown", "no NVIDIA driver")


def _numbers(text: str) -> tuple[int, ...]:
    """The release of a version: 2.13.0+cpu is (2, 13, 0)."""
    release = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, release[0].split("."))) if release else ()


# Options


def options() -> Iterator[Finding]:
    """The options that GUIDED_PLUGIN changes."""
    read, sources = GuidedConfig.read(None)
    if not read.enabled:
        what = f"{ENVIRONMENT_VARIABLE} switches the package off: hosts refuse guided requests"
        yield Finding("note", what, f"unset {ENVIRONMENT_VARIABLE}")
        return
    yield Finding("ok", read.told(sources))


# Entry points

POINTS = {
    "vllm.general_plugins": (
        "guided_plugin",
        "guided_plugin.hosts.vllm.gate:install",
        "vLLM's frontend",
    ),
    "vllm.logits_processors": (
        "guided_plugin",
        "guided_plugin.vllm:GuidedLogitsProcessor",
        "the V1 and V2 model runners",
    ),
}
"""The name of each group's entry point, what is loaded, and by what, as pyproject.toml
has them."""

_LISTED = "vllm.general_plugins"
"""The group of which vLLM loads only what VLLM_PLUGINS lists, where it is set."""


def entries() -> Iterator[Finding]:
    """The runners that find the package."""
    served = find_spec("vllm") is not None
    broken: Status = "problem" if served else "note"
    allowed = os.environ.get("VLLM_PLUGINS")
    missing = []
    for group, (name, value, host) in POINTS.items():
        if (name, value) not in {
            (point.name, point.value) for point in entry_points(group=group)
        }:
            missing.append(f"{group} ({host})")
            continue
        yield Finding(
            "ok",
            f"{group}: loaded by {host}"
            + ("" if served else ", once vLLM is installed"),
        )
        if group == _LISTED and allowed is not None and name not in allowed.split(","):
            what = f"VLLM_PLUGINS={allowed!r} excludes {name}"
            yield Finding(broken, what, f"add {name} to VLLM_PLUGINS")
    if missing:
        folder = Path(guided_plugin.__file__).parent.parent
        what = f"no entry point in {', '.join(missing)}; the package is imported from {folder}"
        remedy = (
            f"pip install {folder}, and unset PYTHONPATH: a path has no entry points"
        )
        yield Finding(broken, what, remedy)


# vLLM


def vllm() -> Iterator[Finding]:
    """The version that is installed, and everything that is missing of what is relied
    on."""
    from guided_plugin.hosts.vllm.names import ALL_NAMES, Part
    from guided_plugin.hosts.vllm.patches import (
        differences,
        is_tested,
        version_text,
    )

    if find_spec("vllm") is None:
        yield Finding("unknown", "vLLM is not installed here")
        return
    if is_tested(version_text()):
        yield Finding("ok", f"vLLM {version_text()}, a tested version")
    else:
        what = f"vLLM {version_text()} is not among the tested versions"
        yield Finding("note", what, "docs/operations.md#vllm")
    broken = {part: found for part in Part if (found := differences(part))}
    for part, found in broken.items():
        what = f"vLLM does not serve {part.value}: {'; '.join(found)}"
        yield Finding(
            "problem", what, "install a tested version: docs/operations.md#vllm"
        )
    if not broken:
        yield Finding("ok", f"all {len(ALL_NAMES)} names that the plugin uses exist")


SECTIONS: dict[str, Callable[[], Iterator[Finding]]] = {
    "versions": versions,
    "options": options,
    "entry points": entries,
    "vLLM": vllm,
    "processors": processor_time,
    "CUDA": cuda,
    "self-test": self_test,
}
