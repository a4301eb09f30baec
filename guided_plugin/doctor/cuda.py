"""CUDA as PyTorch sees it, and whether its streams can wait for memory. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator

from guided_plugin.doctor.finding import Finding, Setup
from guided_plugin.doctor.versions import DRIVER
from guided_plugin.errors import PipelineError


def cuda(setup: Setup) -> Iterator[Finding]:
    """Each device; without any that is no failure, unless there is a driver."""
    import torch

    from guided_plugin.pipeline.device import cuda_reason
    from guided_plugin.worker.device.streamops import supported

    reason = cuda_reason()
    if reason and DRIVER.exists():
        yield Finding(
            "problem",
            f"there is a driver, and PyTorch cannot use it: {reason}",
            "pip install a CUDA build of torch",
        )
        return
    if reason:
        yield Finding("unknown", f"no CUDA: {reason}")
        return
    for index in range(torch.cuda.device_count()):
        name = f"cuda:{index} {torch.cuda.get_device_name(index)}, CUDA {torch.version.cuda}"
        try:
            able = supported(index)
        except (PipelineError, OSError) as error:
            yield Finding(
                "problem", f"{name}: {error}", "a driver of CUDA 11.7 or later; or set mode to inline"
            )
            continue
        if able:
            yield Finding("ok", f"{name}: streams wait for memory")
        else:
            what = f"{name}: no stream memory operations, so the engine's thread waits for masks"
            yield Finding("note", what, "nothing: it is slower, and right")
