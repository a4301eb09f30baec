"""What a figure was measured on: versions, device, date."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGES = ("torch", "xgrammar", "llguidance", "transformers", "triton", "vllm")


def environment(device: str = "cpu") -> dict[str, Any]:
    """Everything a reader needs to judge a figure measured on a device."""
    import torch

    from guided_plugin import __version__

    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "guided_plugin": __version__,
        "python": platform.python_version(),
        "versions": versions,
        "cpus": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
    }
