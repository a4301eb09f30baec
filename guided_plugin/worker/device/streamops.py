"""Stream memory operations: a CUDA stream waits for a word of host memory. No tensors.

The calls are those of the driver library itself, through ctypes; those of a step
enqueue and return.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from guided_plugin.errors import PipelineError

_WAIT_GEQ = 0
"""Greater or equal by signed difference, so that step numbers may wrap."""

_PORTABLE_MAPPED = 3
_READ_ONLY = 8
"""Needed where the host may not write the memory either."""

# Their numbers in CUdevice_attribute: the operations as of CUDA 11.7, and their first
# version.
_CAN_USE_64_BIT_MEM_OPS = 122
_CAN_USE_MEM_OPS_V1 = 92

_U32 = 0xFFFFFFFF


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise PipelineError(
            f"the driver library can't be loaded: {error}",
            where="CUDA",
            hint="use mode='inline'",
        ) from error


def _function(name: str, *kinds: Any) -> Callable[..., int]:
    """A driver call that returns a status; `kinds` are the ctypes types of its
    arguments."""
    function: Any = getattr(_driver(), name, None)
    if function is None:
        raise PipelineError(
            f"the driver has no {name}", where="CUDA", hint="CUDA 11.7 or later has it"
        )
    function.argtypes = list(kinds)
    function.restype = ctypes.c_int
    found: Callable[..., int] = function
    return found


_STREAM = _POINTER = ctypes.c_void_p
_ADDRESS = ctypes.c_uint64
_SIZE = ctypes.c_size_t


def supported(device: int) -> bool:
    """True if a device can wait for memory in a stream."""
    ask = _function("cuDeviceGetAttribute", _POINTER, ctypes.c_int, ctypes.c_int)
    found = ctypes.c_int()
    return any(
        not ask(ctypes.addressof(found), attribute, device) and found.value
        for attribute in (_CAN_USE_64_BIT_MEM_OPS, _CAN_USE_MEM_OPS_V1)
    )


def load_wait() -> Callable[[int, int, int], None]:
    """A function (stream, address, value): what follows in the stream with this handle
    runs once the word at a device address is that far."""
    raw_wait = _function(
        "cuStreamWaitValue32_v2", _STREAM, _ADDRESS, ctypes.c_uint32, ctypes.c_uint
    )

    def wait_on(stream: int, address: int, value: int) -> None:
        status = raw_wait(stream, address, value & _U32, _WAIT_GEQ)
        if status:
            raise _failed("cuStreamWaitValue32_v2", status)

    return wait_on


def load_copy_up(stream: int) -> Callable[[int, int, int], None]:
    """A function (device address, host address, bytes) that copies on the stream with
    this handle."""
    raw_up = _function("cuMemcpyHtoDAsync_v2", _ADDRESS, _POINTER, _SIZE, _STREAM)

    def copy_up(device: int, host: int, size: int) -> None:
        status = raw_up(device, host, size, stream)
        if status:
            raise _failed("cuMemcpyHtoDAsync_v2", status)

    return copy_up


def register_host(address: int, size: int, *, read_only: bool = False) -> int:
    """Make host memory the device's to read and write, or to read alone; its address
    there. Needs a current context."""
    flags = _PORTABLE_MAPPED | (_READ_ONLY if read_only else 0)
    _call(
        "cuMemHostRegister_v2",
        (_POINTER, address),
        (_SIZE, size),
        (ctypes.c_uint, flags),
    )
    found = ctypes.c_uint64()
    there = ctypes.addressof(found)
    _call(
        "cuMemHostGetDevicePointer_v2",
        (_POINTER, there),
        (_POINTER, address),
        (ctypes.c_uint, 0),
    )
    return found.value


def unregister_host(address: int) -> None:
    """Take that back. Nothing on the device may use it any more."""
    _call("cuMemHostUnregister", (_POINTER, address))


def _call(name: str, *arguments: tuple[Any, int]) -> None:
    """A driver call with arguments of these ctypes types."""
    status = _function(name, *(kind for kind, _ in arguments))(
        *(value for _, value in arguments)
    )
    if status:
        raise _failed(name, status)


def _failed(call: str, status: int) -> PipelineError:
    return PipelineError(
        f"{call} failed with error {status}", where="CUDA", hint="use mode='inline'"
    )
