"""Launches Triton kernels that were compiled before without looking them up anew. Imports Triton.

Launching through the just-in-time compiler costs 12 us a call, most of it to find the kernel that was
compiled for these types and sizes. Its own launcher costs 3, but is no public interface: only versions
that were tested go that way. What asks tensors for nothing but an address costs least: see `bound`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

__all__ = ["Launcher"]

_DIRECT = triton.__version__.startswith("3.6.")


class Launcher:
    """One kernel, with the constants that end its arguments."""

    def __init__(self, kernel: Any, *, num_warps: int, **constants: int) -> None:
        self._kernel = kernel
        self._num_warps = num_warps
        self._constants = constants
        self._values = tuple(constants.values())
        self._compiled: dict[tuple[object, ...], Any] = {}

    def __call__(
        self, key: tuple[object, ...] | None, device: int, grid: tuple[int, int], *arguments: object
    ) -> None:
        """Launch on the current stream. `key` says all that the compiler specializes for; None if that is
        not known."""
        kernel = self._compiled.get(key) if key is not None else None
        if kernel is not None:
            kernel.run(
                *grid,
                1,
                torch._C._cuda_getCurrentRawStream(device),
                kernel.function,
                kernel.packed_metadata,
                *(None, None, None),  # metadata for hooks, and the hooks
                # Addresses: of a tensor the launcher would ask the driver where it lives.
                *[a.data_ptr() if isinstance(a, Tensor) else a for a in arguments],
                *self._values,
            )
            return
        kernel = self._kernel[grid](*arguments, **self._constants, num_warps=self._num_warps)
        if key is not None and _DIRECT:
            self._compiled[key] = kernel

    def bound(
        self, key: tuple[object, ...], device: int, columns: int, *last: Tensor | int
    ) -> Callable[..., None] | None:
        """launch(rows, *first): a launch on a grid of [rows, columns] whose arguments end with `last`. The
        first are numbers, and addresses where tensors are due; who keeps it has to keep the tensors too.
        None if nothing was compiled for `key` yet."""
        kernel = self._compiled.get(key)
        if kernel is None:
            return None
        run, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
        stream = torch._C._cuda_getCurrentRawStream
        fixed = (*[a.data_ptr() if isinstance(a, Tensor) else a for a in last], *self._values)

        def launch(rows: int, *first: int) -> None:
            run(rows, columns, 1, stream(device), function, metadata, None, None, None, *first, *fixed)

        return launch
