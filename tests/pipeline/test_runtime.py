"""The device and the mode of a pipeline are checked before anything is allocated."""

import pytest
import torch

import guided_plugin as gp
from guided_plugin.errors import ConfigError
from guided_plugin.pipeline import runtime


def no_driver():
    raise RuntimeError(
        "Found no NVIDIA driver on your system.\nPlease check that you have one"
    )


@pytest.mark.parametrize("mode", ["auto", "inline", "process"])
def test_cuda_without_cuda_is_an_error_that_says_so(byte_compiler, monkeypatch, mode):
    monkeypatch.setattr(torch.cuda, "init", no_driver)
    with pytest.raises(ConfigError) as failure:
        gp.StepPipeline(byte_compiler, max_slots=1, device="cuda", mode=mode)
    assert str(failure.value) == (
        "device: 'cuda' cannot be used: Found no NVIDIA driver on your system "
        "(use device='cpu', or a PyTorch and a driver with torch.cuda.is_available())"
    )


def test_a_build_without_cuda_is_told(monkeypatch):
    def not_compiled():
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "init", not_compiled)
    assert runtime.cuda_reason() == "Torch not compiled with CUDA enabled"


def test_a_device_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert runtime.checked_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(
        ConfigError, match="'cuda:2' cannot be used: there are 2 CUDA devices"
    ):
        runtime.checked_device("cuda:2")


def test_a_name_that_is_no_device_is_told(byte_compiler):
    with pytest.raises(ConfigError, match=r"'gpu' is not a device \(cpu or cuda\)"):
        gp.StepPipeline(byte_compiler, max_slots=1, device="gpu")


@pytest.mark.parametrize(
    ("mode", "name", "resolved"),
    [
        ("auto", "cuda", "process"),
        ("auto", "cpu", "inline"),
        ("process", "cpu", "process"),
        ("inline", "cuda", "inline"),
    ],
)
def test_auto_follows_the_device_and_a_chosen_mode_stays(mode, name, resolved):
    assert runtime.resolve_mode(mode, torch.device(name)) == resolved


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'process'"):
        runtime.resolve_mode("proces", torch.device("cpu"))
