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


def not_compiled():
    raise AssertionError("Torch not compiled with CUDA enabled")


@pytest.mark.parametrize(
    ("init", "device", "says"),
    [
        (no_driver, "cuda", "'cuda' cannot be used: Found no NVIDIA driver on your"),
        (not_compiled, "cuda", "'cuda' cannot be used: Torch not compiled with CUDA"),
        (lambda: None, "cuda:2", "'cuda:2' cannot be used: there are 2 CUDA devices"),
        (lambda: None, "gpu", r"'gpu' is not a device \(cpu or cuda\)"),
    ],
)
def test_a_device_that_is_not_there_is_told(
    byte_compiler, monkeypatch, init, device, says
):
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for mode in ("auto", "inline", "process"):
        with pytest.raises(ConfigError, match=f"device: {says}") as failure:
            gp.StepPipeline(byte_compiler, max_slots=1, device=device, mode=mode)
        assert failure.value.hint


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
