"""The driver calls, without a driver: what is passed where, and what their failures become."""

import ctypes
import enum
import sys
from types import ModuleType, SimpleNamespace

import pytest

from guided_plugin.errors import PipelineError
from guided_plugin.worker.device import streamops


class Status(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


class Stream(int):
    pass


@pytest.fixture
def calls():
    return []


@pytest.fixture
def bindings(monkeypatch, calls):
    """`cuda.bindings.driver` as its documentation has it: a status first, streams as objects."""

    def call(name, *results):
        def run(*arguments):
            calls.append((name, *arguments))
            return (Status(driver.status), *results)

        return run

    driver = SimpleNamespace(
        status=0,
        CUstream=Stream,
        CUdevice_attribute=enum.IntEnum("CUdevice_attribute", {"NEW": 122, "OLD": 92}),
        cuStreamWaitValue32=call("wait"),
        cuMemcpyHtoDAsync=call("up"),
        cuMemHostRegister=call("register"),
        cuMemHostUnregister=call("unregister"),
        cuMemHostGetDevicePointer=call("pointer", 0x7000),
        cuDeviceGetAttribute=lambda attribute, device: (Status(driver.status), int(attribute == 122)),
    )
    package = ModuleType("cuda.bindings")
    package.driver = driver
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    return driver


class Function:
    """A function of a C library that notes its arguments."""

    def __init__(self, name, library):
        self.name, self.library = name, library
        self.argtypes = self.restype = None

    def __call__(self, *arguments):
        self.library.calls.append((self.name, *arguments))
        if self.name == "cuMemHostGetDevicePointer_v2":
            ctypes.c_uint64.from_address(arguments[0]).value = 0x7000
        if self.name == "cuDeviceGetAttribute":
            arguments[0]._obj.value = int(arguments[1] == 92)
        return self.library.status


class Library:
    def __init__(self, calls):
        self.calls, self.status = calls, 0

    def __getattr__(self, name):
        if not name.startswith("cu") or name == "cuStreamWaitValue32":
            raise AttributeError(name)
        function = Function(name, self)
        setattr(self, name, function)
        return function


@pytest.fixture
def library(monkeypatch, calls):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    found = Library(calls)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    return found


def use_all(ops):
    ops.wait(0x7080, 2**32 + 5)
    ops.copy_up(0xD000, 0xA000, 64)


def test_through_the_bindings(bindings, calls):
    ops = streamops.load_stream_ops(3)
    use_all(ops)
    assert ops.source == "cuda.bindings"
    assert calls == [
        ("wait", 3, 0x7080, 5, 0),
        ("up", 0xD000, 0xA000, 64, 3),
    ]
    assert [type(call[i]) for call, i in zip(calls, (1, 4), strict=True)] == [Stream] * 2
    calls.clear()
    assert streamops.register_host(0xA000, 4096) == 0x7000
    streamops.unregister_host(0xA000)
    assert calls == [("register", 0xA000, 4096, 3), ("pointer", 0xA000, 0), ("unregister", 0xA000)]
    calls.clear()
    assert streamops.register_host(0xA000, 4096, read_only=True) == 0x7000
    assert calls[0] == ("register", 0xA000, 4096, 3 | 8)


def test_through_the_library(library, calls):
    ops = streamops.load_stream_ops(3)
    use_all(ops)
    assert ops.source == "libcuda"
    assert calls == [
        ("cuStreamWaitValue32_v2", 3, 0x7080, 5, 0),
        ("cuMemcpyHtoDAsync_v2", 0xD000, 0xA000, 64, 3),
    ]
    assert library.cuStreamWaitValue32_v2.argtypes == [
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_uint32,
        ctypes.c_uint,
    ]
    calls.clear()
    assert streamops.register_host(0xA000, 4096) == 0x7000
    streamops.unregister_host(0xA000)
    assert [call[0] for call in calls] == [
        "cuMemHostRegister_v2",
        "cuMemHostGetDevicePointer_v2",
        "cuMemHostUnregister",
    ]


@pytest.mark.parametrize("way", ["bindings", "library"])
def test_a_failing_call_is_an_error(request, way):
    driver = request.getfixturevalue(way)
    ops = streamops.load_stream_ops(3)
    driver.status = 1
    with pytest.raises(PipelineError, match=r"CUDA: cuStreamWaitValue32 failed with error 1 .*inline"):
        ops.wait(0, 0)
    with pytest.raises(PipelineError, match="cuMemHostRegister failed"):
        streamops.register_host(0xA000, 4096)
    assert not streamops.supported(0)
    driver.status = 0
    assert streamops.supported(0)


def test_no_driver_at_all_is_an_error_with_a_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)

    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(PipelineError, match=r"libcuda\.so\.1.*inline"):
        streamops.load_stream_ops(3)


def test_a_driver_that_is_too_old_is_named(library, monkeypatch):
    monkeypatch.setitem(streamops._VERSIONED, "cuStreamWaitValue32", "cuStreamWaitValue32")
    with pytest.raises(PipelineError, match=r"no cuStreamWaitValue32 .*11\.7"):
        streamops.load_stream_ops(3)
