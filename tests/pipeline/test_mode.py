"""Where grammars work: `auto` is resolved in one place."""

import pytest
import torch

from guided_plugin.errors import ConfigError
from guided_plugin.pipeline.mode import resolve_mode


@pytest.mark.parametrize(
    ("mode", "device", "resolved"),
    [
        ("auto", "cuda", "process"),
        ("auto", "cpu", "inline"),
        ("process", "cpu", "process"),
        ("inline", "cuda", "inline"),
    ],
)
def test_auto_follows_the_device_and_a_chosen_mode_stays(mode, device, resolved):
    assert resolve_mode(mode, torch.device(device)) == resolved


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'process'"):
        resolve_mode("proces", torch.device("cpu"))
