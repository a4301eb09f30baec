"""The versions of Python, of the libraries that are relied on, and of the driver. Imports none of them."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from guided_plugin import __version__
from guided_plugin.doctor.finding import Finding, Setup

REQUIRED = {
    "torch": "2.6",
    "xgrammar": "0.2.1",
    "llguidance": "1.7.6",
    "transformers": "4.56",
}
"""The oldest versions that serve, as pyproject.toml has them."""

DRIVER = Path("/proc/driver/nvidia/version")


def versions(setup: Setup) -> Iterator[Finding]:
    """Each version, and those that are missing or too old."""
    yield Finding("ok", f"guided-plugin {__version__}, Python {platform.python_version()}")
    for package, oldest in REQUIRED.items():
        remedy = f"pip install '{package}>={oldest}'"
        try:
            found = version(package)
        except PackageNotFoundError:
            yield Finding("problem", f"{package} is not installed", remedy)
            continue
        if _numbers(found) < _numbers(oldest):
            yield Finding("problem", f"{package} {found} is older than {oldest}", remedy)
        else:
            yield Finding("ok", f"{package} {found}")
    yield _driver()


def _driver() -> Finding:
    try:
        text = DRIVER.read_text()
    except OSError:
        return Finding("unknown", "no NVIDIA driver")
    found = re.search(r"\d+\.\d+(?:\.\d+)*", text)
    return Finding("ok", f"NVIDIA driver {found[0] if found else 'of unknown version'}")


def _numbers(text: str) -> tuple[int, ...]:
    """The release of a version: 2.13.0+cpu is (2, 13, 0)."""
    release = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, release[0].split("."))) if release else ()
