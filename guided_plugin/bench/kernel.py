"""The mask kernel against the bytes it must move, and mask copies. Imports torch; CUDA only.

The limits are measured on the same device in the same run: a plain fill of memory, a large copy.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from guided_plugin.bench.environment import environment
from guided_plugin.kernels import mask_rows

__all__ = ["bench_kernel"]

_WARM_UP, _TIMES = 20, 100
_LARGE = 1 << 28


@dataclass(frozen=True, slots=True)
class KernelFigure:
    """One batch size and share of allowed tokens; times on the device, in microseconds."""

    rows: int
    allowed: float
    """Share of the vocabulary that stays allowed."""
    megabytes: float
    """The mask that is read, and the logits that are written."""
    microseconds: float
    limit: float
    """What a plain fill of as many bytes takes."""


@dataclass(frozen=True, slots=True)
class CopyFigure:
    """One copy of masks from pinned memory to the device."""

    rows: int
    megabytes: float
    microseconds: float
    limit: float
    """What as many bytes take at the speed of a copy of 256 MiB."""


def bench_kernel(*, width: int, rows: Sequence[int], progress: Callable[[], None]) -> dict[str, Any]:
    """Times of the kernel and of copies; `progress` is called after each batch size."""
    device = torch.device("cuda")
    words = (width + 31) // 32
    kernels, copies = [], []
    speed = _copy_speed(device)
    for count in rows:
        logits = torch.randn(count, width, device=device)
        numbers = torch.arange(count, dtype=torch.int32, device=device)
        for allowed in (0.001, 0.5, 0.999):
            bits = torch.rand(count, words * 32, device=device) < allowed
            mask = _packed(bits)
            written = 4 * int((~bits[:, :width]).sum())
            size = written + mask.numel() * 4
            fill = torch.empty(max(1, size // 4), device=device)

            def masked(chosen: torch.Tensor = mask) -> None:
                mask_rows(logits, chosen, numbers, width)  # noqa: B023 - called before the next round

            def filled(memory: torch.Tensor = fill) -> None:
                memory.fill_(1.0)

            took, limit = _microseconds(masked), _microseconds(filled)
            kernels.append(
                KernelFigure(count, allowed, round(size / 1e6, 3), round(took, 2), round(limit, 2))
            )
        host = torch.zeros(count, words, dtype=torch.int32, pin_memory=True)
        target = torch.zeros(count, words, dtype=torch.int32, device=device)
        size = host.numel() * 4

        def copied(to: torch.Tensor = target, source: torch.Tensor = host) -> None:
            to.copy_(source, non_blocking=True)

        took = _microseconds(copied)
        copies.append(CopyFigure(count, round(size / 1e6, 3), round(took, 2), round(size / speed * 1e6, 2)))
        progress()
    return {
        "benchmark": "kernel",
        "environment": environment("cuda"),
        "width": width,
        "copy_gb_per_second": round(speed / 1e9, 1),
        "kernel": [asdict(figure) for figure in kernels],
        "copy": [asdict(figure) for figure in copies],
    }


def _packed(bits: torch.Tensor) -> torch.Tensor:
    """[n, 32 * words] booleans as [n, words] int32."""
    places = torch.arange(32, device=bits.device, dtype=torch.int64)
    words = (bits.view(bits.shape[0], -1, 32).to(torch.int64) << places).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _copy_speed(device: torch.device) -> float:
    host = torch.zeros(_LARGE, dtype=torch.uint8, pin_memory=True)
    target = torch.zeros(_LARGE, dtype=torch.uint8, device=device)
    return _LARGE / _microseconds(lambda: target.copy_(host, non_blocking=True), times=10) * 1e6


def _microseconds(call: Callable[[], object], times: int = _TIMES) -> float:
    """Median time on the device. The device is kept busy first, so that launches don't count."""
    for _ in range(_WARM_UP):
        call()
    found: list[float] = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(20_000 * times)
        start.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1e3 / times)
    return statistics.median(found)
