"""The driver calls, without a driver: what their failures become."""

import ctypes

import pytest

from guided_plugin.errors import PipelineError
from guided_plugin.worker.device import streamops


class Library:
    """A driver library whose functions return a status; it may lack one of them."""

    status = 0
    lacks = ""

    def __getattr__(self, name):
        if not name.startswith("cu") or name == self.lacks:
            raise AttributeError(name)

        def function(*arguments):
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


def test_a_failing_call_is_an_error(library):
    wait = streamops.load_wait()
    assert streamops.supported(0)
    library.status = 1
    with pytest.raises(
        PipelineError,
        match=r"CUDA: cuStreamWaitValue32_v2 failed with error 1 .*inline",
    ):
        wait(3, 0, 0)
    with pytest.raises(PipelineError, match="cuMemHostRegister_v2 failed"):
        streamops.register_host(0xA000, 4096)
    assert not streamops.supported(0)


def test_no_driver_at_all_is_an_error_with_a_way_out(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    streamops._driver.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(PipelineError, match=r"libcuda\.so\.1.*inline"):
        streamops.load_wait()


def test_a_driver_that_is_too_old_is_named(library):
    library.lacks = "cuStreamWaitValue32_v2"
    with pytest.raises(PipelineError, match=r"no cuStreamWaitValue32_v2 .*11\.7"):
        streamops.load_wait()
