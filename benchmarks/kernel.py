"""The mask kernel against the bytes it must move, and copies of masks to the device.
Needs CUDA.

    python -m benchmarks.kernel [--rows 8,64,256] [--width 151936] [--out FILE]

The limits are measured on the same device in the same run: a plain fill of memory, and
a large copy. Prints JSON.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.harness import Json, Options, counts, given, head, write
from guided_plugin.kernels import mask_rows

_WARM_UP = 20
_TIMES = 100
_LARGE = 1 << 28


def bench_kernel(*, width: int, rows: Sequence[int]) -> Json:
    """Times on the device in microseconds, for each batch size and share of allowed
    tokens."""
    device = torch.device("cuda")
    speed = _copy_speed(device)
    return {
        "benchmark": "kernel",
        "width": width,
        "copy_gb_per_second": round(speed / 1e9, 1),
        "kernel": [
            _kernel(count, share, width, device)
            for count in rows
            for share in (0.001, 0.5, 0.999)
        ],
        "copy": [_copy(count, width, speed, device) for count in rows],
    }


def _kernel(rows: int, allowed: float, width: int, device: torch.device) -> Json:
    """One launch: the bytes are the mask that is read and the logits that are
    written."""
    logits = torch.randn(rows, width, device=device)
    numbers = torch.arange(rows, dtype=torch.int32, device=device)
    bits = torch.rand(rows, 32 * _words(width), device=device) < allowed
    mask = _packed(bits)
    size = 4 * int((~bits[:, :width]).sum()) + 4 * mask.numel()
    fill = torch.empty(max(1, size // 4), device=device)
    took = _microseconds(lambda: mask_rows(logits, mask, numbers, width))
    limit = _microseconds(lambda: fill.fill_(1.0))
    return {"rows": rows, "allowed": allowed, **_figure(size, took, limit)}


def _copy(rows: int, width: int, speed: float, device: torch.device) -> Json:
    """One copy of masks from pinned memory, against as many bytes at the speed of a
    large copy."""
    host = torch.zeros(rows, _words(width), dtype=torch.int32, pin_memory=True)
    target = torch.zeros_like(host, device=device)
    size = host.numel() * 4
    took = _microseconds(lambda: target.copy_(host, non_blocking=True))
    return {"rows": rows, **_figure(size, took, size / speed * 1e6)}


def _figure(size: int, took: float, limit: float) -> dict[str, float]:
    return {
        "megabytes": round(size / 1e6, 3),
        "microseconds": round(took, 2),
        "limit": round(limit, 2),
    }


def _words(width: int) -> int:
    return (width + 31) // 32


def _packed(bits: Tensor) -> Tensor:
    """[n, 32 * words] booleans as [n, words] int32."""
    places = torch.arange(32, device=bits.device, dtype=torch.int64)
    words = (bits.view(bits.shape[0], -1, 32).to(torch.int64) << places).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _copy_speed(device: torch.device) -> float:
    """Bytes a second."""
    host = torch.zeros(_LARGE, dtype=torch.uint8, pin_memory=True)
    target = torch.zeros(_LARGE, dtype=torch.uint8, device=device)
    return (
        _LARGE
        / _microseconds(lambda: target.copy_(host, non_blocking=True), times=10)
        * 1e6
    )


def _microseconds(call: Callable[[], object], times: int = _TIMES) -> float:
    """Median time on the device. The device is kept busy first, so that launches don't
    count."""
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    parser = Options(__doc__)
    parser.add("--rows", [8, 64, 256], "batch sizes, separated by commas", counts)
    parser.add("--width", 151_936, "logits width")
    parser.out()
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device")
    result = head("benchmarks.kernel", given(arguments), "cuda")
    result |= bench_kernel(width=options.width, rows=options.rows)
    print(json.dumps(result, indent=1))
    write(result, options.out)


if __name__ == "__main__":
    main()
