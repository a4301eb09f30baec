"""Stream memory operations: a CUDA stream waits for a word of host memory. No tensors.

Through `cuda.bindings` where it is installed, else through ctypes on the driver library itself; both
are the same driver calls. Those of a step enqueue and return.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from guided_plugin.errors import PipelineError

_WAIT_GEQ = 0
"""Greater or equal by signed difference, so that step numbers may wrap."""

_PORTABLE_MAPPED = 3
_READ_ONLY = 8
"""Needed where the host may not write the memory either."""

# Their numbers in CUdevice_attribute: the operations as of CUDA 11.7, and their first version.
_CAN_USE_64_BIT_MEM_OPS = 122
_CAN_USE_MEM_OPS_V1 = 92


@dataclass(frozen=True, slots=True)
class StreamOps:
    """The driver calls of a step, on one stream. `device` addresses are the device's."""

    source: str
    """`cuda.bindings` or `libcuda`."""
    wait: Callable[[int, int], None]
    """wait(device address, value): what follows in the stream runs once the word has come that far."""
    copy_up: Callable[[int, int, int], None]
    """copy_up(device address, host address, bytes)."""


class _Driver:
    """The driver's functions as ints and a check; one way to call them or the other."""

    def __init__(self) -> None:
        self.source = "cuda.bindings"
        self._module: Any = None
        try:
            from cuda.bindings import driver

            self._module = driver
        except ImportError:
            self.source = "libcuda"
            try:
                self._library = ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                raise PipelineError(
                    f"the driver library can't be loaded: {error}", where="CUDA", hint="use mode='inline'"
                ) from error

    def function(self, name: str, *kinds: Any) -> Callable[..., Sequence[int]]:
        """A driver call that returns nothing but a status, alone in a tuple. `kinds` are ctypes types; the
        values are ints, or a `stream`."""
        if self._module is not None:
            bound: Callable[..., Sequence[int]] = getattr(self._module, name)
            return bound
        raw = getattr(self._library, _VERSIONED.get(name, name), None)
        if raw is None:
            raise PipelineError(f"the driver has no {name}", where="CUDA", hint="CUDA 11.7 or later has it")
        raw.argtypes, raw.restype = list(kinds), ctypes.c_int
        return lambda *values: (raw(*values),)

    def stream(self, handle: int) -> Any:
        """A stream as the functions take it."""
        return handle if self._module is None else self._module.CUstream(handle)

    def attribute(self, device: int, attribute: int) -> int:
        """An attribute of a device; 0 where the driver doesn't know it."""
        if self._module is not None:
            kind = self._module.CUdevice_attribute
            try:
                status, value = self._module.cuDeviceGetAttribute(kind(attribute), device)
            except ValueError:
                return 0
            return 0 if status else int(value)
        found = ctypes.c_int()
        status = self._library.cuDeviceGetAttribute(ctypes.byref(found), attribute, device)
        return 0 if status else found.value

    def device_address(self, host_address: int) -> int:
        """Where the device sees registered host memory."""
        if self._module is not None:
            status, address = self._module.cuMemHostGetDevicePointer(host_address, 0)
            if status:
                raise _failed("cuMemHostGetDevicePointer", status)
            return int(address)
        found = ctypes.c_uint64()
        get = self._library.cuMemHostGetDevicePointer_v2
        get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
        status = get(ctypes.addressof(found), host_address, 0)
        if status:
            raise _failed("cuMemHostGetDevicePointer", status)
        return found.value


_STREAM = ctypes.c_void_p
_ADDRESS = ctypes.c_uint64
_HOST = ctypes.c_size_t
_VERSIONED = {
    "cuStreamWaitValue32": "cuStreamWaitValue32_v2",
    "cuMemcpyHtoDAsync": "cuMemcpyHtoDAsync_v2",
    "cuMemHostRegister": "cuMemHostRegister_v2",
}


def supported(device: int) -> bool:
    """Whether a device can wait for memory in a stream."""
    driver = _Driver()
    return bool(
        driver.attribute(device, _CAN_USE_64_BIT_MEM_OPS) or driver.attribute(device, _CAN_USE_MEM_OPS_V1)
    )


def load_stream_ops(stream: int) -> StreamOps:
    """The calls of a step on the stream with this handle, ready to use."""
    driver = _Driver()
    there = driver.stream(stream)
    raw_wait = driver.function("cuStreamWaitValue32", _STREAM, _ADDRESS, ctypes.c_uint32, ctypes.c_uint)
    raw_up = driver.function("cuMemcpyHtoDAsync", _ADDRESS, _HOST, ctypes.c_size_t, _STREAM)

    # Each is one function and no more: between two steps a host has forgotten them all, and what a call
    # costs is how much code there is to fetch again.
    def wait(address: int, value: int) -> None:
        (status,) = raw_wait(there, address, value & _U32, _WAIT_GEQ)
        if status:
            raise _failed("cuStreamWaitValue32", status)

    def copy_up(device: int, host: int, size: int) -> None:
        (status,) = raw_up(device, host, size, there)
        if status:
            raise _failed("cuMemcpyHtoDAsync", status)

    return StreamOps(driver.source, wait, copy_up)


_U32 = 0xFFFFFFFF


def register_host(address: int, size: int, *, read_only: bool = False) -> int:
    """Make host memory the device's to read and write, or to read alone; its address there. Needs a current
    context."""
    driver = _Driver()
    register = driver.function("cuMemHostRegister", _HOST, ctypes.c_size_t, ctypes.c_uint)
    (status,) = register(address, size, _PORTABLE_MAPPED | (_READ_ONLY if read_only else 0))
    if status:
        raise _failed("cuMemHostRegister", status)
    return driver.device_address(address)


def unregister_host(address: int) -> None:
    """Take that back. Nothing on the device may use it any more."""
    (status,) = _Driver().function("cuMemHostUnregister", _HOST)(address)
    if status:
        raise _failed("cuMemHostUnregister", status)


def _failed(call: str, status: int) -> PipelineError:
    return PipelineError(f"{call} failed with error {int(status)}", where="CUDA", hint="use mode='inline'")
