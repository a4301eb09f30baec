"""The driver calls, without a driver: what is passed where, and what their failures
become."""

import ctypes

import pytest

from guided_plugin.errors import PipelineError
from guided_plugin.worker.device import streamops


class Library:
    """A driver library whose functions note their arguments."""

    def __init__(self):
        self.calls = []
        self.status = 0
        self.lacks = ""

    def __getattr__(self, name):
        if not name.startswith("cu") or name == self.lacks:
            raise AttributeError(name)

        def function(*arguments):
            self.calls.append((name, *arguments))
            if name == "cuMemHostGetDevicePointer_v2":
                ctypes.c_uint64.from_address(arguments[0]).value = 0x7000
            if name == "cuDeviceGetAttribute":
                ctypes.c_int.from_address(arguments[0]).value = arguments[1] == 92
            return self.status

        setattr(self, name, function)
        return function


@pytest.fixture
def library(monkeypatch):
    found = Library()
    monkeypatch.setattr(streamops, "_driver", lambda: found)
    return found


def test_calls_pass_what_the_driver_takes(library):
    ops = streamops.load_stream_ops(3)
    ops.wait(0x7080, 2**32 + 5)
    ops.copy_up(0xD000, 0xA000, 64)
    assert library.calls == [
        ("cuStreamWaitValue32_v2", 3, 0x7080, 5, 0),
        ("cuMemcpyHtoDAsync_v2", 0xD000, 0xA000, 64, 3),
    ]
    streamops.load_wait()(4, 0x7080, 6)
    assert library.calls[2:] == [("cuStreamWaitValue32_v2", 4, 0x7080, 6, 0)]
    wait = library.cuStreamWaitValue32_v2
    assert wait.argtypes == [
        ctypes.c_void_p,
        ctypes.c_uint64,
        ctypes.c_uint32,
        ctypes.c_uint,
    ]


@pytest.mark.parametrize(("read_only", "flags"), [(False, 3), (True, 3 | 8)])
def test_host_memory_is_registered_and_found(library, read_only, flags):
    assert streamops.register_host(0xA000, 4096, read_only=read_only) == 0x7000
    streamops.unregister_host(0xA000)
    register, (name, _, *found), unregister = library.calls
    assert register == ("cuMemHostRegister_v2", 0xA000, 4096, flags)
    assert (name, *found) == ("cuMemHostGetDevicePointer_v2", 0xA000, 0)
    assert unregister == ("cuMemHostUnregister", 0xA000)


def test_a_failing_call_is_an_error(library):
    ops = streamops.load_stream_ops(3)
    assert streamops.supported(0)
    library.status = 1
    with pytest.raises(
        PipelineError,
        match=r"CUDA: cuStreamWaitValue32_v2 failed with error 1 .*inline",
    ):
        ops.wait(0, 0)
    with pytest.raises(PipelineError, match="cuMemHostRegister_v2 failed"):
        streamops.register_host(0xA000, 4096)
    assert not streamops.supported(0)


def test_no_driver_at_all_is_an_error_with_a_way_out(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    streamops._driver.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(PipelineError, match=r"libcuda\.so\.1.*inline"):
        streamops.load_stream_ops(3)


def test_a_driver_that_is_too_old_is_named(library):
    library.lacks = "cuStreamWaitValue32_v2"
    with pytest.raises(PipelineError, match=r"no cuStreamWaitValue32_v2 .*11\.7"):
        streamops.load_stream_ops(3)
