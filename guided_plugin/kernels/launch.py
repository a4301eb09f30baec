"""Launches Triton kernels that were compiled before without looking them up again. Imports Triton.

Launching through the just-in-time compiler costs 12 us a call, most of it to find the kernel that was
compiled for these types and sizes. Its own launcher costs 3, but is no public interface: only versions
that were tested go that way. What is launched in every step asks `known` itself, for half the Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

_DIRECT = triton.__version__.startswith("3.6.")


class Launcher:
    """One kernel, with the constants that end its arguments."""

    def __init__(self, kernel: Any, *, num_warps: int, **constants: int) -> None:
        self._kernel = kernel
        self._num_warps = num_warps
        self._constants = constants
        self.known: dict[tuple[object, ...] | None, Callable[..., None]] = {}
        """By key, what was launched before: launch(rows, *first), with addresses in place of tensors. The
        launcher would ask the driver where a tensor lives."""

    def __call__(
        self,
        key: tuple[object, ...] | None,
        device: int,
        grid: tuple[int, int],
        first: tuple[Tensor | int, ...],
        last: tuple[int, ...] = (),
    ) -> None:
        """Launch on the current stream, with `first` and `last` as arguments. `key` says all that the
        compiler specializes for, the grid's second number and `last`; None if that is not known."""
        launch = self.known.get(key)
        if launch is not None:
            launch(grid[0], *[each if isinstance(each, int) else each.data_ptr() for each in first])
            return
        kernel = self._kernel[grid](*first, *last, **self._constants, num_warps=self._num_warps)
        if key is not None and _DIRECT:
            self.known[key] = self._direct(kernel, device, grid[1], last)

    def _direct(self, kernel: Any, device: int, columns: int, last: tuple[int, ...]) -> Callable[..., None]:
        run, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
        stream = torch._C._cuda_getCurrentRawStream
        fixed = (*last, *self._constants.values())

        def launch(rows: int, *first: int) -> None:
            # Three times None: metadata for hooks, and the hooks.
            run(rows, columns, 1, stream(device), function, metadata, None, None, None, *first, *fixed)

        return launch
