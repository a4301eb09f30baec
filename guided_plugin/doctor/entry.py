"""The entry points by which hosts load the package, and plugins of third parties. Imports no vLLM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

import guided_plugin
from guided_plugin.config import GuidedConfig
from guided_plugin.doctor.finding import Finding, Setup, Status
from guided_plugin.errors import ConfigError, GuidedError
from guided_plugin.plugins import ENTRY_POINT_GROUP, Plugins

POINTS = {
    "vllm.general_plugins": ("guided_plugin", "guided_plugin.hosts.vllm.gate:install", "vLLM's frontend"),
    "vllm.logits_processors": (
        "guided_plugin",
        "guided_plugin.vllm:GuidedLogitsProcessor",
        "the V1 and V2 model runners",
    ),
    "vllm.stat_logger_plugins": (
        "guided_plugin_metrics",
        "guided_plugin.hosts.vllm.figures:GuidedStatLogger",
        "vLLM's /metrics",
    ),
}
"""Of each group: the name, what is loaded, and by what. As pyproject.toml has them."""

_LISTED = ("vllm.general_plugins", "vllm.stat_logger_plugins")
"""Groups of which vLLM loads only what VLLM_PLUGINS lists, where it is set."""


def entries(setup: Setup) -> Iterator[Finding]:
    """Which runner finds the package, which plugins the package finds."""
    served = find_spec("vllm") is not None
    missing = []
    for group, (name, value, host) in POINTS.items():
        if any(point.name == name and point.value == value for point in entry_points(group=group)):
            yield Finding("ok", f"{group}: loaded by {host}" + ("" if served else ", were vLLM installed"))
            yield from _left_out(group, name, served)
        else:
            missing.append(f"{group} ({host})")
    if missing:
        status: Status = "problem" if served else "note"
        yield Finding(status, f"no entry point in {', '.join(missing)}{_why()}", _remedy())
    yield from _stale()
    yield from _third_parties()


def _left_out(group: str, name: str, served: bool) -> Iterator[Finding]:
    allowed = os.environ.get("VLLM_PLUGINS")
    if group in _LISTED and allowed is not None and name not in allowed.split(","):
        status: Status = "problem" if served else "note"
        yield Finding(status, f"VLLM_PLUGINS={allowed!r} leaves {name} out", f"add {name} to VLLM_PLUGINS")


def _why() -> str:
    try:
        version("guided-plugin")
    except PackageNotFoundError:
        return f": the package is imported from {_folder()} and not installed"
    return ": what is installed was built without it"


def _remedy() -> str:
    return f"pip install {_folder()}: a path in PYTHONPATH has no entry points"


def _folder() -> Path:
    return Path(guided_plugin.__file__).parent.parent


def _stale() -> Iterator[Finding]:
    try:
        installed = version("guided-plugin")
    except PackageNotFoundError:
        return
    if installed != guided_plugin.__version__:
        what = f"guided-plugin {installed} is installed, {guided_plugin.__version__} is imported"
        yield Finding("problem", f"{what} from {_folder()}", "install one version, and unset PYTHONPATH")


def _third_parties() -> Iterator[Finding]:
    try:
        options = GuidedConfig.from_environment()
    except ConfigError:
        return  # the section on options tells
    try:
        plugins = Plugins(disabled=options.disabled_plugins)
    except GuidedError as error:
        yield Finding("problem", f"{error.where}: {error.what}", error.hint)
        return
    others = [point.name for point in entry_points(group=ENTRY_POINT_GROUP)]
    own = ", ".join(plugins.names())
    yield Finding("ok", f"plugins: {own}" + ("" if others else "; none of third parties"))
