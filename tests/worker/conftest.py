"""A worker in a thread, for the tests of its loop."""

import gc
import sys
import threading

import pytest
from worker_engine import Engine

import guided_plugin as gp


@pytest.fixture
def make_engine():
    made = []
    interval = sys.getswitchinterval()

    def make(**options):
        made.append(Engine(**options))
        return made[-1]

    yield make
    for engine in made:
        engine.end()
        engine.client.close()
    sys.setswitchinterval(interval)
    gc.unfreeze()


@pytest.fixture
def go_on(monkeypatch):
    """Until this is set, specs that say they are slow don't get compiled."""
    compile = gp.GrammarCompiler.compile
    go_on = threading.Event()

    def slow(self, spec):
        if "slow" in spec.text:
            go_on.wait(20)
        return compile(self, spec)

    monkeypatch.setattr(gp.GrammarCompiler, "compile", slow)
    return go_on
