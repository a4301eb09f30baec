"""The environment variable GUIDED_PLUGIN, as it is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields

from guided_plugin.config import ENVIRONMENT_VARIABLE, GuidedConfig
from guided_plugin.doctor.finding import Finding, Setup
from guided_plugin.errors import ConfigError, printable


def options(setup: Setup) -> Iterator[Finding]:
    """What it changes, or why it cannot be read."""
    text = os.environ.get(ENVIRONMENT_VARIABLE)
    if not text:
        yield Finding("ok", f"{ENVIRONMENT_VARIABLE} is not set: the defaults hold")
        return
    try:
        read = GuidedConfig.from_environment()
    except ConfigError as error:
        what = f"{ENVIRONMENT_VARIABLE}={printable(text, 80)} cannot be read: {error}"
        form = error.where == ENVIRONMENT_VARIABLE
        remedy = "set it to 0, 1 or a JSON object of options" if form else "change the option that this names"
        yield Finding("problem", what, remedy + f", or unset {ENVIRONMENT_VARIABLE}")
        return
    changed = {
        field.name: getattr(read, field.name)
        for field in fields(read)
        if getattr(read, field.name) != field.default
    }
    if not read.enabled:
        what = f"{ENVIRONMENT_VARIABLE} turns the package off: hosts refuse guided requests"
        yield Finding("note", what, f"unset {ENVIRONMENT_VARIABLE}")
        return
    shown = ", ".join(f"{name} = {value!r}" for name, value in changed.items())
    yield Finding("ok", f"{ENVIRONMENT_VARIABLE} sets {shown or 'nothing but the defaults'}")
